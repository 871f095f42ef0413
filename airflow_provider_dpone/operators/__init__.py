"""Operators: stage a table's new contents, publish them, clean up."""

from airflow_provider_dpone.operators.cleanup import CleanupOperator
from airflow_provider_dpone.operators.publish import PublishOperator
from airflow_provider_dpone.operators.stage import StageOperator

__all__ = ["CleanupOperator", "PublishOperator", "StageOperator"]

"""Every setting that a load sends is asked for first: releases differ in what they know."""

from __future__ import annotations

from airflow_provider_dpone.clickhouse.exact import (
    INPUT_SETTINGS,
    LOAD_SETTINGS,
    NO_DEDUPLICATION,
    SELECT_SETTINGS,
)
from airflow_provider_dpone.sources.csv_file import CsvOptions


def test_every_setting_of_a_load_is_asked_for() -> None:
    sent = {*SELECT_SETTINGS, *INPUT_SETTINGS, *NO_DEDUPLICATION, *CsvOptions().settings}
    assert sent <= set(LOAD_SETTINGS)

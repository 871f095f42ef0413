"""The agreed set of tests on every supported Airflow and Python: ``scripts/test-matrix``."""

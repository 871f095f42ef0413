"""``airflow dpone ...``: commands for operators of a cluster."""

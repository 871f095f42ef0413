"""What waits in Airflow's triggerer. Triggers read, and change nothing on any server."""

"""What Airflow loads as plugins."""

"""Links from Airflow's own pages to the page of this provider."""

"""The pure core: what is known, what it means, and the one next step.

Nothing here does I/O, reads a clock, or knows Airflow, HTTP or SQL. Facts come in as frozen values,
decisions go out as frozen values; the routes carry them out through ports.
"""

"""Hundreds of publications in a row under random faults: ``python -m tests.soak``, or ``scripts/soak``."""

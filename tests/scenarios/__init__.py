"""Scripted scenarios on real servers, and one checker of what must never happen; see test_scenarios.py."""

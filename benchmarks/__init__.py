"""Benchmarks: ratios that are measured side by side in one run, on the local cluster."""

"""Metrics of predictions and their uncertainty: intervals, bands, best sets, permutation tests."""

"""Metrics of predictions, and how sure they are."""

"""Check the data before a probe is fitted: duplicates, contradictory labels, imbalanced classes."""

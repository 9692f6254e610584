"""Splits: their names, how they are carved, and texts that they share."""

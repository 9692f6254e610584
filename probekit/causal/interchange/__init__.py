"""Interchange: counterparts, swaps, and the search for the best direction."""

"""Sufficient statistics of activations: counts, sums and Gram matrices."""

"""Edited runs: a trunk, and branches that start at the layer of their edits."""

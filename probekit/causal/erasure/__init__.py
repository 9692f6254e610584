"""Erasure: LEACE, and what fresh probes still read after it."""

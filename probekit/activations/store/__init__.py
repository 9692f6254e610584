"""Activations on disk: immutable shards, their records, and a manifest."""

"""Activations that other programs wrote, turned into a store."""

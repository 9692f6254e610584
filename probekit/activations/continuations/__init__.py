"""Texts that the model continues before its activations are kept."""

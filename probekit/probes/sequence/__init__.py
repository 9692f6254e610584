"""Probes over a sequence: from all tokens of a text to the text's label."""

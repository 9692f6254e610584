"""Activation patching: layer by position, layer by head."""

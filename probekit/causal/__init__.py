"""Whether a model uses what can be read from it: edits, their effects on its behaviour, and placebos."""

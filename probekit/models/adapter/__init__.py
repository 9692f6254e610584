"""Any other model: the installed transformers' own class for a config, wrapped with this project's points.

`load.py` finds the class, `layouts.py` its blocks, `proof.py` shows on random texts that the points are what their
names say, `identities.py` that they add up in every batch, `batching.py` which batches leave a text's activations
unchanged, and `model.py` is the wrapper.
"""

"""Any PyTorch module over token ids, with this project's points: your own, nanoGPT's, TransformerLens's.

`wrap.py` is the verb. `known.py` has the points of known classes, `places.py` finds the modules that points name,
`extent.py` the vocabulary and the context, `shape.py` the sizes and axes that one forward shows; `proof.py` proves the
points on random texts, `model.py` is the wrapper, `outside.py` hooks and calls a module, and `own_file.py` runs a file
of the user's own.
"""

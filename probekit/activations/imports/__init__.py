"""Activations that other programs wrote, turned into a store.

One plan has one of two sources (`plan`): `arrays`, or the requests of `vllm`. Headers and labels are checked first;
then every file is read once, for its checksum and for values that cannot be stored; only then is the store begun
(`run`). It is written in blocks of rows, so that memory use does not grow with N, and its identity holds the checksums
of its sources: the same import is resumed, another one is refused.
"""

"""Ranges of several lengths, one after the other: the tokens of texts, the rows of examples."""

import numpy as np


def starts_of(lengths: np.ndarray) -> np.ndarray:
    """Where each of the ranges begins, int64 [N]."""
    return np.cumsum(lengths) - lengths


def ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The indices start, start + 1, ... of each range, one range after the other, int64."""
    return np.repeat(starts - starts_of(counts), counts) + np.arange(counts.sum())

"""How long texts are, in characters, words, sentences and tokens: features of the length baseline and of nuisances.

Axes: N texts, V features.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

SENTENCE_END = re.compile(r"[.!?…]+(?=\s|$)|[。！？]+")  # noqa: RUF001


def length_features(inputs: Sequence[Any], tokens: np.ndarray | None = None) -> np.ndarray:
    """Logarithms of the lengths of texts: float64 [N, V].

    Args:
        inputs: N texts, measured in characters, words and sentences; or N lists of token ids, counted.
        tokens: how many tokens the model read of each text, int64 [N], where that is known.
    """
    known: dict[Any, tuple[int, ...]] = {}  # a text that has a row for each of its tokens is measured once
    sizes = []
    for one in inputs:
        key = one if isinstance(one, str) else id(one)
        if key not in known:
            known[key] = _sizes(one)
        sizes.append(known[key])
    logs = np.log1p(np.array(sizes, dtype=np.float64).reshape(len(sizes), -1))
    if tokens is not None:
        logs = np.concatenate([logs, np.log1p(tokens[:, None].astype(np.float64))], axis=1)
    return logs


def with_squares(features: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Features [N, V] and their squared distances from the mean of the training rows: [N, 2 V].

    The squares let a linear model prefer texts of middle length.
    """
    return np.concatenate([features, (features - features[train].mean(axis=0)) ** 2], axis=1)


def _sizes(one: Any) -> tuple[int, ...]:
    """Characters, words and sentences of a text; the number of token ids of a list."""
    if not isinstance(one, str):
        return (len(one),)
    return len(one), len(one.split()), max(1, len(SENTENCE_END.findall(one)))

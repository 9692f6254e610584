"""Activation patching of a causal run: the pairs, and a grid for each point.

Axes: N pairs.
"""

from collections.abc import Callable

import numpy as np
import torch

from probekit.causal.behaviour.pairs import Align, MinimalPairs, load_pairs
from probekit.causal.curve.question import CausalQuestion
from probekit.causal.curve.sides import Side
from probekit.causal.data import PatchGrid
from probekit.causal.patching.patching import patch_grid
from probekit.errors import DataError

PATCHED = ("resid_pre", "attn_out", "mlp_out", "z")
MOST_PAIRS = 48  # of test rows; a grid runs each pair in every layer and position
PLACEBOS = 5  # other pairs whose activations each pair gets


def find_grids(
    question: CausalQuestion, side: Side, begin: Callable[[str], None], progress: Callable[[int, int], None] | None
) -> tuple[list[PatchGrid], int]:
    """The grids, and how many pairs they are of.

    Raises:
        UsageError: a model that cannot be patched so.
        DataError: pairs that cannot be read or patched.
    """
    pairs, groups = patched_pairs(question, side)
    placebos = min(PLACEBOS, question.options.placebos)
    grids = []
    for point in PATCHED:
        begin(f"patching {point}")
        found = patch_grid(question.model, pairs, point, placebos=placebos, groups=groups, on_layer=progress)
        grids.append(found)
    return grids, len(pairs)


def patched_pairs(question: CausalQuestion, side: Side) -> tuple[MinimalPairs, np.ndarray | None]:
    """The pairs of a file, or test rows with their counterparts of equal length; and the group of each."""
    options = question.options
    if options.pairs is not None:
        align: Align = "last" if options.align == "last" else "tokens"
        return load_pairs(options.pairs, question.model, align, question.acts.meta.get("bos")), None
    texts = side.trunk.texts
    lengths = np.array([len(text) for text in texts])
    rows = np.flatnonzero(lengths == lengths[side.counterpart])
    rows = np.array([i for i in rows if texts[i] != texts[side.counterpart[i]]], dtype=np.int64)[:MOST_PAIRS]
    if not len(rows):
        raise DataError(
            "no test text has a counterpart of equal length, and patching needs pairs that align token by token; give "
            "pairs (--pairs)"
        )
    others, some = side.counterpart[rows], torch.from_numpy(rows)
    pairs = MinimalPairs(
        clean=[texts[i] for i in rows],
        corrupted=[texts[i] for i in others],
        own_N=side.own_N[some],
        other_N=side.other_N[some],
        clean_answer_N=side.trunk.answer_N[some],
        corrupted_answer_N=side.trunk.answer_N[torch.from_numpy(others)],
        names=[question.acts.task.ids[i] for i in side.index[rows]],
    )
    groups = question.rows.groups
    return pairs, None if groups is None else groups[question.rows.of("test")][rows]

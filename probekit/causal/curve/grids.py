"""Activation patching of a causal run: the pairs, and a grid for each point.

Axes: N pairs.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from probekit.causal.behaviour.pairs import Align, MinimalPairs, load_pairs
from probekit.causal.curve.prepared import AnsweredRows
from probekit.causal.curve.question import CausalQuestion
from probekit.causal.data import PatchGrid
from probekit.causal.patching.patch_pairs import exact_pairs, grids_of, patch_pairs
from probekit.causal.patching.patching import patchable
from probekit.causal.results.results import CausalResults
from probekit.errors import DataError
from probekit.models.base import LanguageModel
from probekit.options import CausalArguments, CausalOptions
from probekit.points import parse_layers

MOST_PAIRS = 48  # of test rows


def find_grids(
    question: CausalQuestion,
    test: AnsweredRows,
    begin: Callable[[str], None],
    progress: Callable[[int, int], None] | None,
) -> tuple[list[PatchGrid], dict[str, int]]:
    """The grids, and how many pairs they are of, how many were left out, and how many positions are "varied".

    Raises:
        UsageError: a model that cannot be patched so.
        DataError: pairs that cannot be read or patched.
    """
    options = question.options
    pairs, counts = patched_pairs(question, test)
    layers = "all" if options.layers == "all" else sorted({at.layer for at in question.layers if at.layer is not None})
    grids = grids_of(
        question.model, pairs, patchable(question.model), layers, options.exact, options.placebos, begin, progress
    )
    return grids, {**counts, "varied": pairs.varied}


def time_of_grids(question: CausalQuestion, test: AnsweredRows) -> float:
    """Seconds that `find_grids` would take, from the middle layer of each grid, patched now."""
    options = question.options
    pairs, _ = patched_pairs(question, test)
    layers = sorted({at.layer for at in question.layers if at.layer is not None})
    layers = list(range(question.model.n_layers)) if options.layers == "all" else layers
    seconds = 0.0
    for point in patchable(question.model):
        n = exact_pairs(question.model, pairs, point, len(layers), options.exact, options.placebos)
        began = time.perf_counter()
        grids_of(question.model, pairs, [point], [layers[len(layers) // 2]], n, options.placebos)
        seconds += (time.perf_counter() - began) * len(layers)
    return seconds


def patch_file(model: LanguageModel, bos: bool | None, options: CausalArguments) -> CausalResults:
    """Patch the pairs of a file, without labels and probes; `bos` is whether texts get context tokens.

    Raises:
        UsageError: a model or layers that cannot be patched so.
        DataError: pairs that cannot be read or patched.
    """
    pairs = pairs_of_file(model, options, bos)
    how = {"layers": options.layers, "exact": options.exact, "placebos": options.placebos}
    return patch_pairs(model, pairs, **how, begin=options.on_part, on_progress=options.on_progress)


def plan_patching(model: LanguageModel, bos: bool | None, options: CausalOptions) -> dict[str, Any]:
    """What `patch_file` would do, JSON-able: pairs, layers, and how many pairs are patched cell by cell at each point.

    Raises:
        UsageError, DataError: as of `patch_file`.
    """
    pairs, layers = pairs_of_file(model, options, bos), parse_layers(options.layers, model.n_layers)
    exact = {
        point: exact_pairs(model, pairs, point, len(layers), options.exact, options.placebos)
        for point in patchable(model)
    }
    return {"model": model.name, "pairs": len(pairs), "layers": layers, "exact": exact}


def pairs_of_file(model: LanguageModel, options: CausalOptions, bos: bool | None) -> MinimalPairs:
    """The pairs of `options.pairs`."""
    assert options.pairs is not None
    align: Align = "last" if options.align == "last" else "tokens"
    return load_pairs(options.pairs, model, align, bos)


def patched_pairs(question: CausalQuestion, test: AnsweredRows) -> tuple[MinimalPairs, dict[str, int]]:
    """The pairs of a file, or test rows drawn at random with their counterparts of equal length.

    Also how many: "pairs", and how many test rows were left out as "unequal" (in length, or in the token after which
    the model answers), "same" (text) and "more" (than are patched).

    Raises:
        DataError: a file without pairs, or no such rows.
    """
    options = question.options
    if options.pairs is not None:
        pairs = pairs_of_file(question.model, options, question.acts.meta.get("bos"))
        return pairs, {"pairs": len(pairs)}
    texts = test.trunk.texts
    lengths, other = np.array([len(text) for text in texts]), test.counterpart
    answer = test.trunk.answer_N.numpy()
    equal = (lengths == lengths[other]) & (answer == answer[other])
    differs = np.array([texts[i] != texts[j] for i, j in enumerate(other)])
    rows = np.flatnonzero(equal & differs)
    if not len(rows):
        raise DataError(
            "no test text has a counterpart of equal length and another answer, and patching needs pairs that align "
            "token by token; give pairs (--pairs)"
        )
    drawn = np.sort(np.random.default_rng(options.seed).permutation(rows)[:MOST_PAIRS])
    counts = {"unequal": int((~equal).sum()), "same": int((equal & ~differs).sum()), "more": len(rows) - len(drawn)}
    return _pairs_of(question, test, drawn), {"pairs": len(drawn), **{k: n for k, n in counts.items() if n}}


def _pairs_of(question: CausalQuestion, test: AnsweredRows, rows: np.ndarray) -> MinimalPairs:
    """Some test rows, each with its counterpart."""
    texts, others, some = test.trunk.texts, test.counterpart[rows], torch.from_numpy(rows)
    return MinimalPairs(
        clean=[texts[i] for i in rows],
        corrupted=[texts[i] for i in others],
        own_N=test.behaviour.own_N[some],
        other_N=test.behaviour.other_N[some],
        clean_answer_N=test.trunk.answer_N[some],
        corrupted_answer_N=test.trunk.answer_N[torch.from_numpy(others)],
        names=[question.acts.task.ids[i] for i in test.index[rows]],
        groups=None if test.groups is None else test.groups[rows],
    )

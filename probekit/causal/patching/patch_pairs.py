"""Activation patching of minimal pairs at several points: which pairs are patched cell by cell, and the results."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from probekit.causal.behaviour.pairs import MinimalPairs
from probekit.causal.data import CausalData, PatchGrid
from probekit.causal.patching.patching import patch_grid, patchable
from probekit.causal.results.checklist import reviewer_checklist
from probekit.causal.results.results import CausalResults
from probekit.errors import UsageError
from probekit.machine.versions import versions_of
from probekit.models.base import LanguageModel
from probekit.points import parse_layers

EXACT_PLACEBOS = 5  # other pairs for each, where every one of them is a run of each cell
# Of a grid: 6 minutes at 300 GFLOP/s. Larger grids are exact on a sample. Elsewhere is a guess: 50 times the speed.
EXACT_FLOPS = {"cpu": 1e14}
EXACT_FLOPS_ELSEWHERE = 5e15
LEAST_EXACT = 4  # pairs of a sample


def patch_pairs(
    model: LanguageModel,
    pairs: MinimalPairs,
    *,
    points: Sequence[str] | None = None,
    layers: str | int | Iterable[int] = "all",
    exact: int | None = None,
    placebos: int = 20,
    begin: Callable[[str], None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> CausalResults:
    """Patch clean activations into corrupted runs; pairs carry their answers, so neither labels nor probes are needed.

    Args:
        model: a model with a head; not an encoder-decoder.
        pairs: from `load_pairs`.
        points: of resid_pre, attn_out, mlp_out (by position) and z (by head); None: those that the model has.
        layers: all, 3, "0,4,8" or "2-6".
        exact: how many pairs are patched cell by cell; the others by attribution patching. None: all, or as many as
            some minutes allow.
        placebos: other pairs whose activations each pair gets, at most.
        begin: called with the name of each part.
        on_progress: called with (layers done, layers) of a grid.

    Returns:
        Results with a grid for each point.

    Raises:
        UsageError: a model, a point or layers that cannot be patched.
        DataError: a pair's texts are the same, or clean and corrupted runs have the same mean logit difference.
    """
    grids = grids_of(
        model, pairs, patchable(model) if points is None else points, layers, exact, placebos, begin, on_progress
    )
    meta: dict[str, Any] = {
        "model": model.name,
        "methods": ["patch"],
        "n_layers": model.n_layers,
        "patched": {"pairs": len(pairs), "varied": pairs.varied},
        "versions": versions_of("torch", "numpy"),
    }
    data = CausalData([], [], grids, [], meta)
    return CausalResults(CausalData([], [], grids, reviewer_checklist(data), meta))


def grids_of(
    model: LanguageModel,
    pairs: MinimalPairs,
    points: Sequence[str],
    layers: str | int | Iterable[int],
    exact: int | None,
    placebos: int,
    begin: Callable[[str], None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[PatchGrid]:
    """A grid for each point; arguments and errors as of `patch_pairs`."""
    chosen, grids = parse_layers(layers, model.n_layers), []
    for point in points:
        if begin is not None:
            begin(f"patching {point}")
        n = exact_pairs(model, pairs, point, len(chosen), exact, placebos)
        most = min(placebos, EXACT_PLACEBOS) if n >= len(pairs) else placebos
        grids.append(patch_grid(model, pairs, point, chosen, exact=n, placebos=most, on_layer=on_progress))
    return grids


def exact_pairs(
    model: LanguageModel, pairs: MinimalPairs, point: str, n_layers: int, exact: int | None, placebos: int
) -> int:
    """How many pairs to patch cell by cell: `exact`, or by an estimate of FLOPs; all, or at least a few.

    A block of width D is taken to have 12 D^2 weights, as in GPT-2.
    """
    if exact is not None:
        if exact < 0:
            raise UsageError(f"the number of pairs to patch cell by cell is 0 or more; got {exact}")
        return min(exact, len(pairs))
    if not len(pairs):
        return 0
    blocks = n_layers * (model.n_layers + 1) / 2 if model.starts else n_layers * model.n_layers
    length_N = np.array([len(text) for text in pairs.corrupted])
    if pairs.align == "last":
        columns_N = np.ones_like(length_N) * (model.cfg.n_heads if point == "z" else 1)
    else:
        columns_N = np.full_like(length_N, model.cfg.n_heads) if point == "z" else (length_N + 1) / 2
    runs = 1 + min(placebos, EXACT_PLACEBOS)  # half the text on average is computed, from the patched token on
    per_pair = 2 * 12 * model.cfg.d_model**2 * blocks * runs * float((length_N * columns_N).mean())
    most = int(EXACT_FLOPS.get(model.device.type, EXACT_FLOPS_ELSEWHERE) / per_pair)
    return min(len(pairs), max(most, LEAST_EXACT))

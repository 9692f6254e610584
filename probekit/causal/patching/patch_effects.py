"""From the effects of patches on each pair to a grid: recovery, its interval, and the placebos' band.

Axes: N pairs, L layers, C columns (positions or heads), S placebos or resamples, U groups.
"""

from dataclasses import dataclass

import numpy as np

from probekit.causal.behaviour.pairs import MinimalPairs
from probekit.causal.data import PatchGrid
from probekit.errors import DataError
from probekit.models.base import LanguageModel

RESAMPLES = 1000


@dataclass(frozen=True, eq=False)
class PatchEffects:
    """Changes of the logit difference by a patch, in float64; NaN where a pair has no such cell, or was not patched.

    Attributes:
        exact_NLC: by the run with the patch.
        attribution_NLC: by the gradient.
        placebo_SNLC: of placebos.
        difference_N2: logit differences of the clean and of the corrupted run.
    """

    exact_NLC: np.ndarray
    attribution_NLC: np.ndarray
    placebo_SNLC: np.ndarray
    difference_N2: np.ndarray

    @classmethod
    def empty(cls, n: int, n_layers: int, n_columns: int, placebos: int) -> "PatchEffects":
        """All unknown."""
        shape = n, n_layers, n_columns
        return cls(
            np.full(shape, np.nan), np.full(shape, np.nan), np.full((placebos, *shape), np.nan), np.full((n, 2), np.nan)
        )


def grid_of(
    model: LanguageModel,
    pairs: MinimalPairs,
    point: str,
    layers: list[int],
    effects: PatchEffects,
) -> PatchGrid:
    """The grid: ratios of means over pairs.

    Raises:
        DataError: the clean and the corrupted runs have the same mean logit difference.
    """
    gap_N = effects.difference_N2[:, 0] - effects.difference_N2[:, 1]
    if not abs(gap_N.sum()) > 0:
        raise DataError(
            "the clean and the corrupted runs have the same mean logit difference, so there is nothing to recover; "
            "check the answers of the pairs"
        )
    patched_N = np.any(~np.isnan(effects.exact_NLC), axis=(1, 2))
    attribution = recovery(effects.attribution_NLC, gap_N)
    of_pairs = effects.exact_NLC if patched_N.all() else effects.attribution_NLC
    found = recovery(of_pairs, gap_N)
    placebos = np.array([recovery(each, gap_N) for each in effects.placebo_SNLC])
    placebos = placebos[~np.isnan(placebos).all((1, 2))] if len(placebos) else placebos
    by_position = point != "z"
    return PatchGrid(
        point=point,
        layers=layers,
        columns=_columns(model, pairs) if by_position else [str(head) for head in range(found.shape[1])],
        by="position" if by_position else "head",
        recovery=found,
        interval=intervals(of_pairs, gap_N, np.arange(len(gap_N)) if pairs.groups is None else pairs.groups),
        attribution=attribution,
        within_placebo=_within(found, placebos) if len(placebos) else None,
        logit_differences=(float(effects.difference_N2[:, 0].mean()), float(effects.difference_N2[:, 1].mean())),
        n=len(gap_N),
        n_exact=int(patched_N.sum()),
        correlation=_correlation(effects, gap_N, patched_N),
    )


def _within(found_LC: np.ndarray, placebos_SLC: np.ndarray) -> np.ndarray:
    """Whether each recovery is no larger than a placebo's; true where no pair has a placebo."""
    return ~(np.abs(found_LC) > np.nan_to_num(np.abs(placebos_SLC).max(0), nan=np.inf))


def recovery(effects_NLC: np.ndarray, gap_N: np.ndarray) -> np.ndarray:
    """Mean effect over the mean gap between clean and corrupted, of the pairs that have the cell: [L, C]."""
    has_NLC = ~np.isnan(effects_NLC)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.nan_to_num(effects_NLC).sum(0) / np.einsum("nlc,n->lc", has_NLC, gap_N)


def intervals(effects_NLC: np.ndarray, gap_N: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """95% interval of `recovery`, [L, C, 2]: bootstrap percentiles over groups, the same resamples in all cells."""
    group_N = np.unique(groups, return_inverse=True)[1]
    n_groups = int(group_N.max()) + 1
    effect_UX, gap_UX = (np.zeros((n_groups, effects_NLC[0].size)) for _ in range(2))
    np.add.at(effect_UX, group_N, np.nan_to_num(effects_NLC).reshape(len(group_N), -1))
    np.add.at(gap_UX, group_N, (~np.isnan(effects_NLC) * gap_N[:, None, None]).reshape(len(group_N), -1))
    draws = np.random.default_rng(0).multinomial(n_groups, np.full(n_groups, 1 / n_groups), RESAMPLES).astype(float)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios_SX = (draws @ effect_UX) / (draws @ gap_UX)
    low, high = np.nanpercentile(np.where(np.isfinite(ratios_SX), ratios_SX, np.nan), [2.5, 97.5], axis=0)
    return np.stack([low, high], -1).reshape(*effects_NLC.shape[1:], 2)


def _correlation(effects: PatchEffects, gap_N: np.ndarray, patched_N: np.ndarray) -> float | None:
    """Pearson's, over cells, of the two ways on the pairs that were patched; None if one of them does not vary."""
    if not patched_N.any():
        return None
    exact, approximate = (
        recovery(x[patched_N], gap_N[patched_N]).ravel() for x in (effects.exact_NLC, effects.attribution_NLC)
    )
    both = np.isfinite(exact) & np.isfinite(approximate)
    exact, approximate = exact[both], approximate[both]
    varies = len(exact) > 1 and exact.std() > 0 and approximate.std() > 0
    return float(np.corrcoef(exact, approximate)[0, 1]) if varies else None


def _columns(model: LanguageModel, pairs: MinimalPairs) -> list[str]:
    """The tokens of the first pair, "clean/corrupted" where they differ; places from the end where lengths differ.

    Where only the answer tokens align, these.
    """
    longest = max(map(len, pairs.corrupted))
    if pairs.align == "last":
        return ["answer token"]
    if len(set(map(len, pairs.corrupted))) > 1:
        return [str(i) for i in range(-longest, 0)]
    if model.tokenizer is None:
        return [str(i) for i in range(longest)]
    clean, corrupted = (model.tokenizer.tokens(texts[0]) for texts in (pairs.clean, pairs.corrupted))
    return [x if x == y else f"{x}/{y.strip()}" for x, y in zip(clean, corrupted, strict=True)]

"""Choose C where the protocol says, then predict the test rows once.

Axes: N examples, D width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from probekit.errors import DataError
from probekit.evaluation.fits.layer import LayerFits
from probekit.evaluation.fits.predict import decisions, part_of, pooled, predict, predictions_of
from probekit.evaluation.fits.protocol import Round
from probekit.evaluation.scores.metrics import Predictions, measure

Scores = dict[tuple[int, int], float]
"""(number of the problem, number of the validation part) -> headline."""


@dataclass(frozen=True, eq=False)
class ChosenFit:
    """The chosen fit of one label set at one layer.

    Attributes:
        C: the strength chosen over all rounds; ties go to the smallest.
        tried: (C, headline on validation) of each candidate; empty where no rows choose.
        converged: whether every fit that the predictions rest on converged.
        gap: their worst certificate; None where a fit has none, or one that is not finite.
        probe: the probe to save; None for a control task.
        by_round: (converged, headline on validation) of each round's own choice; nan where no rows choose.
        test: the predictions for the test rows, round after round.
    """

    C: float | None
    tried: list[tuple[float | None, float]]
    converged: bool
    gap: float | None
    probe: Any
    by_round: list[tuple[bool, float]]
    test: Predictions


def choose_fits(fits: LayerFits, headline: str) -> list[ChosenFit]:
    """One chosen fit for each label set of the grid; the target's is the first.

    Raises:
        DataError: the headline is undefined on every part that chooses.
    """
    scores = _validation_scores(fits, headline)
    return [_chosen(fits, number, scores, headline) for number in range(len(fits.grid.label_sets))]


def _chosen(fits: LayerFits, number: int, scores: Scores, headline: str) -> ChosenFit:
    grid, rounds = fits.grid, fits.grid.protocol.rounds
    candidates = range(len(grid.strengths))
    values = np.array([[_mean_score(fits, scores, headline, number, each, i) for i in candidates] for each in rounds])
    sound = np.array([[_all_converged(_fits_of(fits, number, each, i)) for i in candidates] for each in rounds])
    means = values.mean(axis=0)
    overall = _best(np.logical_and.reduce(sound), means)
    picks = [_best(sound[r], values[r]) for r in range(len(rounds))]
    probe = _fit(fits, number, grid.protocol.final, overall) if number == 0 else None
    used = [fit for each, i in zip(rounds, picks, strict=True) for fit in _fits_of(fits, number, each, i)]
    converged, gap = certified([*used, *([] if probe is None else [probe])])
    return ChosenFit(
        C=grid.strengths[overall],
        tried=[(C, float(value)) for C, value in zip(grid.strengths, means, strict=True) if grid.protocol.chooses],
        converged=converged,
        gap=gap,
        probe=probe,
        by_round=[(bool(sound[r, i]), float(values[r, i])) for r, i in enumerate(picks)],
        test=_test_predictions(fits, number, picks),
    )


def _test_predictions(fits: LayerFits, number: int, picks: Sequence[int]) -> Predictions:
    grid = fits.grid
    labels = grid.label_sets[number]
    rounds = zip(grid.protocol.rounds, picks, strict=True)
    return pooled(
        [predict(_fit(fits, number, each.mask, i), fits.X, each.test, labels, grid.n_classes) for each, i in rounds]
    )


def _fit(fits: LayerFits, number: int, mask: int, i: int) -> Any:
    return fits.probes[fits.grid.index[number, mask, i]]


def _fits_of(fits: LayerFits, number: int, each: Round, i: int) -> list[Any]:
    """The tested fit of a round, and those that choose for it."""
    return [_fit(fits, number, mask, i) for mask in [each.mask, *(mask for mask, _ in each.choosers)]]


def _mean_score(fits: LayerFits, scores: Scores, headline: str, number: int, each: Round, i: int) -> float:
    """The mean over the round's choosers on which the headline is defined; nan without choosers."""
    if not each.choosers:
        return float("nan")
    values = [scores[fits.grid.index[number, mask, i], part] for mask, part in each.choosers]
    known = [value for value in values if np.isfinite(value)]
    if not known:
        raise DataError(
            f"{headline} is undefined on the validation rows: they hold a single class, or a single value; take fewer "
            "folds or add examples"
        )
    return float(np.mean(known))


def _validation_scores(fits: LayerFits, headline: str) -> Scores:
    """The headline of each fit on each validation part that it chooses by."""
    grid, scores = fits.grid, {}
    for part, rows in enumerate(grid.protocol.parts):
        masks = {mask for mask, its in grid.protocol.choosers if its == part}
        keys = [(number, at) for (number, mask, _), at in grid.index.items() if mask in masks]
        if not keys:
            continue
        found = decisions([fits.probes[at] for _, at in keys], fits.X, rows)
        for (number, at), each in zip(keys, found, strict=True):
            predictions = predictions_of(grid.label_sets[number][rows], each, grid.n_classes)
            scores[at, part] = measure(predictions, [headline]).get(headline, float("nan"))
    return scores


def _best(sound: np.ndarray, values: np.ndarray) -> int:
    """The highest value of the fits that converged, or of all if none did; ties go to the first."""
    return int(np.argmax(np.where(sound, values, -np.inf) if sound.any() else values))


def _all_converged(fits: Sequence[Any]) -> bool:
    return all(bool(fit.converged_) for fit in fits)


def certified(fits: Sequence[Any]) -> tuple[bool, float | None]:
    """Whether all fits converged, and the worst certificate: an upper bound on (objective - optimum) / optimum.

    None where a fit gives no finite bound.
    """
    gaps = [getattr(fit, "gap_", None) for fit in fits]
    known = [float(gap) for gap in gaps if gap is not None and np.isfinite(gap)]
    return _all_converged(fits), max(known) if known and len(known) == len(fits) else None


def layers_by_round(layers: Sequence[ChosenFit], rounds: Sequence[Round]) -> tuple[Predictions, list[int]]:
    """The test predictions of the layer that each round's own validation chooses, and the number of that layer."""
    ends = np.cumsum([len(each.test) for each in rounds])
    parts, chosen = [], []
    for number, (end, each) in enumerate(zip(ends, rounds, strict=True)):
        best = max(range(len(layers)), key=lambda i: layers[i].by_round[number])
        parts.append(part_of(layers[best].test, slice(end - len(each.test), end)))
        chosen.append(best)
    return pooled(parts), chosen

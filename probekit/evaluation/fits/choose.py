"""Choose C where the protocol says, then predict the test rows once.

Axes: N examples, D width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from probekit.errors import DataError
from probekit.evaluation.fits.fit_grid import Key
from probekit.evaluation.fits.layer import LayerFits, fit_more
from probekit.evaluation.fits.predict import at_mask, decisions, part_of, pooled, predictions_of
from probekit.evaluation.fits.protocol import Round
from probekit.evaluation.scores.metrics import Predictions, metrics_of
from probekit.evaluation.scores.selection import selection_key, tie_loss

Scores = dict[tuple[Key, int], tuple[float, float]]
"""(key of the fit, number of the validation part) -> headline, and the loss that decides ties."""


class Tried(NamedTuple):
    """Each round and strength of a label set: headline, loss, and whether its fits may be chosen, [rounds, C] each."""

    values: np.ndarray
    losses: np.ndarray
    sound: np.ndarray


class TestedFit(NamedTuple):
    """What predicts the test rows for one label set at one layer.

    Attributes:
        converged: whether every fit that the predictions rest on converged.
        gap: their worst certificate; None where a fit has none, or one that is not finite.
        test: the predictions for the test rows, round after round.
    """

    converged: bool
    gap: float | None
    test: Predictions


@dataclass(frozen=True, eq=False)
class ChosenFit:
    """The chosen fit of the target at one layer.

    Attributes:
        C: the strength chosen over all rounds (`selection_key`).
        tried: (C, headline on validation) of each candidate; empty where no rows choose.
        picks: number of the strength that each round chose.
        converged: whether every fit that the predictions rest on converged, and the saved probe.
        gap: their worst certificate; None where a fit has none, or one that is not finite.
        probe: the probe to save.
        loss: on validation, which decides ties; None where no rows choose.
        by_round: (converged, headline on validation, loss, C) of each round's own choice; nan where no rows choose.
        test: the predictions for the test rows, round after round.
    """

    C: float | None
    tried: list[tuple[float | None, float]]
    picks: list[int]
    converged: bool
    gap: float | None
    probe: Any
    loss: float | None
    by_round: list[tuple[bool, float, float, float | None]]
    test: Predictions


def choose_fit(fits: LayerFits, headline: str) -> ChosenFit:
    """The chosen fit of the target, all of whose fits are there.

    Raises:
        DataError: the headline is undefined on every part that chooses.
    """
    grid = fits.grid
    tried, strengths = _tried(fits, [0], headline)[0], grid.strengths
    means, losses = tried.values.mean(axis=0), tried.losses.mean(axis=0)
    overall = _best(np.logical_and.reduce(tried.sound), means, losses, strengths)
    picks = _picks(tried, strengths)
    probe = fits.probes[0, grid.protocol.final, overall]
    converged, gap = certified([*_used(fits, 0, picks), probe])
    return ChosenFit(
        C=grid.strengths[overall],
        tried=[(C, float(value)) for C, value in zip(grid.strengths, means, strict=True) if grid.protocol.chooses],
        picks=picks,
        converged=converged,
        gap=gap,
        probe=probe,
        loss=float(losses[overall]) if np.isfinite(losses[overall]) else None,
        by_round=[
            (bool(tried.sound[r, i]), float(tried.values[r, i]), float(tried.losses[r, i]), strengths[i])
            for r, i in enumerate(picks)
        ],
        test=_test_predictions(fits, [0], [picks])[0],
    )


def control_fits_at(fits: LayerFits, picks: Sequence[int]) -> list[TestedFit]:
    """The control tasks at the strength that each round chose for the target; what is not there is fitted."""
    numbers = range(1, len(fits.grid.label_sets))
    tested = [(each.mask, i) for each, i in zip(fits.grid.protocol.rounds, picks, strict=True)]
    fits = fit_more(fits, [(number, *at) for number in numbers for at in tested])
    found = _test_predictions(fits, numbers, [picks] * len(numbers))
    own = [[fits.probes[number, *at] for at in tested] for number in numbers]
    return [TestedFit(*certified(probes), test) for probes, test in zip(own, found, strict=True)]


def control_fits(fits: LayerFits, headline: str) -> list[TestedFit]:
    """The control tasks, each at the strengths that its own validation labels choose; all of their fits are there.

    Raises:
        DataError: the headline is undefined on every part that chooses.
    """
    numbers = range(1, len(fits.grid.label_sets))
    picks = [_picks(tried, fits.grid.strengths) for tried in _tried(fits, numbers, headline)]
    found = _test_predictions(fits, numbers, picks)
    used = [_used(fits, number, own) for number, own in zip(numbers, picks, strict=True)]
    return [TestedFit(*certified(probes), test) for probes, test in zip(used, found, strict=True)]


def _tried(fits: LayerFits, numbers: Sequence[int], headline: str) -> list[Tried]:
    """What selects among the rounds and strengths of each label set.

    Fits that have not converged may not, except those of a probe that finds local minima: a minimum that is reached is
    no better sign of the optimum than a descent that was stopped, and both are judged on validation.
    """
    scores = _validation_scores(fits, numbers, headline)
    candidates, rounds = range(len(fits.grid.strengths)), fits.grid.protocol.rounds

    def of(number: int) -> Tried:
        pairs = [[_mean_score(scores, headline, number, each, i) for i in candidates] for each in rounds]
        sound = [
            [bool(fits.probe.state) or _all_converged(_fits_of(fits, number, each, i)) for i in candidates]
            for each in rounds
        ]
        values, losses = np.moveaxis(np.array(pairs), -1, 0)
        return Tried(values, losses, np.array(sound))

    return [of(number) for number in numbers]


def _picks(tried: Tried, strengths: Sequence[float | None]) -> list[int]:
    """The number of the strength that each round chooses."""
    rounds = zip(tried.sound, tried.values, tried.losses, strict=True)
    return [_best(sound, values, losses, strengths) for sound, values, losses in rounds]


def _test_predictions(fits: LayerFits, numbers: Sequence[int], picks: Sequence[Sequence[int]]) -> list[Predictions]:
    """For each label set, the test predictions of its picks; each round's rows are read once for all label sets."""
    grid, parts = fits.grid, []
    for r, each in enumerate(grid.protocol.rounds):
        probes = [fits.probes[number, each.mask, own[r]] for number, own in zip(numbers, picks, strict=True)]
        found = decisions(probes, at_mask(fits.X, each.mask), each.test) if probes else []
        parts.append(
            [
                predictions_of(grid.label_sets[number][each.test], decision, grid.n_classes, probe)
                for number, decision, probe in zip(numbers, found, probes, strict=True)
            ]
        )
    return [pooled(own) for own in zip(*parts, strict=True)]


def _used(fits: LayerFits, number: int, picks: Sequence[int]) -> list[Any]:
    """The fits that the test predictions of a label set rest on."""
    rounds = zip(fits.grid.protocol.rounds, picks, strict=True)
    return [fit for each, i in rounds for fit in _fits_of(fits, number, each, i)]


def _fits_of(fits: LayerFits, number: int, each: Round, i: int) -> list[Any]:
    """The tested fit of a round, and those that choose for it."""
    return [fits.probes[number, mask, i] for mask in [each.mask, *(mask for mask, _ in each.choosers)]]


def _mean_score(scores: Scores, headline: str, number: int, each: Round, i: int) -> tuple[float, float]:
    """Headline and loss, each the mean over the round's choosers on which the headline is defined; nan without them."""
    if not each.choosers:
        return float("nan"), float("nan")
    pairs = [scores[(number, mask, i), part] for mask, part in each.choosers]
    known = [pair for pair in pairs if np.isfinite(pair[0])]
    if not known:
        raise DataError(
            f"{headline} is undefined on the validation rows: they hold a single class, or a single value; take fewer "
            "folds or add examples"
        )
    value, loss = np.mean(known, axis=0)
    return float(value), float(loss)


def _validation_scores(fits: LayerFits, numbers: Sequence[int], headline: str) -> Scores:
    """Headline and loss of each fit of some label sets on each validation part that it chooses by."""
    grid, scores = fits.grid, {}
    for part, rows in enumerate(grid.protocol.parts):
        masks = {mask for mask, its in grid.protocol.choosers if its == part}
        keys = [key for key in grid.index if key[0] in numbers and key[1] in masks]
        if not keys:
            continue
        for X, own in fits.by_features(keys):
            found = decisions([fits.probes[key] for key in own], X, rows)
            for key, each in zip(own, found, strict=True):
                predictions = predictions_of(grid.label_sets[key[0]][rows], each, grid.n_classes, fits.probes[key])
                value = metrics_of(predictions, [headline]).get(headline, float("nan"))
                scores[key, part] = value, tie_loss(predictions)
    return scores


def _best(sound: np.ndarray, values: np.ndarray, losses: np.ndarray, strengths: Sequence[float | None]) -> int:
    """The number of the strength that `selection_key` selects."""
    keys = [
        selection_key(*each) for each in zip(sound.tolist(), values.tolist(), losses.tolist(), strengths, strict=True)
    ]
    return max(range(len(keys)), key=keys.__getitem__)


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
        best = max(range(len(layers)), key=lambda i: selection_key(*layers[i].by_round[number]))
        parts.append(part_of(layers[best].test, slice(end - len(each.test), end)))
        chosen.append(best)
    return pooled(parts), chosen

"""The baselines of a curve, scored on the same rows and resamples as its probes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from probekit.evaluation.compare.baseline_fits import (
    BAG_OF_BIGRAMS,
    BAG_OF_WORDS,
    BASELINE_C,
    UNCHOSEN_BAG_C,
    UNCHOSEN_C,
    BaselineFit,
    bags_of_words,
    dense_fits,
    majority,
    mean,
    selection_parts,
    word_type,
)
from probekit.evaluation.compare.lengths import with_squares
from probekit.evaluation.fits.predict import pooled
from probekit.evaluation.fits.protocol import Protocol, Round
from probekit.evaluation.results.data import EMBEDDING, NUISANCE, BaselineResult, LayerResult
from probekit.evaluation.scores.bootstrap import Bootstrap
from probekit.evaluation.scores.metrics import Predictions, metrics_of
from probekit.evaluation.scores.score import score, score_intervals
from probekit.evaluation.scores.selection import selection_key
from probekit.points import Place, base_name

Fits = Callable[[np.ndarray, Sequence[float]], list[BaselineFit]]
"""Training rows and values of C -> a fit for each."""

EMBEDDINGS: tuple[Place, ...] = (Place("resid_pre", 0), Place("embed", None))  # of any stack


@dataclass(frozen=True, eq=False)
class LabelledInputs:
    """The inputs and labels that baselines are fitted to.

    Attributes:
        inputs: N texts or lists of token ids; None where there are no texts.
        counts: of their words, from `word_counts`; None where there are no words.
        words: N words, where the examples are words of their texts; else None.
        labels: int64 [N], or float64 [N] of a regression.
        n_classes: 0 for a regression.
        bigrams: counts of words and bigrams, from `word_counts`; None where there are no words.
        lengths: of the texts, from `length_features`, [N, V]; None where there are no texts.
        nuisance: columns that a probe may be reading instead, [N, V]; None where none were named.
    """

    inputs: list[str] | list[list[int]] | None
    counts: Any
    words: list[str] | None
    labels: np.ndarray
    n_classes: int
    bigrams: Any = None
    lengths: np.ndarray | None = None
    nuisance: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Baseline:
    """A baseline's result, and its predictions for the test rows and, where there are any, the validation rows."""

    result: BaselineResult
    test: Predictions
    validation: Predictions | None = None


def model_free_baselines(
    examples: LabelledInputs, protocol: Protocol, metric: str, bootstrap: Bootstrap | None
) -> list[Baseline]:
    """The majority class (or mean); bags of words and bigrams, and length, or the word itself; and the nuisances.

    Each is fitted on the rows that the round's probe is fitted on, at each of `BASELINE_C`; the validation parts
    choose, as for the probe. Without them C is `UNCHOSEN_C`, or `UNCHOSEN_BAG_C`.
    """
    known: dict[tuple[str, int], list[BaselineFit]] = {}  # of each mask, for every C
    rounds = [_fits_of_round(examples, protocol, each, known, metric) for each in protocol.rounds]
    return [scored_fits(list(fits), examples, protocol, bootstrap) for fits in zip(*rounds, strict=True)]


def embedding_baseline(first: LayerResult, test: Predictions) -> Baseline | None:
    """The first place of a curve as a baseline, if it is the embedding; `test` are its predictions."""
    if (base_name(first.point), first.layer) not in EMBEDDINGS:
        return None
    result = BaselineResult(EMBEDDING, first.C, "probe" not in first.late, first.metrics, first.intervals)
    return Baseline(result, test)


def _fits_of_round(
    examples: LabelledInputs,
    protocol: Protocol,
    each: Round,
    known: dict[tuple[str, int], list[BaselineFit]],
    metric: str,
) -> list[BaselineFit]:
    """Each baseline's fit for one round, at its chosen C."""
    labels, n_classes = examples.labels, examples.n_classes
    train = np.flatnonzero(protocol.masks[each.mask])
    chosen = [majority(labels, train, n_classes) if n_classes else mean(labels, train)]
    if examples.words is not None:
        chosen.append(word_type(examples.words, labels, train, n_classes))
    for name, (fits, unchosen) in _fitted(examples).items():
        tried = partial(_tried, name, fits, BASELINE_C if protocol.chooses else (unchosen,), protocol, known)
        keys = [
            [selection_parts(fit, labels, protocol.parts[part], n_classes, metric) for fit in tried(mask)]
            for mask, part in each.choosers
        ]
        chosen.append(tried(each.mask)[_highest(keys, tried(each.mask)) if keys else 0])
    return chosen


def _fitted(examples: LabelledInputs) -> dict[str, tuple[Fits, float]]:
    """The baselines that have a C: what fits them, and their C where nothing chooses."""
    labels, n_classes = examples.labels, examples.n_classes
    found: dict[str, tuple[Fits, float]] = {}

    def of_bag(counts: Any, name: str) -> tuple[Fits, float]:
        return lambda train, C: bags_of_words(counts, labels, train, n_classes, C, name), UNCHOSEN_BAG_C

    def of_lengths(train: np.ndarray, C: Sequence[float]) -> list[BaselineFit]:
        assert examples.lengths is not None
        return dense_fits("length", with_squares(examples.lengths, train), labels, train, n_classes, C)

    def of_nuisance(train: np.ndarray, C: Sequence[float]) -> list[BaselineFit]:
        assert examples.nuisance is not None
        return dense_fits(NUISANCE, examples.nuisance, labels, train, n_classes, C)

    if examples.words is None and examples.inputs is not None:
        found["words"] = of_bag(examples.counts, BAG_OF_WORDS)
        found["bigrams"] = of_bag(examples.bigrams, BAG_OF_BIGRAMS)
    if examples.lengths is not None:
        found["length"] = of_lengths, UNCHOSEN_C
    if examples.nuisance is not None:
        found["nuisance"] = of_nuisance, UNCHOSEN_C
    return found


def _highest(parts: list[list[tuple[bool, float, float]]], fits: list[BaselineFit]) -> int:
    """The number of the fit that is selected by the mean parts of their keys [choosers, fits, 3]."""
    means = np.mean(parts, axis=0).tolist()
    rows = zip(means, fits, strict=True)
    keys = [selection_key(sound, value, loss, fit.C) for (sound, value, loss), fit in rows]
    return max(range(len(keys)), key=keys.__getitem__)


def _tried(
    name: str,
    fits: Fits,
    strengths: Sequence[float],
    protocol: Protocol,
    known: dict[tuple[str, int], list[BaselineFit]],
    mask: int,
) -> list[BaselineFit]:
    """The fits of every C for a mask, fitted once."""
    if (name, mask) not in known:
        known[name, mask] = fits(np.flatnonzero(protocol.masks[mask]), strengths)
    return known[name, mask]


def scored_fits(
    fits: Sequence[BaselineFit],
    examples: LabelledInputs,
    protocol: Protocol,
    bootstrap: Bootstrap | None,
    scored: Mapping[str, np.ndarray] | None = None,
) -> Baseline:
    """One baseline's fits, its rounds pooled; `scored` are the rows of the splits that it predicts, by default all."""
    rounds = zip(fits, protocol.rounds, strict=True)
    test = pooled([_predictions(fit, each.test, examples) for fit, each in rounds])
    rows = protocol.rows if scored is None else scored
    others = {split: _predictions(fits[0], rows[split], examples) for split in rows if split != "test"}
    metrics = {split: metrics_of(predictions) for split, predictions in others.items()}
    result = BaselineResult(
        name=fits[0].name,
        C=fits[0].C if len({fit.C for fit in fits}) == 1 else None,
        converged=all(fit.converged for fit in fits),
        metrics={**metrics, "test": score(test)},
        intervals=score_intervals(bootstrap, test),
    )
    return Baseline(result, test, others.get("validation"))


def _predictions(fit: BaselineFit, rows: np.ndarray, examples: LabelledInputs) -> Predictions:
    likely = None if fit.probabilities is None else fit.probabilities[rows]
    return Predictions(examples.labels[rows], fit.predicted[rows], fit.scores[rows], examples.n_classes, likely)

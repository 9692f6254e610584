"""The baselines of a curve, scored on the same rows and resamples as its probes."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from probekit.evaluation.compare.guesses import (
    BAG_OF_WORDS_C,
    UNCHOSEN_C,
    Guess,
    bags_of_words,
    length,
    majority,
    mean,
    merit,
    word_type,
)
from probekit.evaluation.fits.predict import pooled
from probekit.evaluation.fits.protocol import Protocol, Round
from probekit.evaluation.results.data import EMBEDDING, BaselineResult, LayerResult
from probekit.evaluation.scores.bootstrap import Bootstrap
from probekit.evaluation.scores.metrics import Predictions, metrics_of
from probekit.evaluation.scores.score import score, score_intervals
from probekit.points import Place, base_name

EMBEDDINGS: tuple[Place, ...] = (("resid_pre", 0), ("embed", None))  # of any stack


@dataclass(frozen=True, eq=False)
class LabelledInputs:
    """The inputs and labels that baselines are fitted to.

    Attributes:
        inputs: N texts or lists of token ids; None where there are no texts.
        counts: of their words, from `word_counts`; None where there are no words.
        words: N words, where the examples are words of their texts; else None.
        labels: int64 [N], or float64 [N] of a regression.
        n_classes: 0 for a regression.
    """

    inputs: list[str] | list[list[int]] | None
    counts: Any
    words: list[str] | None
    labels: np.ndarray
    n_classes: int


@dataclass(frozen=True, eq=False)
class Baseline:
    """A baseline's result, and its predictions for the test rows."""

    result: BaselineResult
    test: Predictions


def model_free_baselines(
    examples: LabelledInputs, protocol: Protocol, metric: str, bootstrap: Bootstrap | None
) -> list[Baseline]:
    """The majority class (or mean), and bag of words and length, or the word itself.

    Each is fitted on the rows that the round's probe is fitted on; the validation parts choose the C of the bag of
    words, which is `UNCHOSEN_C` where there are none.
    """
    bags: dict[int, list[Guess]] = {}  # of each mask, for every C
    rounds = [_guesses(examples, protocol, each, bags, metric) for each in protocol.rounds]
    return [_scored(list(guesses), examples, protocol, bootstrap) for guesses in zip(*rounds, strict=True)]


def embedding_baseline(first: LayerResult, test: Predictions) -> Baseline | None:
    """The first place of a curve as a baseline, if it is the embedding; `test` are its predictions."""
    if (base_name(first.point), first.layer) not in EMBEDDINGS:
        return None
    result = BaselineResult(EMBEDDING, first.C, "probe" not in first.late, first.metrics, first.intervals)
    return Baseline(result, test)


def _guesses(
    examples: LabelledInputs, protocol: Protocol, each: Round, bags: dict[int, list[Guess]], metric: str
) -> list[Guess]:
    """The guesses of one round."""
    labels, n_classes = examples.labels, examples.n_classes
    train = np.flatnonzero(protocol.masks[each.mask])
    guesses = [majority(labels, train, n_classes) if n_classes else mean(labels, train)]
    if examples.words is not None:
        guesses.append(word_type(examples.words, labels, train, n_classes))
    elif examples.inputs is not None:
        bags_of = partial(_bags, examples, protocol, bags)
        merits = [
            [merit(guess, labels, protocol.parts[part], n_classes, metric) for guess in bags_of(mask)]
            for mask, part in each.choosers
        ]
        guesses.append(bags_of(each.mask)[_highest(merits) if merits else 0])
        guesses.append(length(examples.inputs, labels, train, n_classes))
    return guesses


def _highest(merits: list[list[tuple[bool, float]]]) -> int:
    """The number of the guess with the highest mean merit [choosers, guesses, 2]; ties go to the first."""
    sound, values = np.mean(merits, axis=0).T
    return int(np.lexsort((-values, -sound))[0])


def _bags(examples: LabelledInputs, protocol: Protocol, bags: dict[int, list[Guess]], mask: int) -> list[Guess]:
    """The bags of words of every C for a mask, fitted once."""
    if mask not in bags:
        train = np.flatnonzero(protocol.masks[mask])
        strengths = BAG_OF_WORDS_C if protocol.chooses else (UNCHOSEN_C,)
        bags[mask] = bags_of_words(examples.counts, examples.labels, train, examples.n_classes, strengths)
    return bags[mask]


def _scored(
    guesses: Sequence[Guess], examples: LabelledInputs, protocol: Protocol, bootstrap: Bootstrap | None
) -> Baseline:
    """One baseline's guesses, its rounds pooled."""
    rounds = zip(guesses, protocol.rounds, strict=True)
    test = pooled([_predictions(guess, each.test, examples) for guess, each in rounds])
    others = [split for split in protocol.rows if split != "test"]
    metrics = {split: metrics_of(_predictions(guesses[0], protocol.rows[split], examples)) for split in others}
    result = BaselineResult(
        name=guesses[0].name,
        C=guesses[0].C if len({guess.C for guess in guesses}) == 1 else None,
        converged=all(guess.converged for guess in guesses),
        metrics={**metrics, "test": score(test)},
        intervals=score_intervals(bootstrap, test),
    )
    return Baseline(result, test)


def _predictions(guess: Guess, rows: np.ndarray, examples: LabelledInputs) -> Predictions:
    likely = None if guess.probabilities is None else guess.probabilities[rows]
    return Predictions(examples.labels[rows], guess.predicted[rows], guess.scores[rows], examples.n_classes, likely)

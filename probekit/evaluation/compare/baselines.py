"""The baselines of a curve, scored on the same rows and resamples as its probes."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from probekit.evaluation.compare.guesses import Guess, bags_of_words, length, majority, mean, merit, word_type
from probekit.evaluation.fits.predict import pooled
from probekit.evaluation.fits.protocol import Protocol, Round
from probekit.evaluation.request import Request
from probekit.evaluation.results.data import BaselineResult, LayerResult
from probekit.evaluation.scores.bootstrap import Bootstrap
from probekit.evaluation.scores.metrics import Predictions, measure
from probekit.evaluation.scores.score import score, score_intervals
from probekit.points import Place, base_name

EMBEDDINGS: tuple[Place, ...] = (("resid_pre", 0), ("embed", None))  # of any stack


@dataclass(frozen=True, eq=False)
class Baseline:
    """A baseline's result, and its predictions for the test rows."""

    result: BaselineResult
    test: Predictions


def model_free_baselines(request: Request, protocol: Protocol, metric: str, bootstrap: Bootstrap) -> list[Baseline]:
    """The majority class (or mean), and bag of words and length, or the word itself.

    Each is fitted on the rows that the round's probe is fitted on; the validation parts choose the C of the bag of
    words.
    """
    bags: dict[int, list[Guess]] = {}  # of each mask, for every C
    rounds = [_guesses(request, protocol, each, bags, metric) for each in protocol.rounds]
    return [_scored(list(guesses), request, protocol, bootstrap) for guesses in zip(*rounds, strict=True)]


def embedding_baseline(first: LayerResult, test: Predictions) -> Baseline | None:
    """The first place of a curve as a baseline, if it is the embedding; `test` are its predictions."""
    if (base_name(first.point), first.layer) not in EMBEDDINGS:
        return None
    result = BaselineResult("embedding", first.C, "probe" not in first.late, first.metrics, first.intervals)
    return Baseline(result, test)


def _guesses(
    request: Request, protocol: Protocol, each: Round, bags: dict[int, list[Guess]], metric: str
) -> list[Guess]:
    """The guesses of one round."""
    labels, n_classes, task = request.labels, request.n_classes, request.acts.task
    train = np.flatnonzero(protocol.masks[each.mask])
    guesses = [majority(labels, train, n_classes) if n_classes else mean(labels, train)]
    if task.words is not None:
        guesses.append(word_type(task.words, labels, train, n_classes))
    elif not task.info.get("no_texts"):
        bags_of = partial(_bags, request, protocol, bags)
        merits = [
            [merit(guess, labels, protocol.parts[part], n_classes, metric) for guess in bags_of(mask)]
            for mask, part in each.choosers
        ]
        sound, values = np.mean(merits, axis=0).T
        guesses.append(bags_of(each.mask)[int(np.lexsort((-values, -sound))[0])])
        guesses.append(length(task.inputs, labels, train, n_classes))
    return guesses


def _bags(request: Request, protocol: Protocol, bags: dict[int, list[Guess]], mask: int) -> list[Guess]:
    """The bags of words of every C for a mask, fitted once."""
    if mask not in bags:
        train = np.flatnonzero(protocol.masks[mask])
        bags[mask] = bags_of_words(request.acts.task.inputs, request.labels, train, request.n_classes)
    return bags[mask]


def _scored(guesses: Sequence[Guess], request: Request, protocol: Protocol, bootstrap: Bootstrap) -> Baseline:
    """One baseline's guesses, its rounds pooled."""
    rounds = zip(guesses, protocol.rounds, strict=True)
    test = pooled([_predictions(guess, each.test, request) for guess, each in rounds])
    others = [split for split in protocol.rows if split != "test"]
    metrics = {split: measure(_predictions(guesses[0], protocol.rows[split], request)) for split in others}
    result = BaselineResult(
        name=guesses[0].name,
        C=guesses[0].C if len({guess.C for guess in guesses}) == 1 else None,
        converged=all(guess.converged for guess in guesses),
        metrics={**metrics, "test": score(test)},
        intervals=score_intervals(bootstrap, test),
    )
    return Baseline(result, test)


def _predictions(guess: Guess, rows: np.ndarray, request: Request) -> Predictions:
    likely = None if guess.probabilities is None else guess.probabilities[rows]
    return Predictions(request.labels[rows], guess.predicted[rows], guess.scores[rows], request.n_classes, likely)

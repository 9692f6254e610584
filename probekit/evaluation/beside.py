"""The baselines of a curve, judged on the same rows and resamples as its probes."""

import numpy as np

from probekit.activations.layout import Place
from probekit.evaluation.asked import Asked
from probekit.evaluation.baselines import Guess, bag_of_words, length, majority, mean
from probekit.evaluation.curve import Question
from probekit.evaluation.judge import intervals_of, measured, pooled
from probekit.evaluation.metrics import Predictions, measure
from probekit.evaluation.results import BaselineResult, LayerResult

EMBEDDINGS: tuple[Place, ...] = (("resid_pre", 0), ("embed", None))


def baselines_of(asked: Asked, question: Question, curve: list[LayerResult]) -> list[BaselineResult]:
    """What needs no model, and what needs no block of it."""
    rounds = [_guesses(asked, *rows) for rows in _rows(question)]
    guessed = [_judged(list(each), question) for each in zip(*rounds, strict=True)]
    first = curve[0]
    if (first.point, first.layer) not in EMBEDDINGS or len(curve) == 1:
        return guessed
    return [*guessed, BaselineResult("embedding", first.C, first.converged, first.metrics, first.intervals)]


def _rows(question: Question) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each round the rows that teach and those that choose; with folds the first of the folds that take turns."""
    protocol = question.protocol
    choosers = [each.choosers[0] for each in protocol.rounds]
    return [(np.flatnonzero(protocol.masks[mask]), rows) for mask, rows in choosers]


def _guesses(asked: Asked, train: np.ndarray, validation: np.ndarray) -> list[Guess]:
    labels, n_classes, task = asked.labels, asked.n_classes, asked.acts.task
    guesses = [majority(labels, train, n_classes) if n_classes else mean(labels, train)]
    if not task.info.get("no_texts"):
        guesses.append(bag_of_words(task.inputs, labels, train, validation, n_classes))
        guesses.append(length(task.inputs, labels, train, n_classes))
    return guesses


def _judged(guesses: list[Guess], question: Question) -> BaselineResult:
    """One baseline's guesses of all rounds, pooled."""
    rounds, rows = question.protocol.rounds, question.protocol.rows
    test = pooled([_said(guess, each.test, question) for guess, each in zip(guesses, rounds, strict=True)])
    others = [split for split in rows if split != "test"]
    metrics = {split: measure(_said(guesses[0], rows[split], question)) for split in others}
    strengths = {guess.C for guess in guesses}
    return BaselineResult(
        name=guesses[0].name,
        C=guesses[0].C if len(strengths) == 1 else None,
        converged=all(guess.converged for guess in guesses),
        metrics={**metrics, "test": measured(test)},
        intervals=intervals_of(question.bootstrap, test),
    )


def _said(guess: Guess, rows: np.ndarray, question: Question) -> Predictions:
    likely = None if guess.probabilities is None else guess.probabilities[rows]
    truth, n_classes = question.columns.label_sets[0][rows], question.columns.n_classes
    return Predictions(truth, guess.predicted[rows], guess.scores[rows], n_classes, likely)

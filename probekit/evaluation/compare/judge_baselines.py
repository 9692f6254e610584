"""The baselines of a curve, judged on the same rows and resamples as its probes."""

from collections.abc import Sequence

import numpy as np

from probekit.evaluation.compare.baselines import Guess, bags_of_words, length, majority, mean, merit, word_type
from probekit.evaluation.fits.choose import intervals_of, measured, pooled
from probekit.evaluation.fits.layer import Answer, Question
from probekit.evaluation.fits.protocol import Protocol, Round
from probekit.evaluation.request import Asked
from probekit.evaluation.results.data import BaselineResult
from probekit.evaluation.scores.metrics import Predictions, measure
from probekit.points import Place, base_name

EMBEDDINGS: tuple[Place, ...] = (("resid_pre", 0), ("embed", None))  # of any stack


def baselines_of(
    asked: Asked, question: Question, answers: Sequence[Answer]
) -> list[tuple[BaselineResult, Predictions]]:
    """What needs no model, and what needs no block of it, each with what it says of the test rows."""
    words = _Words(asked)
    rounds = [_guesses(asked, question.protocol, each, words, question.headline) for each in question.protocol.rounds]
    guessed = [_judged(list(each), question) for each in zip(*rounds, strict=True)]
    first = answers[0].result
    if (base_name(first.point), first.layer) not in EMBEDDINGS or len(answers) == 1:
        return guessed
    embedding = BaselineResult("embedding", first.C, "probe" not in first.late, first.metrics, first.intervals)
    return [*guessed, (embedding, answers[0].verdict.test)]


class _Words:
    """The bags of words of every strength, fitted once for each mask."""

    def __init__(self, asked: Asked):
        self.asked, self.fitted = asked, {}

    def __call__(self, protocol: Protocol, mask: int) -> list[Guess]:
        if mask not in self.fitted:
            task, train = self.asked.acts.task, np.flatnonzero(protocol.masks[mask])
            self.fitted[mask] = bags_of_words(task.inputs, self.asked.labels, train, self.asked.n_classes)
        return self.fitted[mask]


def _guesses(asked: Asked, protocol: Protocol, each: Round, words: _Words, headline: str) -> list[Guess]:
    """Those of one round, fitted on the rows on which its probe is; the choosers choose their C too."""
    labels, n_classes, task = asked.labels, asked.n_classes, asked.acts.task
    train = np.flatnonzero(protocol.masks[each.mask])
    guesses = [majority(labels, train, n_classes) if n_classes else mean(labels, train)]
    if task.words is not None:
        guesses.append(word_type(task.words, labels, train, n_classes))
    elif not task.info.get("no_texts"):
        merits = [
            [merit(guess, labels, rows, n_classes, headline) for guess in words(protocol, mask)]
            for mask, rows in each.choosers
        ]
        sound, values = np.mean(merits, axis=0).T
        guesses.append(words(protocol, each.mask)[int(np.lexsort((-values, -sound))[0])])
        guesses.append(length(task.inputs, labels, train, n_classes))
    return guesses


def _judged(guesses: list[Guess], question: Question) -> tuple[BaselineResult, Predictions]:
    """One baseline's guesses of all rounds, pooled."""
    rounds, rows = question.protocol.rounds, question.protocol.rows
    test = pooled([_said(guess, each.test, question) for guess, each in zip(guesses, rounds, strict=True)])
    others = [split for split in rows if split != "test"]
    metrics = {split: measure(_said(guesses[0], rows[split], question)) for split in others}
    strengths = {guess.C for guess in guesses}
    result = BaselineResult(
        name=guesses[0].name,
        C=guesses[0].C if len(strengths) == 1 else None,
        converged=all(guess.converged for guess in guesses),
        metrics={**metrics, "test": measured(test)},
        intervals=intervals_of(question.bootstrap, test),
    )
    return result, test


def _said(guess: Guess, rows: np.ndarray, question: Question) -> Predictions:
    likely = None if guess.probabilities is None else guess.probabilities[rows]
    truth, n_classes = question.columns.label_sets[0][rows], question.columns.n_classes
    return Predictions(truth, guess.predicted[rows], guess.scores[rows], n_classes, likely)

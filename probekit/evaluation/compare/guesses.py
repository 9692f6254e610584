"""What needs no model: the commonest class, the words, the length. A probe that does no better has shown nothing.

Where the examples are words of texts, it is what each word is most often, and no words and length of the text. A
regression (n_classes 0) has the mean, and ridge regressions on the same features.

Axes: N examples, C classes.
"""

import warnings
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from probekit.evaluation.scores.metrics import Predictions, measure
from probekit.probes.base import predicted_labels

# Rows of TF-IDF have length 1, so the weights must be larger than those of standardised features.
BAG_OF_WORDS_C = (0.1, 1.0, 10.0, 100.0)
LENGTH_C = 1.0
WORD = r"\w+|[^\w\s]"  # runs of letters and digits, and single marks: every text that is not blank has one
MAX_WORDS = 50_000


@dataclass(frozen=True)
class Guess:
    """A baseline's answers for all examples, and how it was chosen.

    Attributes:
        name: of the baseline.
        predicted: classes int64 [N], or values float64 [N] of a regression.
        scores: [N] or [N, C]; of a regression the values again.
        C: inverse strength of regularisation; None where there is none.
        converged: whether the fit ended at its optimum.
        probabilities: [N, C]; None of a regression.
    """

    name: str
    predicted: np.ndarray
    scores: np.ndarray
    C: float | None = None
    converged: bool = True
    probabilities: np.ndarray | None = None


def majority(labels: np.ndarray, train: np.ndarray, n_classes: int) -> Guess:
    """The commonest class of the training rows (the first of equals), for everything, as probable as it is there."""
    counts = np.bincount(labels[train], minlength=n_classes)
    shape = len(labels) if n_classes == 2 else (len(labels), n_classes)
    probabilities = np.tile(counts / counts.sum(), (len(labels), 1))
    return Guess("majority", np.full(len(labels), counts.argmax()), np.zeros(shape), probabilities=probabilities)


def mean(labels: np.ndarray, train: np.ndarray) -> Guess:
    """The mean of the training rows, for everything: the majority of a regression."""
    return _values("mean", np.full(len(labels), labels[train].mean()))


def word_type(types: Sequence[Hashable], labels: np.ndarray, train: np.ndarray, n_classes: int) -> Guess:
    """What the training rows of a word say: its commonest class there, or its mean; of a new word that of all rows.

    Of equally common classes it is the one that is commoner in train as a whole. Probabilities are the shares.

    Args:
        types: N words.
        labels: int64 [N], or float64 [N] of a regression.
        train: rows to count.
        n_classes: C, or 0 for a regression.
    """
    known: dict[Hashable, int] = {}
    number = np.array([known.setdefault(one, len(known)) for one in types])
    rows = np.bincount(number[train], minlength=len(known))
    if not n_classes:
        sums = np.bincount(number[train], labels[train], minlength=len(known))
        means = np.where(rows > 0, sums / np.maximum(rows, 1), labels[train].mean())
        return _values("word-type", means[number])
    whole = np.bincount(labels[train], minlength=n_classes) / len(train)
    shares_TC = np.bincount(number[train] * n_classes + labels[train], minlength=len(known) * n_classes)
    shares_TC = np.where(rows[:, None] > 0, shares_TC.reshape(-1, n_classes) / np.maximum(rows, 1)[:, None], whole)
    best = np.lexsort((np.broadcast_to(whole, shares_TC.shape), shares_TC), axis=1)[:, -1]
    likely = shares_TC[number]
    return Guess("word-type", best[number], likely[:, 1] if n_classes == 2 else likely, probabilities=likely)


def bags_of_words(inputs: Sequence[Any], labels: np.ndarray, train: np.ndarray, n_classes: int) -> list[Guess]:
    """Logistic (or ridge) regressions on the TF-IDF of the words (or token ids) of the whole text, smallest C first.

    The vocabulary and its weights come from the training rows alone. Texts without a word in them say nothing, so then
    there is one guess: the commonest class, or the mean. `merit` chooses among them, of equals the first.

    Args:
        inputs: N texts, or N lists of token ids.
        labels: int64 [N], or float64 [N] of a regression.
        train: rows to fit on.
        n_classes: C, or 0 for a regression.
    """
    features = _tf_idf(inputs, train)
    if features is None:
        nothing = majority(labels, train, n_classes) if n_classes else mean(labels, train)
        return [replace(nothing, name="bag-of-words")]
    return [_fit("bag-of-words", features, labels, train, C, n_classes) for C in BAG_OF_WORDS_C]


def length(inputs: Sequence[Any], labels: np.ndarray, train: np.ndarray, n_classes: int) -> Guess:
    """Logistic (or ridge) regression on the logarithms of a text's characters and words, or of its number of token ids.

    Args:
        inputs: N texts, or N lists of token ids.
        labels: int64 [N], or float64 [N] of a regression.
        train: rows to fit on.
        n_classes: C, or 0 for a regression.
    """
    sizes = [(len(one), len(one.split())) if isinstance(one, str) else (len(one),) for one in inputs]
    features = np.log1p(np.array(sizes, dtype=np.float64))
    features = StandardScaler().fit(features[train]).transform(features)
    return _fit("length", features, labels, train, LENGTH_C, n_classes)


def _values(name: str, values: np.ndarray, C: float | None = None, converged: bool = True) -> Guess:
    return Guess(name, values, values, C, converged)


def merit(
    guess: Guess, labels: np.ndarray, rows: np.ndarray, n_classes: int, metric: str | None = None
) -> tuple[bool, float]:
    """What chooses between guesses, more being better: whether it converged, then the metric on these rows.

    None is accuracy, or R2. Where a metric is not defined nothing is better than anything else.
    """
    metric = metric or ("accuracy" if n_classes else "r2")
    said = Predictions(labels[rows], guess.predicted[rows], guess.scores[rows], n_classes)
    return guess.converged, measure(said, [metric]).get(metric, 0.0)


def _fit(name: str, features: Any, labels: np.ndarray, train: np.ndarray, C: float, n_classes: int) -> Guess:
    model: Any = LogisticRegression(C=C, max_iter=1000, tol=1e-5)
    if not n_classes:
        model = Ridge(alpha=1 / C, tol=1e-8)
    with warnings.catch_warnings(record=True) as caught, threadpool_limits(1, user_api="blas"):
        warnings.simplefilter("always")
        model.fit(features[train], labels[train])
    converged = not any(issubclass(w.category, ConvergenceWarning) for w in caught)
    if not n_classes:
        return _values(name, model.predict(features), C, converged)
    scores = model.decision_function(features)
    return Guess(name, predicted_labels(scores), scores, C, converged, model.predict_proba(features))


def _tf_idf(inputs: Sequence[Any], train: np.ndarray) -> Any:
    ids = not isinstance(inputs[0], str)
    how: dict[str, Any] = {"analyzer": _as_words} if ids else {"token_pattern": WORD}
    vectoriser = TfidfVectorizer(**how, max_features=MAX_WORDS)
    try:
        vectoriser.fit([inputs[i] for i in train])
    except ValueError as error:
        if "empty vocabulary" in str(error):
            return None
        raise
    return vectoriser.transform(inputs)


def _as_words(ids: Sequence[int]) -> list[str]:
    return [str(i) for i in ids]

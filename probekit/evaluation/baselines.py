"""What needs no model: the commonest class, and the words. A probe that does no better has shown nothing."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from probekit.probes.base import predicted_labels

# Rows of TF-IDF have length 1, so the weights must be larger than those of standardised features.
BAG_OF_WORDS_C = (0.1, 1.0, 10.0, 100.0)
WORD = r"\w+|[^\w\s]"  # runs of letters and digits, and single marks: every text that is not blank has one
MAX_WORDS = 50_000


@dataclass(frozen=True)
class Guess:
    """A baseline's answers: predicted classes [N] and scores [N] or [N, C] for all examples, and how it was chosen."""

    name: str
    predicted: np.ndarray
    scores: np.ndarray
    C: float | None = None
    converged: bool = True


def majority(labels: np.ndarray, train: np.ndarray, n_classes: int) -> Guess:
    """The commonest class of the training rows (the first of equals), for everything."""
    commonest = np.bincount(labels[train], minlength=n_classes).argmax()
    shape = len(labels) if n_classes == 2 else (len(labels), n_classes)
    return Guess("majority", np.full(len(labels), commonest), np.zeros(shape))


def bag_of_words(
    inputs: Sequence[Any], labels: np.ndarray, train: np.ndarray, validation: np.ndarray, n_classes: int
) -> Guess:
    """Logistic regression on the TF-IDF of the words (or token ids) of the whole text; C chosen on validation.

    The vocabulary and its weights come from the training rows alone. Texts without a word in them say nothing, so
    then it is the commonest class.

    Args:
        inputs: N texts, or N lists of token ids.
        labels: int64 [N].
        train: rows to fit on.
        validation: rows to choose C on.
        n_classes: C.
    """
    features = _tf_idf(inputs, train)
    if features is None:
        nothing = majority(labels, train, n_classes)
        return Guess("bag-of-words", nothing.predicted, nothing.scores)
    guesses = [_fit(features, labels, train, C) for C in BAG_OF_WORDS_C]
    right = [int((guess.predicted == labels)[validation].sum()) for guess in guesses]
    return guesses[int(np.argmax(right))]  # of equals the first: the strongest regularisation


def _fit(features: Any, labels: np.ndarray, train: np.ndarray, C: float) -> Guess:
    model = LogisticRegression(C=C, max_iter=1000, tol=1e-5)
    with warnings.catch_warnings(record=True) as caught, threadpool_limits(1, user_api="blas"):
        warnings.simplefilter("always")
        model.fit(features[train], labels[train])
    scores = model.decision_function(features)
    converged = not any(issubclass(w.category, ConvergenceWarning) for w in caught)
    return Guess("bag-of-words", predicted_labels(scores), scores, C, converged)


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

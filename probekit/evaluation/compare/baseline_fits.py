"""Baselines without a model: majority class, bags of words and of bigrams, length. A probe must do better than these.

Where the examples are words of texts, each word's most frequent class replaces bag of words and length. A regression
(n_classes 0) has the mean, and ridge regressions on the same features.

Axes: N examples, C classes.
"""

import itertools
import warnings
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy import sparse

from probekit.evaluation.scores.metrics import Predictions, metrics_of
from probekit.evaluation.scores.selection import tie_loss
from probekit.probes.base import predicted_labels, probabilities
from probekit.probes.logistic.solver import solve_logistic
from probekit.probes.problem import Labels, every_problem

# The probe's default grid, so that baselines have its budget. Rows of TF-IDF have length 1, so the weights must be
# larger than those of standardised features: on SST-2 the best C is 10 to 1000.
BASELINE_C = tuple(10.0**k for k in range(-4, 5))
UNCHOSEN_BAG_C = 10.0  # of bags of words, where no validation rows choose
UNCHOSEN_C = 1.0  # of the others
BAG_OF_WORDS, BAG_OF_BIGRAMS = "bag-of-words", "bag-of-bigrams"
WORD = r"\w+|[^\w\s]"  # runs of letters and digits, and single punctuation marks: every text that is not blank has one
MAX_WORDS = 50_000  # of words; and again as many bigrams
MAX_WEIGHTS = 10_000_000  # of all classes; with more than 200 classes, this allows fewer words

# Of the largest entry of the mean loss's gradient. At 1e-6 some test predictions at C = 10,000 were others than the
# optimum's (6,000 texts, measured); at 1e-7 none were there, and one row of SST-2 at two of nine C.
TOLERANCE = 1e-7
NEAR = 1e-5  # of the right-hand side: a larger remainder of the normal equations is a fit that stopped early
MOST_STEPS = 200

# Weights of all classes, and numbers in the dense features, up to which these take 0.2 to 0.65 of newton-cg's time
# (measured on six vocabularies of 16 to 272 entries and 5 to 32 classes)
FEW_WEIGHTS, FEW_NUMBERS = 5_000, 1 << 21


@dataclass(frozen=True)
class BaselineFit:
    """A fitted baseline's predictions for all examples.

    Attributes:
        name: of the baseline.
        predicted: classes int64 [N], or values float64 [N] of a regression.
        scores: [N] or [N, C]; the values again for a regression.
        C: inverse strength of regularisation; None where there is none.
        converged: whether the solver reached its tolerance.
        probabilities: [N, C]; None for a regression.
    """

    name: str
    predicted: np.ndarray
    scores: np.ndarray
    C: float | None = None
    converged: bool = True
    probabilities: np.ndarray | None = None


def majority(labels: np.ndarray, train: np.ndarray, n_classes: int) -> BaselineFit:
    """The majority class of train (ties go to the first), with the class frequencies of train as probabilities."""
    counts = np.bincount(labels[train], minlength=n_classes)
    shape = len(labels) if n_classes == 2 else (len(labels), n_classes)
    probabilities = np.tile(counts / counts.sum(), (len(labels), 1))
    return BaselineFit("majority", np.full(len(labels), counts.argmax()), np.zeros(shape), probabilities=probabilities)


def mean(labels: np.ndarray, train: np.ndarray) -> BaselineFit:
    """The mean of the training rows: the majority baseline of a regression."""
    return _values("mean", np.broadcast_to(labels[train].mean(axis=0), labels.shape))


def word_type(types: Sequence[Hashable], labels: np.ndarray, train: np.ndarray, n_classes: int) -> BaselineFit:
    """Each word's most frequent class in train, or its mean; for a word that train lacks, that of all training rows.

    Ties go to the class that is more frequent in train. Probabilities are the word's class frequencies.

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
        columns = labels[train].reshape(len(train), -1)
        sums = np.stack([np.bincount(number[train], one, minlength=len(known)) for one in columns.T], axis=1)
        means = np.where(rows[:, None] > 0, sums / np.maximum(rows, 1)[:, None], columns.mean(axis=0))
        return _values("word-type", means[number].reshape(labels.shape))
    prior = np.bincount(labels[train], minlength=n_classes) / len(train)
    shares_TC = np.bincount(number[train] * n_classes + labels[train], minlength=len(known) * n_classes)
    shares_TC = np.where(rows[:, None] > 0, shares_TC.reshape(-1, n_classes) / np.maximum(rows, 1)[:, None], prior)
    best = np.lexsort((np.broadcast_to(prior, shares_TC.shape), shares_TC), axis=1)[:, -1]
    likely = shares_TC[number]
    return BaselineFit("word-type", best[number], likely[:, 1] if n_classes == 2 else likely, probabilities=likely)


def bags_of_words(
    counts: Any,
    labels: np.ndarray,
    train: np.ndarray,
    n_classes: int,
    strengths: Sequence[float] = BASELINE_C,
    name: str = BAG_OF_WORDS,
) -> list[BaselineFit]:
    """Logistic (or ridge) regressions on the TF-IDF of a text's words (or token ids), smallest C first.

    The vocabulary and its weights come from the training rows alone. If no training text has a word, the only fit is
    the majority class, or the mean. `selection_parts` chooses among the fits.

    Args:
        counts: of N texts, from `word_counts`.
        labels: int64 [N], or float64 [N] of a regression.
        train: rows to fit on.
        n_classes: C, or 0 for a regression.
        strengths: values of C, rising.
        name: of the baseline; with "bag-of-bigrams" the counts are of words and bigrams, and twice as many are used.
    """
    most = min(MAX_WORDS, MAX_WEIGHTS // max(1, n_classes)) * (1 if name == BAG_OF_WORDS else 2)
    features = None if counts is None else _tf_idf(counts, train, most)
    if features is None:
        constant = majority(labels, train, n_classes) if n_classes else mean(labels, train)
        return [replace(constant, name=name)]
    return _fits(name, features, labels, train, strengths, n_classes)


def dense_fits(
    name: str,
    features: np.ndarray,
    labels: np.ndarray,
    train: np.ndarray,
    n_classes: int,
    strengths: Sequence[float] = BASELINE_C,
) -> list[BaselineFit]:
    """Logistic (or ridge) regressions on a few columns [N, V], standardised on `train`; smallest C first.

    Args:
        name: of the baseline.
        features: such as the lengths of texts (`compare.lengths`).
        labels: int64 [N], or float64 [N] of a regression.
        train: rows to fit on.
        n_classes: C, or 0 for a regression.
        strengths: values of C, rising.
    """
    return _fits(name, sparse.csr_array(standardised(features, train)), labels, train, strengths, n_classes)


def standardised(features: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Columns [N, V] with mean 0 and spread 1 on the training rows; a column that does not vary there is all 0."""
    largest = np.abs(features[train]).max(axis=0)
    features = features / np.where(largest > 0, largest, 1)  # so that no square overflows or vanishes
    features -= features[train].mean(axis=0)
    spread = features[train].std(axis=0)
    return features / np.where(spread > 1e-12, spread, np.inf)


def _values(name: str, values: np.ndarray, C: float | None = None, converged: bool = True) -> BaselineFit:
    return BaselineFit(name, values, values, C, converged)


def selection_parts(
    fit: BaselineFit, labels: np.ndarray, rows: np.ndarray, n_classes: int, metric: str | None = None
) -> tuple[bool, float, float]:
    """What fits are chosen by: whether it converged, the metric on these rows (0 if undefined), and the loss.

    The metric None is accuracy, or R2.
    """
    metric = metric or ("accuracy" if n_classes else "r2")
    likely = None if fit.probabilities is None else fit.probabilities[rows]
    predictions = Predictions(labels[rows], fit.predicted[rows], fit.scores[rows], n_classes, likely)
    return fit.converged, metrics_of(predictions, [metric]).get(metric, 0.0), tie_loss(predictions)


def _fits(
    name: str,
    features: Any,
    labels: np.ndarray,
    train: np.ndarray,
    strengths: Sequence[float],
    n_classes: int,
) -> list[BaselineFit]:
    """A fit for each C, from the scores of linear fits on sparse features."""
    X, truth = features[train], labels[train]
    if not n_classes:
        return _fits_of_numbers(name, features, X, truth, strengths)
    fits = []
    for C, (coef, intercept, converged) in zip(strengths, fit_path(X, truth, strengths), strict=True):
        scores = features @ coef + intercept
        scores = scores[:, 0] if n_classes == 2 else scores
        fits.append(BaselineFit(name, predicted_labels(scores), scores, C, converged, probabilities(scores)))
    return fits


def fit_path(X: Any, labels: np.ndarray, strengths: Sequence[float]) -> list[tuple[np.ndarray, np.ndarray, bool]]:
    """Logistic regressions on sparse features [N, V] for rising C.

    With few weights they are solved as probes are, to the probes' tolerance. With many, each starts at the one before;
    there is no certificate, and a fit has converged where the gradient is at most `TOLERANCE`.

    Returns:
        Weights [V, K], intercepts [K], and whether the fit converged; K is 1 for two classes.
    """
    n_classes = int(labels.max()) + 1
    if X.shape[1] * n_classes <= FEW_WEIGHTS and X.shape[0] * X.shape[1] <= FEW_NUMBERS:
        dense = torch.from_numpy(X.toarray().astype(np.float32))
        found = solve_logistic(dense, every_problem([Labels(labels, n_classes)], strengths), standardise=False)
        parts = zip(found.coef, found.intercept, found.converged, strict=True)
        return [(coef.T, intercept, bool(converged)) for coef, intercept, converged in parts]
    from sklearn.linear_model import LogisticRegression  # with preprocessing 0.15 s, which a quick look saves

    model, fits = LogisticRegression(solver="newton-cg", tol=TOLERANCE, max_iter=MOST_STEPS, warm_start=True), []
    for C in strengths:
        with warnings.catch_warnings(record=True) as raised:
            warnings.simplefilter("always")  # that a step or the last iteration got no further down
            model.set_params(C=C).fit(X, labels)
        fits.append((np.array(model.coef_.T), np.array(model.intercept_), not raised))
    return fits


def _fits_of_numbers(
    name: str, features: Any, X: Any, targets: np.ndarray, strengths: Sequence[float]
) -> list[BaselineFit]:
    """Each output in units of its own spread, as the tolerance is relative to the targets."""
    from sklearn.linear_model import Ridge

    middle = targets.mean(axis=0)
    unit = np.abs(targets - middle).max(axis=0)
    unit = np.where(unit > 0, unit, 1)
    columns, fits = ((targets - middle) / unit).reshape(len(targets), -1), []
    for C in strengths:
        model = Ridge(alpha=1 / C, solver="sparse_cg", tol=TOLERANCE).fit(X, columns)
        left = X.T @ (columns - model.predict(X).reshape(columns.shape)) - model.coef_.reshape(-1, X.shape[1]).T / C
        largest = np.linalg.norm(X.T @ columns, axis=0)  # the solver does not say whether it got this far
        values = model.predict(features).reshape(features.shape[0], *targets.shape[1:]) * unit + middle
        fits.append(_values(name, values, C, bool((np.linalg.norm(left, axis=0) <= NEAR * largest).all())))
    return fits


def word_counts(inputs: Sequence[Any], longest: int = 1) -> Any:
    """How often each word (or token id) occurs in each of N texts (or lists of token ids); None without any word.

    With `longest` 2 the pairs of neighbouring words (bigrams) are counted too.
    """
    from sklearn.feature_extraction.text import CountVectorizer  # with preprocessing 0.1 s, which a quick look saves

    tokens: dict[str, Any] = {"token_pattern": WORD, "ngram_range": (1, longest)}
    if not isinstance(inputs[0], str):
        tokens = {"analyzer": _as_words if longest == 1 else _as_words_and_pairs}
    try:
        return sparse.csr_array(CountVectorizer(**tokens).fit_transform(inputs))
    except ValueError as error:
        if "empty vocabulary" in str(error):
            return None
        raise


def _tf_idf(counts: Any, train: np.ndarray, most: int) -> Any:
    """What scikit-learn's TfidfVectorizer(max_features=most), fitted on these rows, makes of all; None if empty."""
    fitted = counts[train]
    texts = np.bincount(fitted.indices, minlength=counts.shape[1])  # how many have each word
    known = np.flatnonzero(texts)
    if not len(known):
        return None
    if len(known) > most:
        occurs = np.bincount(fitted.indices, fitted.data, minlength=counts.shape[1])[known]
        known = known[np.sort((-occurs).argsort()[:most])]
    features = counts[:, known].astype(np.float64)
    idf = np.log((1 + len(train)) / (1 + texts[known])) + 1
    features.data *= idf[features.indices]
    norms = np.sqrt(np.bincount(_rows(features), features.data**2, minlength=features.shape[0]))
    features.data /= norms[_rows(features)]
    return features


def _rows(features: Any) -> np.ndarray:
    return np.repeat(np.arange(features.shape[0]), np.diff(features.indptr))


def _as_words(ids: Sequence[int]) -> list[str]:
    return [str(i) for i in ids]


def _as_words_and_pairs(ids: Sequence[int]) -> list[str]:
    words = _as_words(ids)
    return words + [f"{one} {other}" for one, other in itertools.pairwise(words)]

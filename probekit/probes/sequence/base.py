"""The base class of probes over a sequence: they take the tokens of each text and predict the text's label.

Axes: N texts, L tokens of one text, D features, C classes, K outputs (1 for two classes, else C), n and t texts and
tokens of a part.
"""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from torch import Tensor

from probekit.errors import DataError
from probekit.probes.base import ClassifierProbe, WithProbabilities, as_numpy
from probekit.probes.problem import Labels, ProblemSet, every_problem
from probekit.probes.scikit_learn import check_is_fitted
from probekit.probes.sequence.ragged import Ragged, as_ragged, text_parts


class SequenceProbe(WithProbabilities, ClassifierProbe):
    """A probe of classes whose input is a list of arrays [L, D], one for each text, or `Ragged`.

    Every text counts once, whatever its length. Subclasses implement `_fit_copies` and `_part_scores`.
    """

    of_sequences = True
    fits_in_threads = True
    C: float

    def fit(self, X: Any, y: Any) -> Self:
        """Fit to the tokens of N texts and their labels [N].

        Raises:
            UsageError: X is no list of arrays, or a parameter out of range.
            DataError: a text without tokens, NaN or infinity; fewer than two classes in `y`.
        """
        from sklearn.utils import column_or_1d  # see `probes.scikit_learn`

        X, y = as_ragged(X), column_or_1d(as_numpy(y))
        if len(y) != len(X):
            raise DataError(f"expected a label for each of the {len(X)} texts, got {len(y)}")
        labels, strengths = self._classed(y), [self.C if self.has_C else None]
        self._fit_copies([self], X, every_problem([Labels(labels, len(self.classes_))], strengths))
        self.n_features_in_ = X.width
        return self

    def fit_many(self, X: Tensor | Ragged, problems: ProblemSet) -> list[Self]:
        """A probe for each problem, whose labels and weights are of texts; see `Probe.fit_many`."""
        tokens, probes = as_ragged(X), self._copies(problems)
        for probe, problem in zip(probes, problems.problems, strict=True):
            labels = problems.labels[problem.label]
            self._rows(labels, problems.weightings[problem.weighting])
            probe.classes_, probe.n_features_in_ = np.arange(labels.n_classes), tokens.width
        self._fit_copies(probes, tokens, problems)
        return probes

    def _fit_copies(self, probes: Sequence[Any], X: Ragged, problems: ProblemSet) -> None:
        """Set the fitted attributes of the probe of each problem; their `classes_` are there."""
        raise NotImplementedError

    def _part_scores(self, rows: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """The log odds or logits [n, K] of some texts, from their tokens float64 [t, D]."""
        raise NotImplementedError

    def decision_function(self, X: Any) -> np.ndarray:
        """Log odds [N] for two classes (positive means the second one), logits [N, C] for more."""
        check_is_fitted(self)
        return text_scores([self], as_ragged(X, self.n_features_in_))[0]


def text_scores(probes: Sequence[SequenceProbe], X: Ragged) -> list[np.ndarray]:
    """The decisions of each probe, [N] or [N, C]; the tokens are read once for all of them."""
    found = [np.empty((len(X), probe._n_outputs)) for probe in probes]
    for part in text_parts(X):
        rows = part.doubles()
        for probe, scores in zip(probes, found, strict=True):
            scores[part.texts] = probe._part_scores(rows, part.lengths)
    return [scores[:, 0] if scores.shape[1] == 1 else scores for scores in found]


def weights_of(problems: ProblemSet, number: int, N: int) -> np.ndarray:
    """The weights [N] of a problem's texts."""
    weights = problems.weightings[problems.problems[number].weighting]
    return np.ones(N) if weights is None else np.asarray(weights, dtype=np.float64)

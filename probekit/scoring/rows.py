"""Scores as data: one row for each text, or for each token.

Axes: N rows, C classes, K outputs of a regression.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

MOST_CLASSES = 50  # that have columns of their own; of more, only the predicted class has


@dataclass(frozen=True, eq=False)
class ScoreRows:
    """What a probe gives for new texts; each array has N rows.

    Attributes:
        ids: of the texts.
        scores: float64 [N] of two classes, higher for the second; [N, C] of more; [N] or [N, K] of a regression.
        predicted: names of the predicted classes; None for a regression.
        probabilities: float64 [N, C], calibrated; None without a calibration.
        flagged: whether the score is at or above the threshold, or of a text whose running score is compared, whether
            it was at any token; None without a threshold.
        alarm_at: where running scores are compared, the index in its text of the first token at the threshold, as a
            list of whole numbers and None; None where they are not.
        before_end: how many of the tokens that the probe reads come after that one, in the same form.
        distance: Mahalanobis distance from the training activations; None where they are not known.
        unusual: whether it is above the line that 1% of held-out rows exceed; None without held-out rows.
        texts: as the model reads them; None for token ids and for rows that are tokens.
        token_index: of each token in its text, counted from 0; None where a row is a text.
        tokens: the token's piece of text.
        trained: whether it is one of the tokens that the probe was trained on.
        meta: JSON-able: place, classes, calibration, threshold, notes and more.
    """

    ids: np.ndarray
    scores: np.ndarray
    predicted: np.ndarray | None = None
    probabilities: np.ndarray | None = None
    flagged: np.ndarray | None = None
    alarm_at: np.ndarray | None = None
    before_end: np.ndarray | None = None
    distance: np.ndarray | None = None
    unusual: np.ndarray | None = None
    texts: np.ndarray | None = None
    token_index: np.ndarray | None = None
    tokens: np.ndarray | None = None
    trained: np.ndarray | None = None
    meta: dict[str, Any] = field(default_factory=dict)


@dataclass
class ScoreTally:
    """How many rows were scored, and how many of them are unusual or flagged.

    Attributes:
        rows: texts or tokens.
        trained: rows of the kind that the probe was trained on; all of them unless every token is scored.
        unusual: of the trained ones.
        flagged: of all rows.
    """

    rows: int = 0
    trained: int = 0
    unusual: int = 0
    flagged: int = 0

    def each(self, parts: Iterable[ScoreRows]) -> Iterator[ScoreRows]:
        """The parts, each of them counted as it passes."""
        for part in parts:
            self.rows += len(part.ids)
            trained = np.ones(len(part.ids), dtype=bool) if part.trained is None else part.trained
            self.trained += int(trained.sum())
            self.unusual += 0 if part.unusual is None else int(part.unusual[trained].sum())
            self.flagged += 0 if part.flagged is None else int(part.flagged.sum())
            yield part


def joined_rows(parts: Sequence[ScoreRows], meta: dict[str, Any]) -> dict[str, Any]:
    """The fields of the rows of all parts, one after the other."""
    names = [one.name for one in fields(ScoreRows) if one.name != "meta"]
    columns = {name: [getattr(part, name) for part in parts] for name in names}
    none = {name: None for name, values in columns.items() if values[0] is None}
    return (
        {name: np.concatenate(values) for name, values in columns.items() if name not in none} | none | {"meta": meta}
    )


def score_columns(rows: ScoreRows) -> dict[str, np.ndarray]:
    """The columns of a table: name -> [N].

    `probability` is that of the second of two classes, or of the predicted one of more. Each of at most `MOST_CLASSES`
    classes has its own columns, and so has each output of a regression.
    """
    classes = rows.meta["classes"]
    found: dict[str, Any] = {"id": rows.ids, "text": rows.texts}
    found |= {"token_index": rows.token_index, "token": rows.tokens, "trained": rows.trained}
    found["predicted"] = rows.predicted
    if rows.scores.ndim == 1:
        found["probability"] = None if rows.probabilities is None else rows.probabilities[:, 1]
        found["score"] = rows.scores
    elif not classes:
        found |= {f"score {k}": rows.scores[:, k] for k in range(rows.scores.shape[1])}
    else:
        found |= _of_classes(rows, classes)
    found |= {"flagged": rows.flagged, "alarm_at": rows.alarm_at, "before_end": rows.before_end}
    found |= {"distance": rows.distance, "unusual": rows.unusual}
    return {name: values for name, values in found.items() if values is not None}


def _of_classes(rows: ScoreRows, classes: list[str]) -> dict[str, Any]:
    """The columns of three classes or more."""
    assert rows.predicted is not None
    own = np.array([classes.index(name) for name in rows.predicted], dtype=np.int64)
    at = np.arange(len(own)), own
    found = {
        "probability": None if rows.probabilities is None else rows.probabilities[at],
        "score": rows.scores[at],
    }
    if len(classes) <= MOST_CLASSES:
        if rows.probabilities is not None:
            found |= {f"probability of {name}": rows.probabilities[:, k] for k, name in enumerate(classes)}
        found |= {f"score of {name}": rows.scores[:, k] for k, name in enumerate(classes)}
    return found

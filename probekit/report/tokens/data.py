"""The token by layer view as data: the score of a probe at every token and layer of some texts.

Axes: N texts, T tokens of all texts (context tokens included), P places, O outputs, H heads, L tokens of one text,
K tokens that the logit lens lists.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

TRAINED, SPECIAL, CONTEXT = 1, 2, 4  # bits of `TokenScores.marks`


@dataclass(frozen=True, eq=False)
class Lens:
    """The logit lens of the first texts.

    Attributes:
        texts: how many texts have it.
        places: names of its places, in order.
        top: ids of the most probable next tokens, int64 [P, t, K], t the tokens of these texts.
        probability: of these, float64 [P, t, K].
        spelled: id -> the token.
    """

    texts: int
    places: list[str]
    top: np.ndarray
    probability: np.ndarray
    spelled: dict[int, str]


@dataclass(frozen=True, eq=False)
class Attention:
    """Attention patterns of some texts.

    Attributes:
        layers: that have a pattern.
        texts: index of each text.
        patterns: of each of these texts, float [layers, H, L, L].
    """

    layers: list[int]
    texts: list[int]
    patterns: list[np.ndarray]


@dataclass(frozen=True)
class ScoredText:
    """One text.

    Attributes:
        id: its name in the task.
        label: its class, or the target of a regression as text; None without labels.
        predicted: the class or value that the best place predicts; None where no token of it was trained on.
        is_mistake: whether the predicted class is another than its label; None where either is unknown, and for a
            regression.
        why: why it was chosen: "mistake", "least confident", "most confident", "random" or "given".
    """

    id: str
    label: str | None
    predicted: str | None
    is_mistake: bool | None
    why: str = "given"


@dataclass(frozen=True, eq=False)
class TokenScores:
    """The scores of a probe at every token of some texts, at every place of a curve.

    Scores of tokens that the probe was not trained on extrapolate.

    Attributes:
        texts: N.
        offsets: where the tokens of each text begin, and where the last ones end, int64 [N + 1].
        pieces: T, the characters of each token.
        marks: bits TRAINED (a token like those that the probe was trained on), SPECIAL and CONTEXT (a token before or
            after the text, which has no score), uint8 [T].
        places: P names, such as "resid_pre.5".
        layers: P layers; None for a place outside the layers.
        best: the index of the selected place; of the last one where none was selected.
        outputs: O names of what scores are of: the second class, each class of several, or the target.
        scores: float64 [O, P, T]: log odds of the class, calibrated where the results have validation rows; the probe's
            own scores where it has no log odds; predicted values of a regression; nan for context tokens.
        placebo: of a random direction, [O, P, T].
        text_scores: of each text at the tokens that the probe reads, [O, P, N]; nan where it reads none of them.
        centres: [P], the score without a colour: even odds, the threshold for a false-positive rate, or the mean of a
            regression.
        units: [P], by which scores are divided before they are coloured: 1 for log odds.
        meta: JSON-able: model, task, label, probe, point, position, kind ("log odds", "score" or "value"), classes,
            of_sequences, has_best (whether a place was selected), fpr, calibrated_on (validation rows, or None), notes.
        lens: None where there is none.
        attention: None where there is none.
    """

    texts: list[ScoredText]
    offsets: np.ndarray
    pieces: list[str]
    marks: np.ndarray
    places: list[str]
    layers: list[int | None]
    best: int
    outputs: list[str]
    scores: np.ndarray
    placebo: np.ndarray
    text_scores: np.ndarray
    centres: np.ndarray
    units: np.ndarray
    meta: dict[str, Any] = field(default_factory=dict)
    lens: Lens | None = None
    attention: Attention | None = None

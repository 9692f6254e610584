"""What a monitor saw: the scores of each text, their running maximum and mean, and the alarms."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from probekit.points import Place
from probekit.probes.running import TokenRule
from probekit.scoring.calibrate import Calibration


@dataclass(frozen=True)
class Alarm:
    """A score that reached the threshold.

    Attributes:
        text: index of the text in `Monitor.texts`.
        name: of the probe.
        index: of the token in its text, from 0, a BOS counted.
        token: its id; None in a forward outside of generation.
        score: of the token; of a probe over a sequence, of the text up to it.
        threshold: that it reached.
        generated: whether the model wrote the token.
    """

    text: int
    name: str
    index: int
    token: int | None
    score: float
    threshold: float
    generated: bool


@dataclass
class Running:
    """The scores of a text so far, of the tokens that are watched.

    Attributes:
        n: how many.
        last: nan before the first.
        max: -inf before the first.
        mean: nan before the first.
    """

    n: int = 0
    last: float = np.nan
    max: float = -np.inf
    mean: float = np.nan


@dataclass(eq=False)
class WatchedText:
    """A text that a model wrote, or read, under a monitor.

    Attributes:
        index: of the text in `Monitor.texts`.
        number: of the prompt among those of its call.
        n_prompt: tokens of the prompt; of a forward outside of generation, of the text.
        tokens: ids, generated ones included; empty outside of generation.
        scores: probe -> the score of each token that the model has read, from the first one on. The last token that a
            model writes has none unless an alarm stopped there: no forward reads it.
        running: probe -> the scores so far of the tokens that are watched.
        alarms: in the order in which they were raised.
    """

    index: int
    number: int
    n_prompt: int
    tokens: list[int]
    scores: dict[str, list[float]]
    running: dict[str, Running]
    alarms: list[Alarm] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class WatchedProbe:
    """A probe at its place.

    Attributes:
        name: of its scores and alarms.
        probe: fitted.
        place: point and layer.
        rule: how activations become scores.
        threshold: at which a score raises an alarm; None for no alarms.
        calibration: of scores of two classes, towards the second; None for a fitted probe.
        sign: 1 where high scores mean the second class, or a high number; -1 where they mean the first.
        edited: the edits that its training ran under, in words; None for none.
    """

    name: str
    probe: Any
    place: Place
    rule: TokenRule
    threshold: float | None
    calibration: Calibration | None
    sign: int
    edited: str | None = None

"""The options of the scorer, the model and the hook for Inspect."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from probekit.options.kinds import choice, number
from probekit.options.option import CHECKS, Options, like, option
from probekit.options.score import ProbeDeviceOptions, ScoreOptions


@dataclass(frozen=True)
class SampleOptions(Options, heading=CHECKS):
    """Which probe reads the messages of a sample, what is flagged, and how the model runs."""

    place: str | None = like(ScoreOptions, "place")
    fpr: float | None = like(ScoreOptions, "fpr", "Flag at the threshold that validation chose for this rate.")
    threshold: float | None = option(
        None,
        "Flag a score of at least this; in place of fpr.",
        number("a finite number", lambda value: abs(value) < float("inf"), "SCORE"),
        flag=None,
    )
    aggregate: Literal["max", "mean"] = option(
        "max",
        "How the scores of tokens become that of the sample, for a probe that was trained on each token of a text.",
        choice("max", "mean"),
        flag=None,
    )
    sae: Any = like(ScoreOptions, "sae")
    any_model: bool = like(ScoreOptions, "any_model")
    chat_template: str | Path | None = like(ScoreOptions, "chat_template")
    dtype: str = like(ProbeDeviceOptions, "dtype")
    device: str = like(ProbeDeviceOptions, "device")

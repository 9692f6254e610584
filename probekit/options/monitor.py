"""The options of `Monitor`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from probekit.errors import UsageError
from probekit.options.check import is_real
from probekit.options.option import option


@dataclass(frozen=True)
class _Place:
    """The option that may be given by position."""

    place: Any = option(
        None,
        'The place of a fitted probe, such as "resid_pre.5"; of results, the place to take.  [default: the best]',
        flag=None,
    )


@dataclass(frozen=True)
class MonitorOptions(_Place):
    """What raises an alarm, and what an alarm does."""

    threshold: float | Mapping[str, float] | None = option(
        None, "A score of at least this raises an alarm; a dictionary has one for each probe by name.", flag=None
    )
    fpr: float | None = option(
        None,
        "Take the threshold that validation chose for this false-positive rate; for results of two classes.",
        notes="The rate is of texts that are scored once. A monitor compares every token, so more texts raise alarms.",
        flag=None,
    )
    on_alarm: Callable[[Any], object] | None = option(
        None,
        "Called with each `Alarm`; if it returns True, the text ends before its next token is chosen.",
        flag=None,
    )
    each: bool = option(
        False,
        "Raise an alarm at every token at the threshold, rather than at the first of a text and probe.",
        flag=None,
    )
    prompt: bool = option(
        False,
        "Raise alarms at tokens of the prompt too, and count them in `running`; they are scored in any case.",
        flag=None,
    )
    target: Any = option(None, "The class whose score is watched, by name.  [default: the second of two]", flag=None)
    any_model: bool = option(
        False, "Watch a model with other weights than those that the results were trained on.", flag=None
    )

    def __post_init__(self) -> None:
        thresholds = [*self.threshold.values()] if isinstance(self.threshold, Mapping) else [self.threshold]
        for one in thresholds:
            if one is not None and not (is_real(one) and abs(one) < float("inf")):
                raise UsageError(
                    f"a threshold is a finite number, got {one!a:.60}; give the score that raises an alarm"
                )
        if self.fpr is not None and not (is_real(self.fpr) and 0 < self.fpr < 1):
            raise UsageError(f"fpr is a rate between 0 and 1, such as 0.01; got {self.fpr!a:.60}")
        if self.fpr is not None and (self.threshold is not None or self.target is not None):
            other = "threshold" if self.threshold is not None else "target"
            raise UsageError(f"fpr= chooses the threshold for the second class; leave {other}= out")
        if self.on_alarm is not None and self.threshold is None and self.fpr is None:
            raise UsageError("on_alarm is called at a threshold; give threshold= or fpr= too")

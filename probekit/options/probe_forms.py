"""The forms of a call of `train_probes` whose result is one object, for type checkers."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from probekit.options.option import like
from probekit.options.probe import CurvesArguments, PositionArguments, ProbeArguments


class _Frame(Protocol):
    """A DataFrame or a Series of pandas."""

    @property
    def iloc(self) -> Any: ...


# a path that is a text could also be a name: type checkers take it for one
LabelsById = Mapping[Any, Any] | _Frame | os.PathLike[str] | Sequence[tuple[Any, Any] | Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class _WithLabels:
    labels: LabelsById | None = like(CurvesArguments, "labels")


@dataclass(frozen=True, kw_only=True)
class OneCurveArguments(_WithLabels, ProbeArguments):
    """`ProbeArguments` with labels by id, which make no further curve."""


@dataclass(frozen=True, kw_only=True)
class OnePositionArguments(_WithLabels, PositionArguments):
    """`PositionArguments` with labels by id."""

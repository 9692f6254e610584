"""`HeadResults`: what `train_probes` returns with `by="head"`, with its table, picture and files."""

from probekit.evaluation.by_position.data import PositionCurve
from probekit.evaluation.by_position.results import PositionResults
from probekit.options.probe import BY_HEAD


class HeadResults(PositionResults):
    """A curve for each head, as `train_probes(by="head")` returns it; `results[3]` is the curve of head 3.

    Attributes are those of `PositionData`, whose `positions` are the heads.
    """

    _noun = BY_HEAD

    @property
    def heads(self) -> list[PositionCurve]:
        """The curve of each head: its `layers` are the probes."""
        return self.positions

"""Evaluation: a probe at every layer, chosen on validation, tested once, with intervals and baselines."""

from probekit.evaluation.by_head.results import HeadResults
from probekit.evaluation.by_position.data import PositionCurve
from probekit.evaluation.by_position.results import PositionResults
from probekit.evaluation.request import DEFAULT_C
from probekit.evaluation.results.curves import ProbeCurves
from probekit.evaluation.results.data import BaselineResult, LayerResult, TransferCell
from probekit.evaluation.results.grids import ProbeGrids
from probekit.evaluation.results.results import ProbeResults
from probekit.evaluation.results.transfer_results import TransferResults
from probekit.evaluation.transfer import transfer

__all__ = [
    "DEFAULT_C",
    "BaselineResult",
    "HeadResults",
    "LayerResult",
    "PositionCurve",
    "PositionResults",
    "ProbeCurves",
    "ProbeGrids",
    "ProbeResults",
    "TransferCell",
    "TransferResults",
    "transfer",
]

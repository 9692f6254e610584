"""Results of several runs side by side: models, seeds, points, probes, and checkpoints of one model over training."""

from probekit.side_by_side.compare import compare
from probekit.side_by_side.results import Comparison

__all__ = ["Comparison", "compare"]

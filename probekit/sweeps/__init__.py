"""Many tasks, models, points and probes in one resumable call, with one table."""

from probekit.sweeps.data import SweepRow, SweepRun
from probekit.sweeps.results import SweepResults

__all__ = ["SweepResults", "SweepRow", "SweepRun"]

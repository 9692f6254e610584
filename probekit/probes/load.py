"""The probes by name, and reading a saved one."""

from pathlib import Path

from probekit.probes.base import LinearProbe
from probekit.probes.files import read_probe
from probekit.probes.logistic import LogisticProbe
from probekit.probes.mean_difference import MeanDifferenceProbe
from probekit.probes.ridge import RidgeProbe

PROBES: dict[str, type[LinearProbe]] = {
    "logistic": LogisticProbe,
    "ridge": RidgeProbe,
    "mean-diff": MeanDifferenceProbe,
}


def load_probe(path: str | Path) -> LinearProbe:
    """The fitted probe that `probe.save(path)` wrote: same class, same predictions.

    Raises:
        DataError: no such files, or files that are not a whole probe.
    """
    return read_probe(path, {probe.__name__: probe for probe in PROBES.values()})

"""Probes by name, and loading a saved one."""

from pathlib import Path
from typing import Any

from probekit.options.check import check_path
from probekit.probes.files import read_probe
from probekit.probes.lda import LDAProbe
from probekit.probes.logistic.probe import LogisticProbe
from probekit.probes.mean_difference import MeanDifferenceProbe
from probekit.probes.mlp import MLPProbe
from probekit.probes.ridge import RidgeProbe, RidgeRegressionProbe
from probekit.probes.sequence.aggregate import AggregateProbe
from probekit.probes.sequence.attention import AttentionProbe
from probekit.probes.sparse import KSparseProbe

PROBES: dict[str, type[Any]] = {
    "logistic": LogisticProbe,
    "ridge": RidgeProbe,
    "lda": LDAProbe,
    "mean-diff": MeanDifferenceProbe,
    "mlp": MLPProbe,
    "k-sparse": KSparseProbe,
}
REGRESSORS: dict[str, type[Any]] = {"ridge": RidgeRegressionProbe}
SEQUENCE_PROBES: dict[str, type[Any]] = {"attention": AttentionProbe}  # they take all tokens of a text
SAVED: tuple[type[Any], ...] = (
    *PROBES.values(),
    *REGRESSORS.values(),
    *SEQUENCE_PROBES.values(),
    AggregateProbe,
)


def load_probe(path: str | Path) -> Any:
    """Load the fitted probe that `probe.save(path)` wrote: same class, same predictions.

    Raises:
        DataError: missing or damaged files, or files that are not a complete probe.
    """
    return read_probe(check_path("path", path), {probe.__name__: probe for probe in SAVED})

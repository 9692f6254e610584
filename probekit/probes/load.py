"""Probes by name, and loading a saved one."""

from pathlib import Path
from typing import Any

from probekit.files.hub import is_address
from probekit.options.check import check_path
from probekit.probes.files import read_probe
from probekit.probes.in_results import probe_in, results_folder, split_place
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

    Args:
        path: where it was saved; or a folder of results, here or on the Hub, and a place in it:
            "hf://owner/name:resid_pre.5". Without a place it is the probe of the best layer.

    Raises:
        UsageError: no such place in the results, or no such repository.
        DataError: missing or damaged files, or files that are not a complete probe.
    """
    folder, place = split_place(str(path) if is_address(path) else str(check_path("path", path)))
    if is_address(folder) or Path(folder).is_dir():
        path = probe_in(results_folder(folder), place)
    return read_probe(check_path("path", path), {probe.__name__: probe for probe in SAVED})

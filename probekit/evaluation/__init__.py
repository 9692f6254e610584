"""Evaluation: a probe at every layer, chosen on validation, judged on test, with intervals and baselines beside it."""

from probekit.evaluation.results import BaselineResult, LayerResult, ProbeResults
from probekit.evaluation.train import DEFAULT_C, train_probes
from probekit.evaluation.transfer import transfer
from probekit.evaluation.transfer_results import TransferCell, TransferResults

__all__ = [
    "DEFAULT_C",
    "BaselineResult",
    "LayerResult",
    "ProbeResults",
    "TransferCell",
    "TransferResults",
    "train_probes",
    "transfer",
]

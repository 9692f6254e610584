"""Evaluation: a probe at every layer, chosen on validation, judged on test, with intervals and baselines beside it."""

from probekit.evaluation.request import DEFAULT_C
from probekit.evaluation.results.results import BaselineResult, LayerResult, ProbeResults, check_folder
from probekit.evaluation.results.transfer_results import TransferCell, TransferResults, check_transfer_folder
from probekit.evaluation.train_probes import train_probes
from probekit.evaluation.transfer import transfer

__all__ = [
    "DEFAULT_C",
    "BaselineResult",
    "LayerResult",
    "ProbeResults",
    "TransferCell",
    "TransferResults",
    "check_folder",
    "check_transfer_folder",
    "train_probes",
    "transfer",
]

"""Evaluation: a probe at every layer, chosen on validation, judged on test, with intervals and baselines beside it."""

from probekit.evaluation.asked import DEFAULT_C
from probekit.evaluation.results import BaselineResult, LayerResult, ProbeResults, check_folder
from probekit.evaluation.train import CONTROLS, train_probes
from probekit.evaluation.transfer import transfer
from probekit.evaluation.transfer_results import TransferCell, TransferResults, check_transfer_folder

__all__ = [
    "CONTROLS",
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

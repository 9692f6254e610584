"""probekit: what a transformer represents, at which layer, and how sure you can be.

Public names are imported on first use, so `import probekit` does not import torch.
"""

from probekit.machine import program  # isort: skip  (first of all)

program.stop_at_signals()

import importlib  # noqa: E402
from typing import TYPE_CHECKING, Any  # noqa: E402

from probekit import methods, worlds  # noqa: E402, F401  enter methods of results, built-in models and tasks
from probekit.machine.versions import __version__  # noqa: E402

_HOME = {
    "load_model": "models",
    "load_tokenizer": "models",
    "load_task": "tasks",
    "Task": "tasks",
    "extract": "verbs.extract",
    "import_activations": "activations",
    "extract_statistics": "activations",
    "merge_stores": "activations",
    "label": "activations",
    "label_store": "activations",
    "load_activations": "activations",
    "random_init_of": "activations",
    "load_statistics": "activations",
    "load_probe": "probes",
    "load_sae": "latents",
    "Sae": "latents",
    "steering_vectors": "causal.directions.steering",
    "logit_lens": "causal.readouts",
    "direct_logit_attribution": "causal.readouts",
    "token_losses": "causal.behaviour.measure",
    "load_pairs": "causal.behaviour.pairs",
    "patch_pairs": "causal.patching.patch_pairs",
    "cascade": "black_box.cascade",
    "ensemble": "evaluation.compare.ensembles",
    "prompted_scores": "black_box.prompted",
    "load_scores": "evaluation.compare.black_boxes",
    "train_probes": "verbs.train_probes",
    "ProbeResults": "evaluation",
    "PositionResults": "evaluation",
    "ProbeGrids": "evaluation",
    "HeadResults": "evaluation",
    "plot_projection": "plots.projection",
    "ProbeCurves": "evaluation",
    "causal_curve": "causal.curve.causal_curve",
    "CausalResults": "causal.results.results",
    "sweep": "verbs.sweep",
    "SweepResults": "sweeps",
    "transfer": "evaluation",
    "compare": "side_by_side",
    "Comparison": "side_by_side",
    "TransferResults": "evaluation",
    "selftest": "verification",
    "known_answers": "battery",
    "show_reading": "activations.plan.reading.show",
    "SelfTest": "verification",
    "Monitor": "scoring.monitor",
    "fit_eraser": "causal.erasure.erase",
    "fresh_probes": "causal.erasure.completeness",
    "read_after_edit": "causal.erasure.recovery",
    "wrap": "models.wrapped.wrap",
    "write_report": "report.build",
    "push_to_hub": "sharing.push",
    "ProbekitError": "errors",
}
__all__ = [
    "CausalResults",
    "Comparison",
    "HeadResults",
    "Monitor",
    "PositionResults",
    "ProbeCurves",
    "ProbeGrids",
    "ProbeResults",
    "ProbekitError",
    "Sae",
    "SelfTest",
    "SweepResults",
    "Task",
    "TransferResults",
    "__version__",
    "cascade",
    "causal_curve",
    "compare",
    "direct_logit_attribution",
    "ensemble",
    "extract",
    "extract_statistics",
    "fit_eraser",
    "fresh_probes",
    "import_activations",
    "known_answers",
    "label",
    "label_store",
    "load_activations",
    "load_model",
    "load_pairs",
    "load_probe",
    "load_sae",
    "load_scores",
    "load_statistics",
    "load_task",
    "load_tokenizer",
    "logit_lens",
    "merge_stores",
    "patch_pairs",
    "plot_projection",
    "prompted_scores",
    "push_to_hub",
    "random_init_of",
    "read_after_edit",
    "selftest",
    "show_reading",
    "steering_vectors",
    "sweep",
    "token_losses",
    "train_probes",
    "transfer",
    "wrap",
    "write_report",
]

if TYPE_CHECKING:
    from probekit.activations import (
        extract_statistics,
        import_activations,
        label,
        label_store,
        load_activations,
        load_statistics,
        merge_stores,
        random_init_of,
    )
    from probekit.activations.plan.reading.show import show_reading
    from probekit.battery import known_answers
    from probekit.black_box.cascade import cascade
    from probekit.black_box.prompted import prompted_scores
    from probekit.causal.behaviour.measure import token_losses
    from probekit.causal.behaviour.pairs import load_pairs
    from probekit.causal.curve.causal_curve import causal_curve
    from probekit.causal.directions.steering import steering_vectors
    from probekit.causal.erasure.completeness import fresh_probes
    from probekit.causal.erasure.erase import fit_eraser
    from probekit.causal.erasure.recovery import read_after_edit
    from probekit.causal.patching.patch_pairs import patch_pairs
    from probekit.causal.readouts import direct_logit_attribution, logit_lens
    from probekit.causal.results.results import CausalResults
    from probekit.errors import ProbekitError
    from probekit.evaluation import (
        HeadResults,
        PositionResults,
        ProbeCurves,
        ProbeGrids,
        ProbeResults,
        TransferResults,
        transfer,
    )
    from probekit.evaluation.compare.black_boxes import load_scores
    from probekit.evaluation.compare.ensembles import ensemble
    from probekit.latents import Sae, load_sae
    from probekit.models import load_model, load_tokenizer
    from probekit.models.wrapped.wrap import wrap
    from probekit.plots import plot_projection
    from probekit.probes import load_probe
    from probekit.report.build import write_report
    from probekit.scoring.monitor import Monitor
    from probekit.sharing.push import push_to_hub
    from probekit.side_by_side import Comparison, compare
    from probekit.sweeps import SweepResults
    from probekit.tasks import Task, load_task
    from probekit.verbs.extract import extract
    from probekit.verbs.sweep import sweep
    from probekit.verbs.train_probes import train_probes
    from probekit.verification import SelfTest, selftest


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'probekit' has no attribute {name!r}")
    return getattr(importlib.import_module(f"probekit.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)

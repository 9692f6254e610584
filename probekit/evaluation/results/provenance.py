"""Where results come from, as JSON: request, activations, rows, seeds, settings, versions and hashes."""

from typing import Any

import torch

from probekit.activations.activations import Activations
from probekit.evaluation.compare.codelength import FRACTIONS
from probekit.evaluation.fits.layer import Question
from probekit.evaluation.fits.protocol import Protocol
from probekit.evaluation.request import Asked
from probekit.evaluation.scores.bootstrap import LEVEL, RESAMPLES
from probekit.tasks.quality.audit import Audit, audit_dict
from probekit.versions import versions_of

PACKAGES = ("torch", "numpy", "scikit-learn", "scipy")
# keys of the activations' record that are copied into the record of the results
ORIGIN = ("model_fingerprint", "tokenizer_fingerprint", "task_fingerprint", "dtype", "compute_dtype", "bos", "cut")
ORIGIN += ("kind", "source_fingerprint")  # of imports


def origin_of(asked: Asked, question: Question, found: Audit, drop_leaks: bool, seed: int) -> dict[str, Any]:
    """The `meta` of the results, without what depends on the fitted curve."""
    acts, rows = asked.acts, question.protocol
    return {
        "model": acts.meta.get("model", "unnamed"),
        "task": acts.meta.get("task", "unnamed"),
        "label": asked.label,
        "classes": list(acts.label_names[asked.label]),
        "n_classes": asked.n_classes,
        "point": asked.point,
        "probe": asked.probe,
        "C": None if asked.grid == [None] else asked.grid,
        "seed": seed,
        "position": _position(acts),
        "n_layers": acts.n_layers,
        "output": acts.output,
        "n": {split: len(which) for split, which in rows.rows.items()},
        "folds": rows.folds,
        "counts": _counts(asked, rows),
        "headline": question.headline,
        "metric": question.metric,
        "chosen_on": f"{'validation' if rows.folds is None else 'inner folds:'} {question.headline}",
        "code": None if question.code is None else {"C": question.code.grid, "fractions": list(FRACTIONS)},
        "interval": {
            "kind": _kinds(asked.n_classes),
            "level": LEVEL,
            "resamples": RESAMPLES,
            "unit": _unit(asked, question),
        },
        "no_texts": bool(acts.task.info.get("no_texts")),
        "audit": audit_dict(found),
        "drop_leaks": drop_leaks,
        "activations": {name: acts.meta[name] for name in ORIGIN if name in acts.meta} | _task_fingerprint(acts),
        "versions": versions_of(*PACKAGES),
        "threads": torch.get_num_threads(),
    }


def _unit(asked: Asked, question: Question) -> str:
    """The unit that is resampled: example, text or group."""
    if question.bootstrap.groups is None:
        return "example"
    return "text" if asked.acts.task.groups is None else "group"


def _counts(asked: Asked, rows: Protocol) -> dict[str, dict[str, int]]:
    """Class counts of the rows in use: split -> class -> n."""
    names = asked.acts.label_names[asked.label]
    return {
        split: {name: int((asked.labels[which] == k).sum()) for k, name in enumerate(names)}
        for split, which in rows.rows.items()
    }


def _kinds(n_classes: int) -> dict[str, str]:
    """The kind of interval of each metric."""
    names = ("accuracy", "balanced_accuracy", "auroc", "average_precision", "f1", "brier")
    names = names if n_classes else ("r2", "spearman", "mae")
    return {name: "Wilson" if name == "accuracy" else "studentised bootstrap" for name in names}


def random_origin(acts: Activations | None) -> dict[str, Any] | None:
    """Seed and fingerprint of the random weights that the curve is compared with."""
    if acts is None:
        return None
    source = getattr(acts, "source", None) or {}
    return {"seed": source.get("seed"), "fingerprint": acts.meta.get("model_fingerprint")}


def _position(acts: Activations) -> Any:
    position = acts.task.position
    return acts.meta.get("position", position if isinstance(position, str) else "per example")


def _task_fingerprint(acts: Activations) -> dict[str, str]:
    return {} if "task_fingerprint" in acts.meta else {"task_fingerprint": acts.task.fingerprint()}

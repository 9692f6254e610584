"""Where results come from, as JSON: what was asked, of what, with which rows, seeds, settings, versions and hashes."""

from typing import Any

import torch

from probekit.activations.sets import Activations
from probekit.evaluation.asked import Asked
from probekit.evaluation.audit import Audit
from probekit.evaluation.curve import Question
from probekit.evaluation.intervals import LEVEL, RESAMPLES
from probekit.versions import versions_of

PACKAGES = ("torch", "numpy", "scikit-learn", "scipy")
# what of the activations' own record goes into that of the results
ORIGIN = ("model_fingerprint", "tokenizer_fingerprint", "task_fingerprint", "dtype", "compute_dtype", "bos", "cut")
ORIGIN += ("kind", "source_fingerprint")  # of imports


def origin_of(asked: Asked, question: Question, found: Audit, drop_leaks: bool, seed: int) -> dict[str, Any]:
    """The `meta` of the results, but for what only the curve can tell."""
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
        "n": {split: len(which) for split, which in rows.rows.items()},
        "folds": rows.folds,
        "counts": acts.task.counts(asked.label),
        "headline": question.headline,
        "chosen_on": f"validation {question.headline}",
        "interval": {
            "kind": "bootstrap",
            "level": LEVEL,
            "resamples": RESAMPLES,
            "unit": "example" if question.bootstrap.groups is None else "group",
        },
        "no_texts": bool(acts.task.info.get("no_texts")),
        "audit": {**found.as_dict(), "lines": found.lines()},
        "drop_leaks": drop_leaks,
        "activations": {name: acts.meta[name] for name in ORIGIN if name in acts.meta} | _task_fingerprint(acts),
        "versions": versions_of(*PACKAGES),
        "threads": torch.get_num_threads(),
    }


def _position(acts: Activations) -> Any:
    position = acts.task.position
    return acts.meta.get("position", position if isinstance(position, str) else "per example")


def _task_fingerprint(acts: Activations) -> dict[str, str]:
    return {} if "task_fingerprint" in acts.meta else {"task_fingerprint": acts.task.fingerprint()}

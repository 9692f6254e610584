"""Where results come from, as JSON: request, activations, rows, seeds, settings, versions and hashes."""

import sys
from typing import Any

import numpy as np
import torch

from probekit.activations.activations import Activations, RowsOf, SideBySide
from probekit.activations.labelled import record_of_labels
from probekit.activations.plan.reading.select_tokens import UNREAD
from probekit.evaluation.compare.codelength import FRACTIONS
from probekit.evaluation.fits.protocol import Protocol
from probekit.evaluation.plan import CurvePlan
from probekit.evaluation.request import Request
from probekit.evaluation.results.files import is_saved
from probekit.evaluation.scores.bootstrap import LEVEL, RESAMPLES, Bootstrap
from probekit.evaluation.scores.roc import ROC_RATES
from probekit.evaluation.surface.within import RowGroup
from probekit.machine.versions import versions_of
from probekit.probes.find import probe_name
from probekit.tasks.fields import CHAT, VALIDATION_CARVED
from probekit.tasks.join_labels import FINGERPRINTS
from probekit.tasks.quality.audit import Audit, audit_dict

LONGEST = 200  # characters of a parameter that is no number
PACKAGES = ("torch", "numpy", "scikit-learn", "scipy")
# keys of the activations' record that are copied into the record of the results
ORIGIN = ("model_fingerprint", "tokenizer_fingerprint", "task_fingerprint", "dtype", "compute_dtype", "bos", "cut")
ORIGIN += ("revision",)  # of a model of the Hub, or a checkpoint, where one was named
ORIGIN += ("kind", "source_fingerprint", "verified")  # of imports
ORIGIN += (FINGERPRINTS,)  # of labels that were joined later
ORIGIN += ("edits", "edit_positions", "edited")  # of a model that ran under edits
ORIGIN += ("via", "quantize")  # of a model that this project's own code did not compute
ORIGIN += ("latents",)  # of sparse autoencoders: what they read, and which they are
ORIGIN += ("check",)  # of a store whose checksums were not compared


def origin_of(
    request: Request,
    plan: CurvePlan,
    audit: Audit,
    seed: int,
    drop_leaks: bool = False,
    fingerprint: str | None = None,
) -> dict[str, Any]:
    """The `meta` of the results, without the entries that depend on the curve.

    Args:
        request: the curve.
        plan: its fits.
        audit: of its label set.
        seed: of everything drawn.
        drop_leaks: whether leaks were left out.
        fingerprint: of the task, where it is known already and the activations do not record it.
    """
    acts, rows = request.acts, plan.grid.protocol
    return {
        **{name: acts.meta.get(name, "unnamed") for name in ("model", "task")},
        "label": request.label,
        "classes": list(acts.label_names[request.label]),
        "n_classes": request.n_classes,
        "point": request.point,
        "probe": probe_name(request.probe),
        "estimator": probe_record(request.probe),
        "C": None if request.strengths == [None] else [_plain(C) for C in request.strengths],
        "seed": seed,
        "position": _position(acts),
        **({} if request.group is None else {"within": _within(request.group)}),
        "n_layers": acts.n_layers,
        "output": acts.output,
        **_sizes(request, rows),
        "headline": plan.headline,
        "metric": plan.metric,
        "chosen_on": _chosen_on(plan),
        "code": None if plan.code is None else {"C": plan.code.grid, "fractions": list(FRACTIONS)},
        "interval": _interval(request, plan.bootstrap),
        "validation_carved": acts.task.info.get(VALIDATION_CARVED),
        "no_texts": not acts.task.has_texts,
        "audit": audit_dict(audit),
        "test_leak": None if audit.test_leak is None else {**audit.test_leak, "removed": audit.dropped},
        "texts_cut": _texts_cut(acts),
        **({"unread": unread} if (unread := acts.task.info.get("skipped", {}).get(UNREAD)) else {}),
        "drop_leaks": drop_leaks,
        "reading": _reading(acts),
        "activations": _activations(record_of_labels(acts, [request.label]), fingerprint),
        "versions": versions_of(*PACKAGES),
        "threads": torch.get_num_threads(),
    }


def _within(group: RowGroup) -> dict[str, Any]:
    """The value of a column that all rows of the curve have, and the values without a curve."""
    return {"column": group.column, "value": group.value, "left_out": group.left_out}


def _texts_of(acts: Activations, rows: Protocol) -> dict[str, int] | None:
    """How many texts the rows of each split are of, where rows are tokens."""
    text = acts.task.text_of
    return None if text is None else {split: len(np.unique(text[which])) for split, which in rows.rows.items()}


def probe_record(probe: Any) -> dict[str, Any]:
    """The probe's class, parameters, whether its fits have certificates, and the version of its package; JSON-able."""
    estimator = getattr(probe, "estimator", probe)
    kind = type(estimator)
    return {
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "parameters": {name: _plain(value) for name, value in sorted(estimator.get_params().items())},
        "certified": probe.certified,
        "state": probe.state,
        "saved": is_saved(probe),
        "version": getattr(sys.modules.get(kind.__module__.partition(".")[0]), "__version__", None),
    }


def _plain(value: Any) -> Any:
    """A parameter as JSON: numbers, texts and truth values as they are, anything else as a short text."""
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and np.isfinite(value)):
        return value
    return str(getattr(value, "__qualname__", None) or repr(value))[:LONGEST]


def _activations(record: dict[str, Any], fingerprint: str | None) -> dict[str, Any]:
    known = {name: record[name] for name in ORIGIN if name in record}
    return known if fingerprint is None else {**known, "task_fingerprint": fingerprint}


def _chosen_on(plan: CurvePlan) -> str | None:
    protocol = plan.grid.protocol
    if not protocol.chooses:
        return None
    return f"{'validation' if protocol.folds is None else 'inner folds:'} {plan.headline}"


def _interval(request: Request, bootstrap: Bootstrap | None) -> dict[str, Any] | None:
    """The kind of interval of each metric, its level, and what is resampled how often; None for no intervals."""
    if bootstrap is None:
        return None
    unit = "text" if request.acts.task.groups is None else "group"
    unit = "example" if bootstrap.groups is None else unit
    return {"kind": _kinds(request.n_classes), "level": LEVEL, "resamples": RESAMPLES, "unit": unit}


def _sizes(request: Request, rows: Protocol) -> dict[str, Any]:
    """How many rows are in use, by split and class, and how many have no label."""
    acts = request.acts
    return {
        "n": {split: len(which) for split, which in rows.rows.items()},
        "unlabelled": request.unlabelled,
        "n_texts": _texts_of(acts, rows),
        "folds": rows.folds,
        "counts": _counts(request, rows),
    }


def _counts(request: Request, rows: Protocol) -> dict[str, dict[str, int]]:
    """Class counts of the rows in use: split -> class -> n."""
    names = request.acts.label_names[request.label]
    return {
        split: {name: int((request.labels[which] == k).sum()) for k, name in enumerate(names)}
        for split, which in rows.rows.items()
    }


def _kinds(n_classes: int) -> dict[str, str]:
    """The kind of interval of each metric."""
    names = ("accuracy", "balanced_accuracy", "auroc", "average_precision", "f1", "brier")
    names = names if n_classes else ("r2", "spearman", "mae")
    names += tuple(ROC_RATES) if n_classes == 2 else ()
    return {name: "Wilson" if name == "accuracy" else "studentised bootstrap" for name in names}


def random_origin(acts: Activations | None) -> dict[str, Any] | None:
    """Seed and fingerprint of the random weights that the curve is compared with."""
    if acts is None:
        return None
    source = getattr(acts, "source", None) or {}
    return {"seed": source.get("seed"), "fingerprint": acts.meta.get("model_fingerprint")}


def _position(acts: Activations) -> Any:
    position = acts.layout.positions[0] if acts.layout.is_ragged else acts.task.position
    return acts.meta.get("position", position if isinstance(position, str) else "per example")


def _reading(acts: Activations) -> dict[str, Any]:
    """How the rows were read, so that new texts can be read alike."""
    source, info = acts, acts.task.info
    while isinstance(source, RowsOf):
        source = source.source
    return {
        "selection": acts.meta.get("selection", _position(acts)),
        "each_token": acts.task.text_of is not None,
        "words": acts.task.spans is not None,
        "generated": acts.task.generated is not None,
        "keep_blanks": bool(info.get("keep_blanks") or info.get("token_label_column")),
        "skip_special": bool(acts.meta.get("skip_special")),
        "on_long": acts.meta.get("on_long"),
        "chat": info.get(CHAT),
        "places": [list(place) for place in source.joined] if isinstance(source, SideBySide) else None,
    }


def _texts_cut(acts: Activations) -> dict[str, Any] | None:
    """How many texts were cut at the context, and whether the token that is read is at the "cut" or "before" it.

    Of a mean, or a token of each text's own, that is "unknown". None where nothing was recorded, as in imports.
    """
    if "cut" not in acts.meta:
        return None
    position, texts = str(_position(acts)), len(acts.task.texts()[0])
    read = "unknown"
    if acts.task.spans is not None or position == "first" or position.isdecimal():
        read = "before"
    elif position == "last" or position.removeprefix("-").isdecimal():
        read = "cut"
    return {"texts": min(int(acts.meta["cut"]), texts), "of": texts, "read": read}

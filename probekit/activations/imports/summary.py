"""An import in words and in JSON."""

from collections.abc import Iterator
from typing import Any

import torch

from probekit.activations.imports.plan import ImportPlan
from probekit.activations.imports.sources import source_as_json, source_as_words
from probekit.machine.devices import DTYPES
from probekit.points import spans_of
from probekit.tasks.base import SPLITS
from probekit.tasks.info import origin_of_splits
from probekit.tasks.splitting.classes import look_alike_words
from probekit.text import counted, listed, printable


def import_as_dict(plan: ImportPlan) -> dict[str, Any]:
    """The plan as JSON-able numbers and names."""
    return {
        "kind": "import",
        "source": str(plan.source),
        "model": plan.model,
        "task": plan.task.name,
        "texts": len(plan.task),
        "splits": {split: int((plan.task.splits == split).sum()) for split in SPLITS},
        "points": plan.points,
        "n_layers": plan.n_layers,
        "places": [list(place) for place in plan.places],
        "widths": plan.widths,
        "position": plan.position.plain,
        "dtype": plan.dtype,
        "bytes": len(plan.task) * plan.row_bytes,
        "shards": len(plan.shards),
        "arrays": [source_as_json(source) for source in plan.sources],
        "left_aside": plan.left_aside,
        "has_texts": plan.task.has_texts,
    }


def describe_import(plan: ImportPlan, arrays: bool = True) -> str:
    """The plan as short aligned lines for the terminal; with `arrays` also the places of each array."""
    task, n = plan.task, len(plan.task)
    splits = ", ".join(f"{(task.splits == split).sum():,} {split}" for split in SPLITS)
    widths = "/".join(str(width) for width in dict.fromkeys(plan.widths))
    size = f"{n * plan.row_bytes / 1e6:,.1f} MB"
    lines = [
        ("model", f"{plan.model}: {counted(plan.n_layers, 'layer')}"),
        ("task", f"{task.name}: {counted(n, 'example')} ({splits})"),
        ("read", f"{spans_of(plan.places)}; token {plan.position}"),
        ("size", f"{size}: {n:,} x {counted(len(plan.places), 'place')} x {widths} {plan.dtype}"),
        *_remarks(plan),
    ]
    lines += [("array", source_as_words(source)) for source in plan.sources] if arrays else []
    return "\n".join(f"{key:<8}{printable(value)}" for key, value in lines)


def _remarks(plan: ImportPlan) -> Iterator[tuple[str, str]]:
    task = plan.task
    if splits := origin_of_splits(task.info):
        yield "splits", splits
    if alike := look_alike_words(task.label_names[task.target]):
        yield "alike", alike
    if not task.n_classes():
        labels = task.labels[task.target]
        yield "labels", f"numbers, {labels.min():g} to {labels.max():g}: a regression"
    if not task.has_texts:
        yield "texts", "none: there will be no bag-of-words baseline (--text-column)"
    for type_name in dict.fromkeys(source.array.type_name for source in plan.sources):
        if torch.promote_types(getattr(torch, type_name), DTYPES[plan.dtype]) != DTYPES[plan.dtype]:
            yield "rounded", f"from {type_name} to {plan.dtype}"
    if plan.left_aside:
        yield "ignored", listed(plan.left_aside)

"""An import from vLLM in words and in JSON."""

from typing import Any

from probekit.activations.imports.vllm.plan import RequestsPlan
from probekit.points import spans_of
from probekit.tasks.base import SPLITS
from probekit.text import counted, listed, printable

_AXES = {None: "[tokens, width]", 0: "[layers, tokens, width]", 1: "[tokens, layers, width]"}


def requests_as_dict(plan: RequestsPlan) -> dict[str, Any]:
    """The plan as JSON-able numbers and names."""
    task = plan.task
    return {
        "kind": "import",
        "format": "vllm",
        "source": str(plan.source),
        "model": plan.model.name,
        "task": task.name,
        "texts": len(task),
        "splits": {split: int((task.splits == split).sum()) for split in SPLITS},
        "n_layers": plan.model.n_layers,
        "places": [list(place) for place in plan.places],
        "width": plan.width,
        "positions": plan.reading.reading.positions,
        "bos": plan.bos,
        "stack_axis": plan.stack_axis,
        "dtype": plan.dtype,
        "bytes": int(plan.n_bytes.sum()),
        "shards": len(plan.shards),
        "files": len({one.file for one in plan.requests}),
        "left_aside": [ascii(name)[1:-1] for name in plan.left_aside],
    }


def describe_requests(plan: RequestsPlan) -> str:
    """The plan as short aligned lines for the terminal."""
    task, n_files = plan.task, len({one.file for one in plan.requests})
    splits = ", ".join(f"{(task.splits == split).sum():,} {split}" for split in SPLITS)
    bos = " after a BOS" if plan.bos else ""
    lines = [
        ("model", f"{plan.model.name}: {counted(plan.model.n_layers, 'layer')}"),
        ("task", f"{task.name}: {counted(len(task), 'example')} ({splits})"),
        ("files", f"{n_files:,}, {_AXES[plan.stack_axis]}; their tokens are those of the texts{bos}"),
        ("read", f"{spans_of(plan.places)}; token {listed(plan.reading.reading.positions)}"),
        (
            "size",
            f"{plan.n_bytes.sum() / 1e6:,.1f} MB: {counted(len(plan.places), 'place')} x {plan.width} {plan.dtype}",
        ),
    ]
    if plan.left_aside:
        lines.append(
            ("ignored", f"{counted(len(plan.left_aside), 'file')} of no text: {listed(plan.left_aside, most=4)}")
        )
    return "\n".join(f"{key:<8}{printable(value)}" for key, value in lines)

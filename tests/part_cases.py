"""What the tests of parts share: a small model and task on disk, and the options that make several shards of them."""

from pathlib import Path
from typing import Any

from user_files import write_model, write_texts

from probekit.activations import plan_extraction
from probekit.activations.plan.plan import ExtractionPlan
from probekit.models import load_model
from probekit.options import ExtractOptions
from probekit.tasks import load_task

N = 60
HOW: dict[str, Any] = {
    "points": "resid_pre,q",
    "batch_tokens": 128,
    "block_nodes": 64,
    "share": False,
    "shard_bytes": 6_000,
}
TYPED = ["--points", "resid_pre", "--batch-tokens", "64", "--shard-bytes", "1500", "--quiet"]
"""Options that make several shards of the same files on the command line."""


def plan_of_files(folder: Path) -> ExtractionPlan:
    """The plan of a model and a task that are written to a folder."""
    model, texts = write_model(folder / "model"), write_texts(folder / "texts.csv", N)
    return plan_extraction(load_model(str(model)), load_task(str(texts)), ExtractOptions(**HOW))

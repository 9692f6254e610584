"""The folder that a store gets when none is named."""

import re
from collections.abc import Iterable
from pathlib import Path

from probekit.activations.digest import identity_digest
from probekit.activations.plan.identity import digest_of, identity_of
from probekit.activations.plan.plan import ExtractionPlan

_MAX_PART = 48  # characters of one part


def default_path(plan: ExtractionPlan, root: str | Path = "runs") -> Path:
    """The store of this plan under `root`; equal plans get the same path, so that the same command resumes it."""
    parts = [plan.model.name, plan.task.name, "-".join(plan.points), "+".join(plan.reading.names), digest_of(plan)[:8]]
    return Path(root) / folder_name(parts)


def checkpoints_path(plan: ExtractionPlan, root: str | Path = "runs") -> Path:
    """The folder under `root` for the stores of several checkpoints: the same for every checkpoint of a model."""
    identity = {key: value for key, value in identity_of(plan).items() if key != "model_fingerprint"}
    parts = [plan.model.name, plan.task.name, "-".join(plan.points), "+".join(plan.reading.names), "checkpoints"]
    return Path(root) / folder_name([*parts, identity_digest(identity)[:8]])


def folder_name(parts: Iterable[str]) -> str:
    """A name for a folder from parts with any characters."""
    return "-".join(re.sub(r"[^A-Za-z0-9._-]+", "-", part).strip(".-_")[:_MAX_PART] or "unnamed" for part in parts)

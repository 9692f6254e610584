"""The folder that a store gets when none is named."""

from pathlib import Path

from probekit.activations.plan.identity import identity_of
from probekit.activations.plan.plan import ExtractionPlan
from probekit.files.run import folder_name


def default_path(plan: ExtractionPlan, root: str | Path = "runs") -> Path:
    """The store of this plan under `root`; equal plans get the same path, so that the same command resumes it."""
    return Path(root) / folder_name(_parts(plan), identity_of(plan))


def checkpoints_path(plan: ExtractionPlan, root: str | Path = "runs") -> Path:
    """The folder under `root` for the stores of several checkpoints: the same for every checkpoint of a model."""
    identity = {key: value for key, value in identity_of(plan).items() if key != "model_fingerprint"}
    return Path(root) / folder_name([*_parts(plan), "checkpoints"], identity)


def _parts(plan: ExtractionPlan) -> list[str]:
    return [plan.model.name, plan.task.name, "-".join(plan.points), "+".join(plan.reading.positions)]

"""What decides the bits of an extraction, the folder that is named after it, and the record of a run.

Two plans with equal identities end in equal tensors, so that an interrupted run can be resumed. They are equal bit for
bit on one machine with one version of torch and one number of threads; elsewhere they are equal up to rounding.
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from probekit.activations.layout import fingerprint_of
from probekit.activations.plan.plan import ExtractionPlan
from probekit.activations.plan.summary import plan_as_dict
from probekit.activations.plan.token_ids import has_texts
from probekit.activations.store.format import FORMAT_VERSION
from probekit.files.run import folder_name
from probekit.interventions import record_of_edits
from probekit.machine.versions import versions_of
from probekit.models.base import LanguageModel
from probekit.models.config_fields import deciding_fields

ARITHMETIC = 2  # counts up when the engine computes the same numbers in another order of sums
_COUNTS = ("tokens", "nodes", "cut", "dropped_blanks", "skipped_rows")  # of a plan that the record of a run repeats


def identity_of(plan: ExtractionPlan) -> dict[str, Any]:
    """Everything that decides the result, JSON-able: all but versions, threads and the processor.

    Computed once for each plan, because it hashes every weight of the model, and kept in the plan. Not in a weak
    dictionary: a Ctrl-C that falls into its callback would be lost.
    """
    if plan.identity:
        return plan.identity
    tokenizer = plan.model.tokenizer if has_texts(plan.task) else None
    counts, positions = plan_as_dict(plan), plan.reading.positions
    names = [one.plain if one.each is None else fingerprint_of(one.each) for one in positions]
    made: dict[str, Any] = dict(
        version=FORMAT_VERSION,
        arithmetic=ARITHMETIC,
        **identity_of_model(plan.model),
        tokenizer_fingerprint=None if tokenizer is None else tokenizer.fingerprint,
        task_fingerprint=plan.task.fingerprint(),
        rows=len(plan.task),
        points=plan.points,
        places=counts["places"],
        widths=plan.widths,
        position=names[0] if len(names) == 1 else names,
        dtype=plan.dtype,
        device=plan.device.type,
        bos=counts["bos"],
        on_long=plan.on_long,
        batch_tokens=plan.batch_tokens,
        block_nodes=plan.block_nodes,
        share=plan.share,
        shards=len(plan.shards),
    )
    # fields that older stores do not have
    if plan.shard_bytes is not None:
        made["shard_bytes"] = plan.shard_bytes
    if plan.reading.skip_special:
        made["skip_special"] = True
    if plan.edits is not None:
        made.update(edits=record_of_edits(plan.model, plan.edits), edit_positions=plan.edit_positions)
    plan.identity.update(made)  # in one step: half an identity, left by a Ctrl-C, would be taken for a whole one
    return plan.identity


def default_path(plan: ExtractionPlan, root: str | Path = "runs") -> Path:
    """The store of this plan under `root`; equal plans get the same path, so that the same command resumes it."""
    return Path(root) / folder_name(_parts(plan), identity_of(plan))


def checkpoints_path(plan: ExtractionPlan, root: str | Path = "runs") -> Path:
    """The folder under `root` for the stores of several checkpoints: the same for every checkpoint of a model."""
    identity = {key: value for key, value in identity_of(plan).items() if key != "model_fingerprint"}
    return Path(root) / folder_name([*_parts(plan), "checkpoints"], identity)


def _parts(plan: ExtractionPlan) -> list[str]:
    return [plan.model.name, plan.task.name, "-".join(plan.points), "+".join(plan.reading.positions)]


def identity_of_model(model: LanguageModel) -> dict[str, Any]:
    """What of a model decides the bits that it computes.

    `via` and `quantize` are there where they are not the default: stores from before these options have neither.
    """
    return {
        "family": type(model).__name__,
        "config": deciding_fields(model.cfg),
        "model_fingerprint": model.fingerprint(),
        "compute_dtype": str(model.dtype).removeprefix("torch."),
        **_chosen(model, "via", "quantize"),
    }


def _chosen(model: LanguageModel, *names: str) -> dict[str, str]:
    source = model.source or {}
    return {name: source[name] for name in names if name in source}


def record_of_run(plan: ExtractionPlan) -> dict[str, Any]:
    """Where the values come from: the `meta` of activations, and most of a store's manifest."""
    counts, identity, positions = plan_as_dict(plan), identity_of(plan), plan.reading.positions
    return {
        **identity,
        **_chosen(plan.model, "device_map"),
        "model": plan.model.name,
        **({} if plan.model.revision is None else {"revision": plan.model.revision}),
        **({"left_out": list(plan.model.left_out)} if plan.model.left_out else {}),
        "task": plan.task.name,
        "task_info": plan.task.info,
        "target": plan.task.target,
        "position": positions[0].plain if len(positions) == 1 else [str(one) for one in positions],
        "position_fingerprint": identity["position"],
        "n_layers": plan.model.n_layers_of(plan.points[0]) or plan.model.n_layers,
        "output": plan.model.output_of(plan.points[0]),
        "seed": plan.task.info.get("seed"),
        **{name: counts[name] for name in _COUNTS},
        **({"edited": counts["edits"]} if "edits" in counts else {}),
        "asked": plan.asked,
        "versions": versions_of("torch", "numpy", "safetensors", "tokenizers", *plan.model.packages),
        "created": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }

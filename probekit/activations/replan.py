"""Plan the extraction of a store again, from its own files."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from probekit.activations.plan.build import plan_extraction
from probekit.activations.plan.identity import identity_of, identity_of_model
from probekit.activations.plan.places import find_places
from probekit.activations.plan.plan import ExtractionPlan
from probekit.activations.store.examples import StoredExamples, read_examples
from probekit.activations.store.format import AGAIN, PlanFile
from probekit.activations.store.writer import check_same
from probekit.errors import DataError, StorageError, UsageError
from probekit.files.records import has_form
from probekit.files.remote.path import AnyPath
from probekit.interventions import Edits
from probekit.models.base import LanguageModel
from probekit.options import ExtractOptions


class _Options(TypedDict):
    """Those of ExtractOptions, as the identity has them."""

    points: list[str]
    device: str
    dtype: str
    batch_tokens: int
    bos: bool
    on_long: str
    block_nodes: int
    share: bool


class _Extracted(_Options):
    compute_dtype: str
    shard_bytes: NotRequired[int | None]


_SOURCE = {"revision": str, "random_init": bool, "seed": int, "via": str, "device_map": str, "quantize": str}
_GIVE_EDITS = "give the edits of the extraction"
_GIVE_MODEL = "give the model that made it with --model"


def check_extracted(path: AnyPath, identity: dict[str, Any]) -> None:
    """Raise a StorageError unless the identity has every option of an extraction."""
    if not has_form(_Extracted, identity):
        raise StorageError(f"{str(path / 'plan.json')!a} does not say how the store was extracted; {AGAIN}")


def device_again(plan: PlanFile, source: Mapping[str, Any]) -> str:
    """The device to load the store's model on; "auto" where its layers are spread over several."""
    return "auto" if "device_map" in source else plan.identity["device"]


def plan_again(
    plan: PlanFile,
    examples: StoredExamples,
    model: LanguageModel,
    edits: Edits | None = None,
    device: str | None = None,
) -> ExtractionPlan:
    """The plan of a store for this model: the same examples, points, layers, positions, types and batches.

    A store does not hold the tensors of its edits, which are given again. `device` is where the model runs; None takes
    the type of device that the store names.
    """
    identity, positions = plan.identity, examples.positions
    places, points = plan.places, identity["points"]
    is_all = set(places) == set(find_places(model, points, "all"))
    again: dict[str, Any] = {key: identity[key] for key in _Options.__annotations__}
    again |= {} if device is None else {"device": device}
    options = ExtractOptions(
        edits=edits,
        edit_positions=identity.get("edit_positions", "all"),
        layers="all" if is_all else sorted({i for point, i in places if point in points and i is not None}),
        position=positions[0] if len(positions) == 1 else positions,
        shard_bytes=identity.get("shard_bytes"),
        skip_special=identity.get("skip_special", False),
        **again,
    )
    return plan_extraction(model, examples.task, options)


def plan_of_store(
    path: AnyPath,
    plan: PlanFile,
    model: LanguageModel | str | Path | None = None,
    edits: Edits | None = None,
    device: str | None = None,
) -> ExtractionPlan:
    """The plan that made the store at `path`, from its own files.

    Args:
        path: the store.
        plan: its plan file.
        model: the model, or where to load it from; None is the source that the store names.
        edits: those of the extraction, as in `plan_again`.
        device: where the model is loaded and runs; None takes the device of the plan.

    Raises:
        StorageError: the store does not say how it was made, or where its model is.
        DataError: the model cannot be loaded.
        UsageError: no such model or device.
        ResumeMismatch: with this model, these edits, or this probekit, it would be another store.
    """
    check_extracted(path, plan.identity)
    examples, model = read_examples(path, plan), load_model_of(path, plan, model, device)
    # first the model by itself: another one may not allow these layers or points
    _compare(path, plan, {**plan.identity, **identity_of_model(model)}, model, _GIVE_MODEL)
    again = plan_again(plan, examples, model, edits, None if model.stays else device)
    _compare(path, plan, identity_of(again), model, _GIVE_EDITS if plan.edits else _GIVE_MODEL)
    return again


def load_model_of(
    path: AnyPath, plan: PlanFile, model: LanguageModel | str | Path | None = None, device: str | None = None
) -> LanguageModel:
    """The model of a store, in the type of its plan; arguments and errors as of `plan_of_store`."""
    if isinstance(model, LanguageModel):
        return model
    from probekit.models import load_model

    source = dict(plan.source or {})
    if model is not None:
        source |= {"name_or_path": str(model), "revision": None}
    if not isinstance(source.get("name_or_path"), str):
        raise StorageError(
            f"{str(path)!a} does not record where its model is; name it with probekit repair --model MODEL"
        )
    how: dict[str, Any] = {key: source[key] for key, kind in _SOURCE.items() if isinstance(source.get(key), kind)}
    how |= {"device": device or device_again(plan, source), "dtype": plan.identity["compute_dtype"]}
    try:
        return load_model(source["name_or_path"], **how)
    except (UsageError, DataError) as error:
        if model is not None:
            raise
        gone = f"the model that made {str(path)!a} cannot be loaded from where it was ({error})"
        raise DataError(f"{gone}; name it with probekit repair --model MODEL") from None


def _compare(path: AnyPath, plan: PlanFile, identity: dict[str, Any], model: LanguageModel, advice: str) -> None:
    wanted = {"identity": identity, "model": model.name, "task": plan.task}
    check_same(path, plan, json.loads(json.dumps(wanted)), advice)

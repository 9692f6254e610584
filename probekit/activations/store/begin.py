"""Begin a store, or find the one that is there and compare its settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probekit.activations.digest import FORMAT_VERSION
from probekit.activations.layout import Layout
from probekit.activations.store.examples import check_examples, write_examples
from probekit.activations.store.format import AGAIN, FORMAT, MAX_RECORDS, MAX_ROWS, PlanFile, read_plan
from probekit.errors import ResumeMismatch, StorageError, UsageError
from probekit.files.durable import TEMPORARY, entries, is_there, make_folders, remove_stale
from probekit.files.remote.path import AnyPath
from probekit.files.run import ELSEWHERE, begin_run, differing, refuse_others, value_shown
from probekit.interventions import one_place_in_words
from probekit.selections import Selection
from probekit.tasks.base import Task

CONTINUATIONS = "continuations"  # the folder of what the model wrote, before there is a plan
DERIVED = ("widths", "shards", "rows")  # fields of an identity that follow from others, which say more
SHARING = ("share", "block_nodes")  # these follow from edits
EXPLAINED = {
    "task_fingerprint": " (texts, labels or splits; a seed or a limit changes them)",
    "model_fingerprint": " (the weights, in the type that computes)",
    "arithmetic": " (the order of its sums, which decides the last digits)",
}
UNSAID = {"via": "probekit", "quantize": None}  # what an identity without these fields means


@dataclass(frozen=True, eq=False)
class NewStore:
    """Everything that is known of a store before its first shard.

    Attributes:
        identity: the settings that decide the bits; must equal those of a store that is there.
        model: name of the model, for people; the identity holds the fingerprint.
        task: the examples.
        layout: how many rows each has at a place.
        positions: those that were requested.
        source: arguments with which `load_model` loads the model again, JSON-able.
        meta: provenance for the manifest, JSON-able; it is kept in the plan, so that a lost manifest can be rewritten.
    """

    identity: dict[str, Any]
    model: str
    task: Task
    layout: Layout
    positions: Sequence[Selection]
    source: dict[str, Any] | None
    meta: dict[str, Any]


def begin_store(path: AnyPath, new: NewStore) -> PlanFile:
    """Write plan and examples at `path`, unless the same store is there already.

    Raises:
        ResumeMismatch: `path` holds a store with another identity; the message names every field that differs.
        StorageError: the disk refused, `path` holds something else, or a damaged store.
        UsageError: more texts or shards than one store can hold.
    """
    _check_size(new.identity)
    check_free(path)
    make_folders(path, "shards", "records")
    about = {key: value for key, value in new.meta.items() if key != "created"}
    body = {"format": FORMAT, "model": new.model, "task": new.task.name, "identity": new.identity}
    body |= {"source": new.source, "meta": about}
    begin_run(path, body, "is of another store", lambda _, ours: check_same(path, read_plan(path), ours), AGAIN)
    plan = read_plan(path)
    if not is_there(path / "examples.json"):
        remove_stale(path / "examples")
        write_examples(path, new.task, new.layout, new.positions)
    else:
        check_examples(path, plan)  # with damaged examples, shards that are computed now would be lost
    return plan


def _check_size(identity: dict[str, Any]) -> None:
    """Refuse what a store could not be finished with, before anything is computed."""
    for what, n, most in (("texts", identity["rows"], MAX_ROWS - 1), ("shards", identity.get("shards"), MAX_RECORDS)):
        if n is not None and n > most:
            raise UsageError(
                f"{n:,} {what} are more than the {most:,} of one store; split the task, or keep fewer layers or tokens "
                "(--position), or sums alone (--stats-only)"
            )


def check_free(path: AnyPath) -> bool:
    """True if a store was begun at `path`; refuse a folder with files that are not of a store.

    Raises:
        StorageError: there are some, `path` is an object, or the disk refused.
    """
    if is_there(path / "plan.json"):
        return True
    if path.is_file():
        raise StorageError(f"{str(path)!a} is an object or a file, expected the place of a store; name another")
    names = {one.path.name for one in entries(path) if not one.path.name.startswith(TEMPORARY)}
    other = names - {"shards", "records", CONTINUATIONS}
    if other or ("records" in names and any((path / "records").glob("*.json"))):
        if is_there(path / "plan.json"):
            return True  # another writer began meanwhile
        raise StorageError(f"{str(path)!a} holds files that are not of a store; name an empty or a new folder")
    return False


def check_same(path: AnyPath, plan: PlanFile, wanted: dict[str, Any], advice: str = ELSEWHERE) -> None:
    """Compare the identity of the store at `path` with that of this run.

    Args:
        path: the store.
        plan: its plan.
        wanted: identity, model and task of this run, as JSON gives them back.
        advice: what to do if they differ.

    Raises:
        ResumeMismatch: they differ; the message names every field.
    """
    refuse_old(path, plan, wanted["identity"].get("version"))
    stored, ours = ({**UNSAID, **_flat(identity)} for identity in (plan.identity, wanted["identity"]))
    fields = differing(stored, ours)
    if not fields:
        return
    fields = [key for key in fields if key not in DERIVED] or fields
    if "via" in fields and "kind" not in fields:  # config and fingerprint differ too, which says nothing
        fields = [key for key in fields if key in UNSAID]
    if any(key.startswith("edit") for key in fields):
        fields = [key for key in fields if key not in SHARING]
    stored |= {"model": plan.model, "task": plan.task}
    ours |= {key: wanted[key] for key in ("model", "task")}
    fields = [key for key in ("model", "task") if stored[key] != ours[key]] + fields
    what = f"{str(path)!a} was made with other settings"
    # the configs of one family do not have the same fields, or its activations came from other arithmetic
    of_config = any(key.startswith("config.") for key in stored.keys() ^ ours.keys())
    same_family = "family" in ours and stored.get("family") == ours["family"]
    if same_family and (of_config or stored.get("arithmetic") != ours.get("arithmetic")):
        what = f"{str(path)!a} was made by another version of probekit"
        advice = "a complete store can still be loaded; to resume or repair it, use that version, or extract again"
    raise refuse_others(what, fields, stored, ours, EXPLAINED, advice, _shown)


def refuse_old(path: AnyPath, plan: PlanFile, version: int = FORMAT_VERSION) -> None:
    """Raise a ResumeMismatch if a store that is to be written to has another format than `version`."""
    if (there := plan.identity.get("version")) != version:
        raise ResumeMismatch(
            f"{str(path)!a} has format {there}, which this probekit reads and does not write (format {version}): it "
            "can still be loaded; to go on, extract to another folder"
        )


def _flat(identity: dict[str, Any]) -> dict[str, Any]:
    flat = {key: value for key, value in identity.items() if not isinstance(value, dict)}
    for key, value in identity.items():
        flat |= {f"{key}.{inner}": v for inner, v in value.items()} if isinstance(value, dict) else {}
    return flat


def _shown(flat: Mapping[str, Any], key: str) -> str:
    if key.startswith("edits.") and key in flat:
        return one_place_in_words(flat[key])
    return value_shown(flat, key)

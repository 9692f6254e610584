"""List the stores under a folder, and find the newest one."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from probekit.activations.parts.cut import missing_parts, parts_in_words
from probekit.activations.store.format import PlanFile, has_manifest, read_plan
from probekit.activations.store.reader import Store
from probekit.activations.store.writer import CONTINUATIONS
from probekit.activations.sums.statistics import FOLDER as STATISTICS
from probekit.activations.sums.statistics import load_statistics, statistics_progress
from probekit.errors import ProbekitError, StorageError
from probekit.files.durable import each_of, entries
from probekit.files.remote.attempts import NotReached
from probekit.files.remote.path import AnyPath
from probekit.manifest import dated_manifests, no_store_under, results_home
from probekit.options.check import check_any_path
from probekit.points import LATENTS, spans_of
from probekit.results.kinds import KINDS
from probekit.text import counted, listed, printable

_INSIDE = {"shards", "records", "examples", "labels", LATENTS, STATISTICS}  # folders of a store without stores


@dataclass(frozen=True)
class StoreInfo:
    """One line of `probekit ls`; fields that a damaged store can no longer give are empty.

    Attributes:
        path: the store.
        state: "complete", "statistics" without activations, "3 of 7 rows", "3 of 7 texts counted" or "damaged".
        model: its name.
        task: its name.
        places: points and layers.
        rows: examples of the complete store.
        bytes: of shards and statistics.
        created: ISO 8601, UTC; empty until complete.
        statistics: True if the store holds statistics.
        edits: what the model ran with: "project_out at resid_pre.5, all tokens".
        labels: label sets of the complete store.
        verified: of an import, how many rows were compared with the model's own forward pass: "20 rows verified", "not
            verified"; empty of an extraction.
        latents: what autoencoders read whose latents are kept, and their names: "resid_post.5 of my_sae".
        missing: of an unfinished store made in parts, those that lack shards or statistics: "part 2/4 (1 of 3 shards)".
    """

    path: AnyPath
    state: str
    model: str = ""
    task: str = ""
    places: str = ""
    rows: int = 0
    bytes: int = 0
    created: str = ""
    statistics: bool = False
    edits: str = ""
    labels: list[str] = field(default_factory=list)
    verified: str = ""
    latents: list[str] = field(default_factory=list)
    missing: str = ""

    @property
    def is_complete(self) -> bool:
        """True if the store can be loaded."""
        return self.state == "complete"

    @property
    def results(self) -> list[Path]:
        """The folders in the store that hold results."""
        return sorted(path.parent for kind in KINDS.values() for path in results_home(self.path).glob(f"*/{kind.file}"))

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {**asdict(self), "path": str(self.path), "results": [str(path) for path in self.results]}

    def __str__(self) -> str:
        """The store in one line, without its path."""
        if not self.model:
            return self.state
        size = f"{counted(self.rows, 'text')}, {self.bytes / 1e6:,.1f} MB"
        edits = f"; edited: {self.edits}" if self.edits else ""
        state = "complete, with statistics" if self.is_complete and self.statistics else self.state
        labels = f"; labels {listed([printable(one) for one in self.labels])}" if self.labels else "; no labels"
        labels = labels if self.is_complete else f"; missing in {self.missing}" if self.missing else ""
        verified = f"; {self.verified}" if self.verified else ""
        latents = f"; latents {listed(self.latents, most=3)}" if self.latents else ""
        return f"{state}: {self.model} on {self.task}, {self.places}, {size}{edits}{labels}{verified}{latents}"


def list_stores(root: str | AnyPath = "runs") -> list[StoreInfo]:
    """Every store at `root` or below, by path; damaged stores are listed as such.

    Raises:
        StorageError: an object store refused a request or did not answer.
    """
    root = check_any_path("the folder", root)
    return list(each_of(root, _info, sorted(_stores(root))))


def _stores(folder: AnyPath) -> Iterator[AnyPath]:
    """The stores at a place or below; the files inside a store, which may be many, are not listed."""
    try:
        found = entries(folder)
    except NotReached:
        raise
    except StorageError:  # a folder of another user
        return
    files, folders = ({one.path.name for one in found if one.is_folder is kind} for kind in (False, True))
    is_store = bool({"plan.json", "manifest.json"} & files) and ("records" in folders or "examples.json" in files)
    if is_store:
        yield folder
    for name in folders:
        if not (name == CONTINUATIONS or (is_store and name in _INSIDE)):
            yield from _stores(folder / name)


def newest_store(root: str | AnyPath = "runs") -> AnyPath:
    """The complete store at `root` or below that was finished, or requested again, last.

    Stores inside another one, such as its random-init baseline, are left out.

    Raises:
        DataError: there is none.
    """
    root = check_any_path("the folder", root)
    for _, path in sorted(dated_manifests(root), reverse=True):
        if _info(path).is_complete:
            return path
    raise no_store_under(root)


def _info(path: AnyPath) -> StoreInfo:
    size = _size(path)
    try:
        plan = read_plan(path)
    except NotReached:
        raise
    except (ProbekitError, OSError):
        return StoreInfo(path, "damaged", bytes=size)
    known: dict[str, Any] = {
        "model": plan.model,
        "task": plan.task,
        "places": spans_of(plan.places),
        "edits": plan.edits,
        "rows": plan.rows,
        "bytes": size,
    }
    try:
        known["statistics"] = any(path.glob("statistics/*.json"))
        if has_manifest(path):
            store = Store(path)
            known["labels"] = [*store.labels, *store.task.token_labels]
            known["latents"] = [f"{one.reads} of {printable(Path(one.name).name)}" for one in store.kept_latents()]
            state, created = "complete", store.meta["created"]
            if store.meta.get("kind") == "import":
                n = (store.meta.get("verified") or {}).get("rows", 0)
                known["verified"] = f"{counted(n, 'row')} verified" if n else "not verified"
        else:
            state, created, known["missing"] = _state(path, plan)
    except NotReached:
        raise
    except (ProbekitError, OSError):
        return StoreInfo(path, "damaged", **known)
    return StoreInfo(path, state, created=created, **known)


def _state(path: AnyPath, plan: PlanFile) -> tuple[str, str, str]:
    """The state of an unfinished store, the date of its statistics, and the parts that are missing."""
    stored, total = Store.progress(path)
    counted = None if stored else statistics_progress(path)
    if counted == (total, total):
        return "statistics", str(load_statistics(path).meta["created"]), ""
    if counted:
        return f"{counted[0]} of {total} texts counted", "", parts_in_words(missing_parts(path, plan, counted=True))
    return f"{stored} of {total} rows", "", parts_in_words(missing_parts(path, plan))


def _size(path: AnyPath) -> int:
    """Bytes of shards, statistics and kept latents; files that disappear meanwhile count as nothing."""
    try:
        kept = [one.path for one in entries(path / LATENTS)]
        inside = [one for folder in (path / "shards", path / STATISTICS, *kept) for one in entries(folder)]
    except NotReached:
        raise
    except StorageError:
        return 0
    return sum(one.st_size for one in inside if one.path.suffix == ".safetensors")

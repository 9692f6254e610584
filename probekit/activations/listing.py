"""Where stores stand: the folder that a plan gets by default, and what there is under a folder."""

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from probekit.activations.plan.identity import digest_of
from probekit.activations.plan.plan import ExtractionPlan
from probekit.activations.store.format import read_plan
from probekit.activations.store.reader import Store
from probekit.activations.sums.statistics import load_statistics, statistics_progress
from probekit.errors import DataError, ProbekitError
from probekit.points import spans_of


@dataclass(frozen=True)
class StoreInfo:
    """One line of `probekit ls`; what a damaged store no longer tells is empty."""

    path: Path
    state: str  # "complete", "statistics" without activations, "3 of 7 rows" or "damaged"
    model: str = ""
    task: str = ""
    places: str = ""
    rows: int = 0
    bytes: int = 0
    created: str = ""  # ISO 8601, UTC; empty until complete
    statistics: bool = False  # whether sums stand beside the activations, or alone

    @property
    def is_complete(self) -> bool:
        """Whether it can be read."""
        return self.state == "complete"

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {**asdict(self), "path": str(self.path)}


def default_path(plan: ExtractionPlan, root: str | Path = "runs") -> Path:
    """The store of this plan under `root`: equal plans find the same one, so that the same command goes on with it."""
    parts = [plan.model.name, plan.task.name, "-".join(plan.points), "+".join(plan.reading.names), digest_of(plan)[:8]]
    return Path(root) / folder_name(parts)


def folder_name(parts: Iterable[str]) -> str:
    """One name for a folder, of parts that hold anything."""
    return "-".join(_clean(part) for part in parts)


def _clean(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-_")[:48] or "unnamed"


def list_stores(root: str | Path = "runs") -> list[StoreInfo]:
    """Every store at `root` or below, by path; a damaged one says so, and no store makes this raise."""
    folders = sorted(
        Path(folder)
        for folder, inside, files in os.walk(root)
        if "records" in inside and {"plan.json", "manifest.json"} & set(files)
    )
    return [_info(folder) for folder in folders]


def newest_store(root: str | Path = "runs") -> Path:
    """The complete store at `root` or below that was finished last, or asked for again since.

    One that stands inside another, as its random-init baseline does, is not meant.

    Raises:
        DataError: there is none.
    """
    for _, path in sorted(_dated(Path(root)), reverse=True):
        if _info(path).is_complete:
            return path
    raise DataError(f"no complete store under {str(root)!a}; make one with probekit extract, or name one")


def _dated(root: Path) -> Iterator[tuple[int, Path]]:
    """(date of the manifest, store) of what looks complete."""
    with contextlib.suppress(OSError):
        for manifest in root.rglob("manifest.json"):
            with contextlib.suppress(OSError):
                if not (manifest.resolve().parents[1] / "plan.json").exists():
                    yield manifest.stat().st_mtime_ns, manifest.parent


def _info(path: Path) -> StoreInfo:
    size = _size(path)
    try:
        plan = read_plan(path)
    except (ProbekitError, OSError):
        return StoreInfo(path, "damaged", bytes=size)
    known: dict[str, Any] = {
        "model": plan.model,
        "task": plan.task,
        "places": spans_of(plan.places),
        "rows": plan.rows,
        "bytes": size,
    }
    try:
        known["statistics"] = any(path.glob("statistics/*.json"))
        if not (path / "manifest.json").exists():
            kept, total = Store.progress(path)
            counted = None if kept else statistics_progress(path)
            if not kept and counted == (total, total):
                return StoreInfo(path, "statistics", created=str(load_statistics(path).meta["created"]), **known)
            if not kept and counted:
                return StoreInfo(path, f"{counted[0]} of {total} texts counted", **known)
            return StoreInfo(path, f"{kept} of {total} rows", **known)
        return StoreInfo(path, "complete", created=Store(path).meta["created"], **known)
    except (ProbekitError, OSError):
        return StoreInfo(path, "damaged", **known)


def _size(path: Path) -> int:
    """Bytes of shards and statistics; one that goes away meanwhile has none."""
    size = 0
    with contextlib.suppress(OSError):
        for shard in path.glob("s*/*.safetensors"):
            with contextlib.suppress(OSError):
                size += shard.lstat().st_size
    return size

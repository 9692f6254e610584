"""What a store's manifest says of its places, read without torch: a wrong option is then refused at once.

Opening the store (`probekit.activations`) checks everything, and says what is wrong with one that cannot be opened.
"""

import contextlib
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from probekit.errors import DataError, ProbekitError
from probekit.files.durable import is_there, unseal
from probekit.files.records import has_form
from probekit.files.remote.path import AnyPath, local_path
from probekit.files.run import question_digest
from probekit.points import NamedPlaces, Place
from probekit.selections import Selection
from probekit.text import by_numbers


class _Manifest(TypedDict):
    places: list[tuple[str, int | None]]
    points: list[str]
    n_layers: int
    output: NotRequired[str | None]
    position: Any


class StoredPlaces(NamedPlaces):
    """The places of a store, and the positions that were kept of each text."""

    @property
    def positions(self) -> list[Selection]:
        """Their names: ["last"], ["first", "last"], ["all"]."""
        kept = self.meta["position"]
        return [Selection.named(one) for one in (kept if isinstance(kept, list) else [kept])]


def check_is_store(path: AnyPath) -> None:
    """Raise a DataError if there is neither a plan nor a manifest at `path`."""
    if not is_store(path):
        raise DataError(f"no store at {str(path)!a}; make one with probekit extract")


def stores_in(folder: AnyPath) -> list[AnyPath]:
    """The stores directly in a folder that is none itself, such as those of several checkpoints, step2 before step10.

    None for a store, and where no folder is.
    """
    if is_store(folder) or not folder.is_dir():
        return []
    inside = [each for each in folder.iterdir() if each.is_dir() and is_store(each)]
    return sorted(inside, key=lambda each: by_numbers(each.name))


def is_store(path: AnyPath) -> bool:
    """Whether a plan or a manifest is at `path`."""
    return any(is_there(path / name) for name in ("plan.json", "manifest.json"))


def results_home(store: AnyPath) -> Path:
    """The folder of a store's results: in the store, or under ./runs for one that is not on this machine."""
    if (here := local_path(store)) is not None:
        return here / "results"
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", str(store))[:100]
    return Path("runs", f"{plain}-{question_digest(str(store))[:8]}", "results")


def stored_places(path: AnyPath) -> StoredPlaces | None:
    """The places of the store at `path`; None if it is unfinished or damaged.

    Raises:
        DataError: no store there.
    """
    check_is_store(path)
    try:
        body, _ = unseal(path / "manifest.json")
    except (ProbekitError, OSError):
        return None
    if not has_form(_Manifest, body) or not body["points"]:
        return None
    return StoredPlaces([Place(point, layer) for point, layer in body["places"]], body)


def dated_manifests(root: AnyPath) -> Iterator[tuple[int, AnyPath]]:
    """(date of the manifest, store) of every store under `root` with a manifest, but for stores inside another."""
    with contextlib.suppress(OSError):
        for manifest in root.rglob("manifest.json"):
            with contextlib.suppress(OSError):
                store = manifest.resolve().parent
                if store.parent == store or not (store.parent / "plan.json").exists():
                    yield manifest.stat().st_mtime_ns, manifest.parent


def newest_manifest(root: AnyPath) -> AnyPath:
    """The store under `root` whose manifest is the newest; it may be damaged. Raises DataError: there is none."""
    found = max(dated_manifests(root), default=None)
    if found is None:
        raise no_store_under(root)
    return found[1]


def newest_with_results(root: AnyPath, files: Collection[str]) -> AnyPath:
    """The newest store under `root` that holds results, which have one of these files; the newest one if none does.

    Raises:
        DataError: no store there.
    """
    for _, store in sorted(dated_manifests(root), reverse=True):
        home = results_home(store)
        if any(file.name in files for depth in ("*/*.json", "*/*/*.json") for file in home.glob(depth)):
            return store
    return newest_manifest(root)


def no_store_under(root: AnyPath) -> DataError:
    """The error for a folder without a complete store."""
    return DataError(f"no complete store under {str(root)!a}; make one with probekit extract, or name one")

"""What of a store, or of a folder of results, is uploaded to the Hub.

A store becomes a dataset repository, results a model repository. Only files that belong to the store or to the results
are uploaded, byte for byte: a store's manifest holds checksums of all others.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probekit.activations import Store, verify
from probekit.activations.store.format import read_plan, read_records, record_path
from probekit.errors import DataError, StorageError, UsageError
from probekit.evaluation import ProbeCurves, ProbeResults
from probekit.files.durable import TEMPORARY
from probekit.files.hub import Kind
from probekit.files.remote.path import AnyPath, local_path
from probekit.manifest import is_store
from probekit.options.check import check_any_path, check_there
from probekit.results.kinds import refuse_other_kind
from probekit.text import counted, listed

STORE_FOLDERS = ("shards", "records", "examples", "labels", "statistics")
_OF_STORE = re.compile(rf"(plan|examples|manifest)\.json|({'|'.join(STORE_FOLDERS)})/.+")
RESULTS_FILES = r"results\.(json|csv)|predictions\.parquet|training_activations\.safetensors|\w+\.(png|svg|pdf)"
_OF_RESULTS = re.compile(rf"{RESULTS_FILES}|probes/[^/]+")
_OF_CURVES = re.compile(rf"curves\.json|results\.csv|\w+\.(png|svg|pdf)|[^/]+/({RESULTS_FILES}|probes/[^/]+)")
_LAST = {"plan.json", "manifest.json", "results.json", "curves.json"}


@dataclass(frozen=True)
class SharedFile:
    """A file to upload.

    Attributes:
        name: its path in the folder of the repository.
        path: where it is.
        size: its bytes.
        named_by_content: True if another content would have another name.
        is_last: True if it must not be seen before all others are there: readers take a folder with it for complete.
    """

    name: str
    path: Path
    size: int
    named_by_content: bool
    is_last: bool


@dataclass(frozen=True, eq=False)
class SharedFolder:
    """A store or results, and its files.

    Attributes:
        what: "store", "results" or "curves".
        kind: of the repository.
        path: the folder.
        source: the opened store, results or curves, from which the card is written.
        files: in the order of their names.
        own: which names in the repository belong to it.
        visible: what its files show of the data, in sentences.
    """

    what: str
    kind: Kind
    path: Path
    source: Any = field(repr=False)
    files: list[SharedFile] = field(repr=False)
    own: re.Pattern[str] = field(repr=False)
    visible: list[str]

    @property
    def n_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


def find_shared(source: str | AnyPath) -> SharedFolder:
    """The store or results at a path, checked as far as their records go.

    Raises:
        UsageError: nothing is there.
        DataError: neither a store nor results of probes.
        StorageError: an unfinished or damaged store.
    """
    path = check_any_path("what is pushed", source)
    if (here := local_path(path)) is None:
        raise UsageError(
            f"{str(path)!a} is in an object store, and only folders on disk are pushed; copy it here first"
        )
    path = check_there(here.expanduser())
    if is_store(path):
        return _store(path)
    for file in ("results.json", "curves.json"):
        if (path / file).is_file():
            return _results(path, file)
    refuse_other_kind(path)
    raise DataError(
        f"{str(path)!a} is neither a store nor a folder of results; give one that extract, import or train-probe wrote"
    )


def check_bytes(shared: SharedFolder) -> None:
    """Read every byte of a store, so that no damaged file is uploaded. Raises StorageError if one is."""
    if shared.what != "store":
        return  # results were read completely
    found = verify(shared.path)
    if not found.is_sound:
        broken = listed([one.file for one in found.broken], most=3)
        raise StorageError(f"{str(shared.path)!a} is damaged ({broken}), and was not uploaded; {found.advice}")


def _store(path: Path) -> SharedFolder:
    store, plan = Store(path), read_plan(path)
    records = read_records(path, plan)
    names = ["plan.json", "examples.json", "manifest.json"]
    names += [f"shards/{record.file}" for record, _ in records.values()]
    names += [f"records/{record_path(path, number).name}" for number in records]
    inside = [each for folder in ("examples", "labels", "statistics") for each in (path / folder).rglob("*")]
    names += [str(each.relative_to(path)) for each in inside if each.is_file() and not each.name.startswith(TEMPORARY)]
    task = store.task
    visible = [f"{counted(len(task), 'example')} with {counted(len(task.labels), 'label set')}"]
    visible += ["their texts, word for word"] if task.has_texts else []
    paths = {
        "the model was loaded": (plan.source or {}).get("name_or_path"),
        "the activations were imported": store.meta.get("source"),
    }
    visible += [
        f"the path {path!a}, from which {what}"
        for what, path in paths.items()
        if isinstance(path, str) and Path(path).is_absolute()
    ]
    return SharedFolder("store", "dataset", path, store, _files(path, names), _OF_STORE, visible)


def _results(path: Path, file: str) -> SharedFolder:
    several = file == "curves.json"
    source = ProbeCurves.load(path) if several else ProbeResults.load(path)
    own = _OF_CURVES if several else _OF_RESULTS
    names = [str(one.relative_to(path)) for one in path.rglob("*") if one.is_file()]
    visible = ["the ids, labels and scores of the test rows", "texts that the audit quotes"]
    what = "curves" if several else "results"
    return SharedFolder(
        what, "model", path, source, _files(path, [name for name in names if own.fullmatch(name)]), own, visible
    )


def _files(path: Path, names: list[str]) -> list[SharedFile]:
    """The files of these names; a link is not followed out of the folder."""
    found = []
    for name in sorted(set(names)):
        file = path / name
        if file.is_symlink():
            raise DataError(
                f"{str(file)!a} is a link, and only the files themselves are uploaded; replace it by its file"
            )
        found.append(SharedFile(name, file, file.stat().st_size, name.startswith("shards/"), name in _LAST))
    return found

"""Datasets of the Hugging Face Hub. No other module imports `datasets`."""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from probekit.errors import DataError
from probekit.files.hub import find_repo
from probekit.tasks.splitting.splits import SPLIT_NAMES, SPLITS, splits_of_names
from probekit.tasks.tables.data_table import DataTable
from probekit.text import counted, listed


def hub_tables(name: str) -> tuple[dict[str, DataTable], dict[str, Any]]:
    """Split -> table of a Hub dataset; and its source: id, revision, and whether the Hub was offline.

    The Hub is asked once; if it does not answer, the copy in the local cache is used.

    Raises:
        DataError: it cannot be loaded, or has no train, validation or test split.
    """
    repo = find_repo(name, "dataset")
    dataset = _load(repo.id, repo.revision, repo.offline)
    info = {"source": repo.id, "revision": repo.revision or _cached_revision(dataset), "offline": repo.offline}
    return dataset_tables(repo.id, dataset), info


def dataset_tables(name: str, dataset: Any, first: int = 1) -> dict[str, DataTable]:
    """Split -> table of a `DatasetDict`; other splits, such as "unsupervised", are left out, with a warning.

    Raises:
        DataError: no train, validation or test split.
    """
    tables: dict[str, DataTable] = {}
    splits = splits_of_names(map(str, dataset))
    for split, part in dataset.items():
        part_of = splits.get(str(split))
        if part_of is not None and part_of not in tables:
            tables[part_of] = dataset_table(f"{name} {split}", str(split), part, first)
    if not tables:
        raise DataError(
            f"{name} has no split named {' or '.join(SPLIT_NAMES)}, only "
            f"{listed([ascii(split) for split in dataset])}; give its files with --dataset PATH"
        )
    if others := [f"{split!a:.80}" for split in dataset if str(split) not in splits]:
        warnings.warn(
            f"{name}: {counted(len(others), 'split')} left out, {listed(others)}; they are called {', '.join(SPLITS)}",
            stacklevel=2,
        )
    return tables


def _load(repo_id: str, revision: str | None, offline: bool) -> Any:
    import datasets

    try:
        with _no_network() if offline else nullcontext():
            return datasets.load_dataset(repo_id, revision=revision)
    except Exception as error:
        # There is no common base class (ValueError, OSError, those of httpx). A DatasetGenerationError says only that
        # an error occurred; its cause says which.
        cause = error.__cause__ or error
        words = " ".join(str(cause).split())[:300] or type(cause).__name__
        raise DataError(
            f"dataset {repo_id!a} cannot be loaded: {ascii(words)[1:-1]}; give a file or folder: --dataset PATH"
        ) from None


def dataset_table(name: str, stem: str, part: Any, first: int = 1) -> DataTable:
    """The table of a `Dataset`, with the class names of its labels.

    Args:
        name: for errors.
        stem: of the ids of its examples.
        part: the `Dataset`.
        first: the number that errors give to its first row.
    """
    from datasets import ClassLabel

    return DataTable(
        name=name,
        stem=stem,
        columns=list(part.column_names),
        column=lambda column: part.select_columns([column])[:][column],
        lines=range(first, first + len(part)),
        typed=True,
        unit="row",
        class_names={k: list(v.names) for k, v in part.features.items() if isinstance(v, ClassLabel)},
    )


@contextmanager
def _no_network() -> Iterator[None]:
    """Do what HF_HUB_OFFLINE=1 does when set before the start; otherwise `datasets` waits minutes for a silent Hub."""
    import datasets.config
    import huggingface_hub.constants

    places: tuple[Any, ...] = (datasets.config, huggingface_hub.constants)
    before = [place.HF_HUB_OFFLINE for place in places]
    try:
        for place in places:
            place.HF_HUB_OFFLINE = True
        yield
    finally:
        for place, value in zip(places, before, strict=True):
            place.HF_HUB_OFFLINE = value


def _cached_revision(dataset: Any) -> str | None:
    """The commit that a cached copy was made from; `datasets` names the folder after it."""
    files = [file["filename"] for part in dataset.values() for file in part.cache_files]
    found = [match[1] for file in files if (match := re.search(r"[/\\]([0-9a-f]{40})[/\\]", file))]
    return found[0] if found else None

"""Several checkpoints of one model: a store for each revision, and a curve for each store."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probekit.cli import console
from probekit.errors import ProbekitError, UsageError
from probekit.files.remote.path import AnyPath
from probekit.options import ModelOptions, kinds
from probekit.text import listed

if TYPE_CHECKING:
    from probekit.evaluation.results.data import ProbeData


def revisions_of(model: ModelOptions) -> list[str]:
    """The revisions where --revision names several; none for a single one.

    Raises:
        UsageError: one twice, or two whose stores would have one name.
    """
    names = kinds.names(model.revision or "")
    if len(names) < 2:
        return []
    folders = [store_name(name).casefold() for name in names]
    if len(set(folders)) < len(folders):
        twice = next(name for name, folder in zip(names, folders, strict=True) if folders.count(folder) > 1)
        raise UsageError(f"--revision names {twice!a:.80} twice, or two names that differ in signs alone; give one")
    return names


def store_name(revision: str) -> str:
    """The folder of a revision's store: "refs/pr/1" -> "refs-pr-1"."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", revision).strip(".-") or "unnamed"


def at(name: str, done: int, total: int, error: ProbekitError) -> ProbekitError:
    """The error of one of several checkpoints, with its name and what is complete."""
    rest = f"; {done} of {total} are complete; run the same command again for the rest" if done else ""
    return type(error)(f"{name!a:.80}: {error}{rest}")


def train_each(stores: Sequence[AnyPath], train: Callable[[AnyPath], Path], json: bool, quiet: bool) -> None:
    """Train on each store and print a line for it, or one JSON object of all.

    Args:
        stores: in the order of their steps.
        train: trains on one, and returns the folder of its results.
        json: print JSON.
        quiet: print the folders alone.
    """
    found: list[dict[str, Any]] = []
    for number, store in enumerate(stores):
        try:
            folder = train(store)
        except ProbekitError as error:
            raise at(store.name, number, len(stores), error) from None
        found.append({"store": str(store), "results": str(folder), "curves": _curves(folder)})
        if json:
            continue
        lines = "; ".join(each["text"] for each in found[-1]["curves"])
        console.result(folder if quiet else f"{store.name:<12}  {lines}  {folder}")
    if json:
        console.result_json({"stores": found})
    elif not quiet:
        console.note(f"compare them: probekit compare {stores[0].parent} --by step")


def _curves(folder: Path) -> list[dict[str, Any]]:
    """What the results in a folder quote, by curve; none for results without a curve."""
    from probekit.evaluation.results.files import load_results
    from probekit.evaluation.results.several import load_several

    if (folder / "curves.json").is_file():
        return [_quoted(curve) for curve in load_several("curves", folder, load_results)[0]]
    return [_quoted(load_results(folder))] if (folder / "results.json").is_file() else []


def _quoted(curve: "ProbeData") -> dict[str, Any]:
    from probekit.evaluation.results.coordinates import coordinates
    from probekit.evaluation.results.report import short_text

    best, quoted = curve.selected, curve.quoted
    return {
        **coordinates(curve.meta),
        "best": None if best is None else best.place,
        "metric": curve.headline,
        "estimate": None if quoted is None else quoted.value,
        "interval": None if quoted is None or quoted.interval is None else list(quoted.interval),
        "text": short_text(curve),
    }


def summary_line(names: Sequence[str]) -> str:
    """How many revisions there are, for the plan."""
    return f"revisions {len(names)}: {listed(list(names), most=6)}; a store for each, planned as above"

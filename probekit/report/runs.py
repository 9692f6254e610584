"""What a report is about: results in folders and stores, each with its store and causal results if they are there."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probekit.activations import Store, load_activations
from probekit.causal.results.results import CausalResults
from probekit.errors import DataError, ProbekitError
from probekit.evaluation import HeadResults, PositionResults, ProbeCurves, ProbeGrids, ProbeResults, TransferResults
from probekit.evaluation.results.coordinates import within_text
from probekit.evaluation.results.data import ProbeData
from probekit.evaluation.results.grids import CLASSES
from probekit.machine.progress import SILENT
from probekit.options.question import told_apart
from probekit.results.kinds import kind_in
from probekit.text import printable


@dataclass(frozen=True, eq=False)
class ReportRun:
    """Results of one kind, and what belongs to them.

    Attributes:
        folder: where they were.
        results: `ProbeResults`, `PositionResults`, `TransferResults` or `CausalResults`.
        causal: of a curve, folder -> what edits along its directions do.
        store: the activations that they are of; None where they were not found, or are others now.
        asked: the options that they answer; those of all curves of a folder that holds several.
    """

    folder: Path
    results: Any
    causal: dict[Path, CausalResults] = field(default_factory=dict)
    store: Store | None = None
    asked: Mapping[str, Any] | None = None


def load_runs(
    paths: Sequence[Path], store: Path | None = None, progress: Callable[[int, int], None] = SILENT.advance
) -> list[ReportRun]:
    """The results in folders of results and in stores, in this order; several curves of one folder are several runs.

    Causal results come with the curve that they are of, or alone where it is not among the runs. `store` is the one
    that results elsewhere are of; `progress` is called with (folders read, folders).

    Raises:
        DataError: no results at a path, or incomplete ones; `store` is no store.
    """
    given = None if store is None else load_activations(store, "size")
    folders = list(dict.fromkeys(folder for path in paths for folder in _folders(path)))
    runs: list[ReportRun] = []
    for i, folder in enumerate(folders):
        progress(i, len(folders))
        runs += _runs_in(folder, given)
    if given is not None and not any(run.store is not None and run.store.path == given.path for run in runs):
        raise DataError(f"the results are not of the store {str(store)!a}, or of other activations than it holds now")
    told = {folder for run in runs for folder in run.causal}
    return [run for run in runs if run.folder not in told]


def _folders(path: Path) -> Iterator[Path]:
    """The folders of results at a path: itself, or those in a store."""
    if _kind_shown(path) is not None:
        yield path
        return
    if not (path / "plan.json").is_file():
        raise DataError(
            f"no results and no store at {str(path)!a}; give a folder that train-probe, transfer or causal wrote, or a "
            "store that holds such folders"
        )
    inside = [folder for folder in _subfolders(path / "results") if _kind_shown(folder) is not None]
    if not inside:
        raise DataError(f"the store {str(path)!a} holds no results; run probekit train-probe on it first")
    yield from sorted(inside, key=lambda folder: (folder / "causal.json").is_file())


def _kind_shown(folder: Path) -> str | None:
    """The kind of the results in a folder; a comparison has no page."""
    kind = kind_in(folder)
    return None if kind == "comparison" else kind


def _subfolders(path: Path) -> list[Path]:
    return sorted(folder for folder in path.iterdir() if folder.is_dir()) if path.is_dir() else []


def _runs_in(folder: Path, given: Store | None) -> list[ReportRun]:
    store, kind = _store_of(folder) or given, kind_in(folder)
    if kind == "curves":
        curves = ProbeCurves.load(folder)
        return [_of_curve(folder, curve, store, curves.meta) for curve in curves.values()]
    if kind == "curve":
        results = ProbeResults.load(folder)
        return [_of_curve(folder, results, store, results.meta)]
    if kind == "grids":
        grids = ProbeGrids.load(folder)
        return [_of_grid(folder, grid, store, grids.meta) for grid in grids.values()]
    if kind in CLASSES:
        grid = CLASSES[kind].load(folder)
        return [_of_grid(folder, grid, store, grid.meta)]
    causal = CausalResults.load(folder)
    return [ReportRun(folder, causal, store=store, asked=causal.meta.get("asked"))]


def _of_curve(folder: Path, curve: ProbeResults, store: Store | None, about: Mapping[str, Any]) -> ReportRun:
    return ReportRun(folder, curve, _causal_of(folder, curve), _matching(store, curve.meta), about.get("asked"))


def _of_grid(folder: Path, grid: Any, store: Store | None, about: Mapping[str, Any]) -> ReportRun:
    return ReportRun(folder, grid, store=_matching(store, grid.meta), asked=about.get("asked"))


def _causal_of(folder: Path, curve: ProbeData) -> dict[Path, CausalResults]:
    """The causal results next to a folder of results that name it as their probes."""
    found = {}
    for other in _subfolders(folder.parent):
        if (other / "causal.json").is_file():
            causal = CausalResults.load(other)
            same = all(causal.meta.get(key) == curve.meta[key] for key in ("model", "label"))
            if same and (causal.meta.get("asked") or {}).get("probes") == folder.name:
                found[other] = causal
    return found


def _store_of(folder: Path) -> Store | None:
    """The store that a folder of results is in, if it can be opened."""
    path = (folder if len(folder.parts) > 2 else folder.resolve()).parents[1]
    if not (path / "plan.json").is_file():
        return None
    try:
        return load_activations(path, "size")
    except ProbekitError:
        return None


def _matching(store: Store | None, meta: Mapping[str, Any]) -> Store | None:
    """The store, unless its activations or texts are others than those of the results, or of any of their tasks."""
    read = meta.get("activations") or {}
    each = read if isinstance(read, list) else [read]
    if store is None or not any(all(store.meta.get(key, one[key]) == one[key] for key in one) for one in each):
        return None
    return store


def _axis(results: PositionResults) -> str:
    return "head" if isinstance(results, HeadResults) else "position"


def titles_of_runs(runs: Sequence[ReportRun]) -> list[str]:
    """What each run is of, in a few words, each another: with the task where needed, then options, or a number."""
    titles = [title_of_run(run) for run in runs]
    tasks = [f"{one} on {printable(run.results.meta.get('task'))}" for one, run in zip(titles, runs, strict=True)]
    longer = [task if titles.count(one) > 1 else one for one, task in zip(titles, tasks, strict=True)]
    for title in {title for title in longer if longer.count(title) > 1}:
        same = [i for i, one in enumerate(longer) if one == title]
        asked = [one for i in same if isinstance(one := runs[i].asked, Mapping) and "stores" not in one]
        if len(asked) == len(same):
            for i, words in zip(same, told_apart(asked, "train-probe"), strict=True):
                longer[i] = f"{title}, {printable(words)}"
    return [f"{one} ({i + 1})" if longer.count(one) > 1 else one for i, one in enumerate(longer)]


def title_of_run(run: ReportRun) -> str:
    """What a run is of, in a few words."""
    meta = run.results.meta
    if isinstance(run.results, TransferResults):
        shift = meta.get("shift")
        what = f"shift of {printable(meta['label'])} over {printable(shift['column'])}" if shift else "transfer"
        parts = [str(meta["point"]), within_text(meta)]
        return f"{what} in {printable(meta['model'])}: {', '.join(printable(part) for part in parts if part)}"
    parts = [str(meta[key]) for key in ("label", "point", "probe") if meta.get(key)]
    parts += [within] if (within := within_text(meta)) else []
    if isinstance(run.results, PositionResults):
        parts.append(f"by {_axis(run.results)}")
    return f"{', '.join(map(printable, parts))} in {printable(meta['model'])}"


def names_of_causal(run: ReportRun) -> list[str]:
    """What sets each causal run of a curve apart: the options in which they differ, or a number; "" for one alone."""
    if len(run.causal) < 2:
        return [""] * len(run.causal)
    asked = [{**(one.meta.get("asked") or {}), **(one.meta.get("files") or {})} for one in run.causal.values()]
    return told_apart(asked, "causal")

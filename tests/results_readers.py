"""Everything that reads a folder of results: functions of the folder, which give what they would show."""

import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from results_folders import TEXTS

import probekit as pk
from probekit.causal.curve.find import can_be_used, record_of_probes
from probekit.causal.curve.refusals import check_curve
from probekit.causal.results.results import CausalResults
from probekit.evaluation import HeadResults, PositionResults, ProbeCurves, ProbeGrids, ProbeResults, TransferResults
from probekit.options.export import CARD, KINDS, TABLES
from probekit.plots import save_sweep_plot
from probekit.scoring.find import find_results, split_name
from probekit.sharing.cards import card_of
from probekit.sharing.contents import find_shared
from probekit.side_by_side.results import Comparison
from probekit.sweeps import SweepResults

CLASSES: dict[str, Any] = {
    "grids.json": ProbeGrids,
    "curves.json": ProbeCurves,
    "results.json": ProbeResults,
    "positions.json": PositionResults,
    "heads.json": HeadResults,
    "transfer.json": TransferResults,
    "causal.json": CausalResults,
    "comparison.json": Comparison,
    "sweep.json": SweepResults,
}
NOT_REPORTED = ("comparison.json", "sweep.json")
WITH_PROBES = ("curves.json", "results.json")
SHOWN = ("text", "html", "report", "score", "compare", "tokens", "upload", "export card", "export latex")
"""Readers whose output is for people, who must never see a nan."""

Reader = Callable[[Path], str]


def class_of(folder: Path) -> Any:
    """The class of the results in a folder."""
    return next(kind for name, kind in CLASSES.items() if (folder / name).is_file())


def readers_of(folder: Path, model: Any) -> dict[str, Reader]:
    """The readers of this kind of results by name; `model` is the one that they are of."""
    kind = class_of(folder)
    file = next(name for name, one in CLASSES.items() if one is kind)
    found: dict[str, Reader] = {
        "text": lambda path: f"{(loaded := kind.load(path))!r}\n{loaded.summary()}",
        "html": lambda path: kind.load(path)._repr_html_(),
        "table": functools.partial(_tables, kind),
        "picture": functools.partial(_drawn, kind),
    }
    if file not in NOT_REPORTED:
        found["report"] = _report
    if file in WITH_PROBES:
        place = ":kind/resid_pre" if file == "curves.json" else ""
        found |= {
            "score": functools.partial(_scored, model, place),
            "probe": lambda path: str(pk.load_probe(f"{path}{place}").get_params()),
            "compare": functools.partial(_compared, folder.with_name("folds")),
            "upload": lambda path: card_of(find_shared(path), "hf://a/b", None),
            "tokens": functools.partial(_tokens, model, place),
            "causal": functools.partial(_asked, place),
        }
        found |= {f"export {to}": functools.partial(_exported, to, place) for to in KINDS}
    return found


def _tables(kind: Any, folder: Path) -> str:
    return str(kind.load(folder).to_frame())


def _drawn(kind: Any, folder: Path) -> str:
    loaded = kind.load(folder)
    try:
        if kind is SweepResults:
            save_sweep_plot(loaded, folder.parent)
        else:
            loaded.plot()
    finally:
        plt.close("all")
    return ""


def _report(folder: Path) -> str:
    out = folder.with_name("report.html")
    out.unlink(missing_ok=True)
    pk.write_report([folder], out)
    return out.read_text()


def _scored(model: Any, place: str, folder: Path) -> str:
    results, named = find_results(*split_name(f"{folder}{place}"))
    return results.score(model, TEXTS[:3], place=named, any_model=True).summary()


def _compared(other: Path, folder: Path) -> str:
    found = pk.compare([folder, other])
    found.to_frame()
    return found.summary()


def _tokens(model: Any, place: str, folder: Path) -> str:
    return find_results(*split_name(f"{folder}{place}"))[0].tokens(model, TEXTS[:2])._repr_html_()


def _asked(place: str, folder: Path) -> str:
    """What `probekit causal` reads before it loads a model, and when it does."""
    can_be_used(record_of_probes(folder))
    check_curve(find_results(*split_name(f"{folder}{place}"))[0].meta)
    return ""


def _exported(to: str, place: str, folder: Path) -> str:
    out = folder.with_name(f"exported-{to}")
    shutil.rmtree(out, ignore_errors=True) if out.is_dir() else out.unlink(missing_ok=True)
    if to in TABLES and (folder / "curves.json").is_file():
        ProbeCurves.load(folder).export(to=to, out=out)
    else:
        results, named = find_results(*split_name(str(folder) if to in TABLES else f"{folder}{place}"))
        results.export(named, to=to, out=out)
    return (out / "README.md" if to == CARD else out).read_text(errors="replace")

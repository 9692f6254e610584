"""Everything that reads a folder of results, each as a function of the folder that says what it made of it."""

import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from results_folders import TEXTS

import probekit as pk
from probekit.causal.curve.refusals import check_curve
from probekit.causal.results.results import CausalResults
from probekit.evaluation import HeadResults, PositionResults, ProbeCurves, ProbeResults, TransferResults
from probekit.options.export import TABLES, WEIGHTS
from probekit.scoring.find import find_results, split_name
from probekit.sharing.cards import card_of
from probekit.sharing.contents import find_shared
from probekit.side_by_side.results import Comparison
from probekit.sweeps import SweepResults

KINDS: dict[str, Any] = {
    "curves.json": ProbeCurves,
    "results.json": ProbeResults,
    "positions.json": PositionResults,
    "heads.json": HeadResults,
    "transfer.json": TransferResults,
    "causal.json": CausalResults,
    "comparison.json": Comparison,
    "sweep.json": SweepResults,
}
REPORTED = set(KINDS) - {"comparison.json", "sweep.json"}
PROBED = {"curves.json", "results.json"}

Reader = Callable[[Path], str]


def readers_of(folder: Path, model: Any) -> dict[str, Reader]:
    """The readers of this kind of results by name; `model` is the one that they are of."""
    file = next(name for name in KINDS if (folder / name).is_file())
    kind = KINDS[file]
    found: dict[str, Reader] = {
        "text": functools.partial(_text, kind),
        "html": lambda path: kind.load(path)._repr_html_(),
        "table": lambda path: str(_frame(kind.load(path))),
        "picture": functools.partial(_drawn, kind),
    }
    if file in REPORTED:
        found["report"] = _report
    if file in PROBED:
        place = ":kind/resid_pre" if file == "curves.json" else ""
        found |= {
            "score": functools.partial(_scored, model, place),
            "probe": lambda path: str(pk.load_probe(f"{path}{place}").get_params()),
            "compare": functools.partial(_compared, folder.with_name("folds")),
            "upload": lambda path: card_of(find_shared(path), "hf://a/b", None),
            "tokens": functools.partial(_tokens, model, place),
            "causal": functools.partial(_asked, place),
        }
        found |= {f"export {to}": functools.partial(_exported, to, place) for to in [*TABLES, *WEIGHTS, "card"]}
    return found


def _text(kind: Any, folder: Path) -> str:
    loaded = kind.load(folder)
    return f"{loaded!r}\n{loaded.summary()}"


def _frame(loaded: Any) -> Any:
    if isinstance(loaded, CausalResults):
        return [loaded.to_frame(name) for name in ("effects", "layers", "patching")]
    return loaded.to_frame()


def _drawn(kind: Any, folder: Path) -> str:
    try:
        kind.load(folder).plot()
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


def _compared(good: Path, folder: Path) -> str:
    found = pk.compare([folder, good])
    _drawn_comparison(found)
    return found.summary()


def _drawn_comparison(found: Comparison) -> None:
    found.to_frame()
    found.differences_frame()
    found.places_frame()


def _tokens(model: Any, place: str, folder: Path) -> str:
    results, _ = find_results(*split_name(f"{folder}{place}"))
    return results.tokens(model, TEXTS[:2])._repr_html_()


def _asked(place: str, folder: Path) -> str:
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
    return out.read_text(errors="replace") if out.is_file() else (out / "README.md").read_text()

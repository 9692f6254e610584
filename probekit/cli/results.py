"""Results of a command: whether they may go to a folder, and how they are saved, drawn and printed."""

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from probekit.cli import console
from probekit.cli.fields import Output
from probekit.errors import ResumeMismatch, UsageError
from probekit.files.plain_files import MAX_RESULTS, read_bytes
from probekit.files.records import INFINITY, parse_record, read_as
from probekit.options.picture import PictureOptions
from probekit.options.question import OPTIONS_OF, Question, asked_by
from probekit.results.kinds import KINDS, check_results_folder, kind_in
from probekit.text import listed


class _Question(TypedDict):
    asked: dict[str, Any]
    activations: NotRequired[Any]  # of a transfer and a comparison a list, of each store or run


class _Answered(TypedDict):
    """What a file of results says of its question."""

    meta: _Question


def check_question(out: Path | None, question: Question, activations: Mapping[str, Any] | None = None) -> None:
    """Check that results may go to `out`: it is free, or holds those of the same question about the same activations.

    Args:
        out: a folder, or nothing yet; None is the default folder, whose name says the question.
        question: that they answer.
        activations: what is known about the activations (`Store.meta`), where results record them.

    Raises:
        StorageError: something other than results is there.
        ResumeMismatch: results of another question.
    """
    if out is None:
        return
    check_results_folder(out, question.kind)
    try:
        meta = read_as(_Answered, parse_record(read_bytes(out / KINDS[question.kind].file, MAX_RESULTS)))["meta"]
        different = _different(meta["asked"], question)
        if activations is not None:
            stored = read_as(dict[str, Any], meta["activations"])
            different += [key for key, value in stored.items() if activations.get(key, value) != value]
    except (OSError, ValueError, KeyError):
        return  # no complete results are there
    if different:
        what = "other settings" if activations is None else "other settings or data"
        raise ResumeMismatch(
            f"{str(out)!a} holds results of {what} (different: {listed(sorted(different))}); give another folder "
            "(--out), or remove that one"
        )


def _different(stored: Mapping[str, Any], question: Question) -> list[str]:
    """The options that differ; results of earlier versions do not list those that were left at their defaults.

    Nor do they have `control_C`: the same command may replace them, though its control tasks had their own C then.
    """
    options, asked = OPTIONS_OF[question.command][0], question.asked
    if isinstance(stored.get("C"), list):
        stored = {**stored, "C": [math.inf if C == INFINITY else C for C in stored["C"]]}
    try:
        before = asked_by(options(**{name: value for name, value in stored.items() if name in vars(options())}))
    except (UsageError, TypeError, ValueError):
        before = {}
    before |= {name: stored.get(name, False) for name in asked if name not in vars(options())}
    if "control_C" in asked:
        before["control_C"] = stored.get("control_C", asked["control_C"])
    return [name for name, value in asked.items() if _paths(name, before.get(name)) != _paths(name, value)]


def _paths(name: str, value: Any) -> Any:
    """Folders that were named, seen from the present folder; other values as they are."""
    is_named = name in ("stores", "runs") and isinstance(value, list)
    return [os.path.abspath(each) for each in value] if is_named else value  # noqa: PTH100 (also of OWNER/NAME)


def draw(kind: str, results: Any, folder: Path, picture: PictureOptions) -> list[Path]:
    """Write the pictures of a kind of results, a key of `KINDS` or "sweep", into their folder."""
    from probekit import plots

    drawn: dict[str, Callable[..., Path | list[Path]]] = {
        "curve": plots.save_plot,
        "positions": plots.save_positions_plot,
        "heads": plots.save_positions_plot,
        "transfer": plots.save_transfer_plot,
        "causal": _draw_causal,
        "comparison": plots.save_comparison_plot,
        "curves": plots.save_curves_plot,
        "grids": plots.save_grids_plot,
        "sweep": _draw_sweep,
    }
    several = kind in KINDS and KINDS[kind].inner
    found = drawn[kind](list(results.values()) if several else results, folder, **vars(picture))
    return found if isinstance(found, list) else [found]


def _draw_causal(results: Any, folder: Path, **how: Any) -> list[Path]:
    """The curve and the grids, whichever there are."""
    from probekit.plots.causal import save_causal_plot
    from probekit.plots.grids import save_patching_plot

    pictures = [save_causal_plot(results.data, folder, **how)] if results.layers else []
    return pictures + ([save_patching_plot(results.data, folder, **how)] if results.grids else [])


def _draw_sweep(results: Any, folder: Path, **how: Any) -> list[Path]:
    from probekit.plots import save_sweep_plot

    is_drawn = any(row.value is not None for run in results.runs for row in run.rows)
    return [save_sweep_plot(results, folder, **how)] if is_drawn else []


def emit(
    results: Any,
    question: Question,
    folder: Path,
    output: Output | None,
    picture: PictureOptions,
    complete: str,
    where: Mapping[str, Any] | None = None,
    also: Callable[[], list[Path]] = list,
) -> None:
    """Save results with their question, draw them, and print them.

    Args:
        results: of the question's kind.
        question: that they answer.
        folder: where they go.
        output: how to print; None prints nothing.
        picture: how to draw.
        complete: what is complete already, for Ctrl-C.
        where: the paths that the JSON output begins with.
        also: draws further pictures, once the results are saved.
    """
    results.meta["asked"] = question.asked
    with console.interrupt_says(f"{complete}, the results in {folder} are incomplete; run the same command again"):
        results.save(folder)
        drawn = draw(question.kind, results, folder, picture) + also()
    if output is None:
        return
    pictures = [str(path) for path in drawn]

    def body() -> dict[str, Any]:
        several = {"pictures": pictures} if question.kind == "causal" or len(pictures) > 1 else {}
        return {**(where or {}), "results": str(folder), "picture": pictures[0], **several, **_body_in(folder)}

    text = "\n".join([str(results.summary()), "", *(f"Picture: {path}" for path in pictures)])
    console.answer(output, body, text, brief="\n".join(pictures))


def _body_in(folder: Path) -> dict[str, Any]:
    """What the file of the results in a folder holds; of several results with what each of them holds."""
    kind = kind_in(folder)
    assert kind is not None
    body = json.loads((folder / KINDS[kind].file).read_text())
    if not KINDS[kind].inner:
        return body
    return {**body, kind: [entry | _body_in(folder / entry["folder"]) for entry in body[kind]]}

"""All tokens of some texts, and which of them a probe was trained on; from a store, or by running a model.

Axes: N texts, R tokens of all texts without context tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from probekit.activations.activations import Activations, RowsOf, selected_from
from probekit.activations.extract import extract_task
from probekit.activations.plan.build import plan_extraction
from probekit.activations.plan.plan import ExtractionPlan
from probekit.activations.plan.prepare import rendered_task
from probekit.errors import ProbekitError, ResumeMismatch, UsageError
from probekit.evaluation.results.data import ProbeData, is_output
from probekit.models.base import LanguageModel
from probekit.options import ExtractArguments, ExtractOptions
from probekit.points import POINTS
from probekit.scoring.probe import options_as_trained, template_difference
from probekit.selections import ALL, PER_EXAMPLE, Selection
from probekit.tasks.base import Task
from probekit.tasks.fields import CHAT
from probekit.text import counted

UNKNOWN_READ = "Which tokens the probe was trained on is unknown for these texts."
OTHER_KIND = "Either the texts shown or those of the probe's training are chats, and the others are not."


@dataclass(frozen=True, eq=False)
class TokenRows:
    """The tokens of some texts.

    Attributes:
        acts: of all tokens of the texts, context tokens left out.
        read: whether each is a token like those that the probe was trained on, bool [R].
        special: whether each is a special token, bool [R]; None if unknown.
        context: the token ids before and after each text, as strings; empty where there are none.
        notes: what to tell the reader.
    """

    acts: Activations
    read: np.ndarray
    special: np.ndarray | None
    context: tuple[list[str], list[str]]
    notes: list[str]


def rows_from_store(acts: Activations, rows: np.ndarray, position: Any) -> TokenRows:
    """The tokens of some texts of activations of all tokens.

    Raises:
        UsageError: activations of some tokens only.
    """
    if acts.layout.positions != [ALL]:
        raise UsageError("the view needs the activations of all tokens; extract again with position all")
    found = RowsOf(acts, rows)
    read, notes = _read_by_selection(found, position)
    layout = found.layout
    return TokenRows(found, read, None, (["BOS"] * layout.n_bos, ["SEP"] * layout.n_end), notes)


def rows_from_model(
    model: LanguageModel, task: Task, data: ProbeData, how: Mapping[str, Any] | None = None
) -> TokenRows:
    """The tokens of all texts of a task, by running the model as it ran for the probes' training.

    Args:
        model: the one that the probes were trained on.
        task: the texts.
        data: the probes, whose results record how texts were read.
        how: options of `extract` that results do not hold, such as chat_template and edits, or in place of recorded
            ones.

    Raises:
        UsageError: probes of a place that cannot be computed again, such as several joined.
        DataError: texts that the model cannot take.
        ResumeMismatch: another chat template than that of the training.
    """
    reading, how = data.meta.get("reading") or {}, dict(how or {})
    options = {**_places(data), **options_as_trained(reading, data.meta.get("activations", {})), **how}
    chat = {name: options.pop(name, None) for name in ("chat_template", "add_generation_prompt")}
    if task.chats is not None or chat["chat_template"] is not None:
        task = rendered_task(model, task, ExtractOptions(points=options["points"], **chat))
        if (other := template_difference(reading, task)) is not None:
            raise ResumeMismatch(other)
    notes = [OTHER_KIND] if reading and bool(reading.get("chat")) != (CHAT in task.info) else []
    read = _plan_of_read(model, task, selection_of(data), options)
    if read is None:
        notes.append(UNKNOWN_READ)
    elif left_out := len(task) - len(read.task):
        notes.append(f"{counted(left_out, 'text')} without the token that the probe reads left out.")
        names = set(read.task.ids)
        task = task.subset(np.array([i for i, name in enumerate(task.ids) if name in names], dtype=np.int64))
    every = replace(task, spans=None, position=ALL) if task.spans is not None else task
    acts = extract_task(
        model, every, ExtractArguments(**{**options, "skip_special": False, "position": ALL}, progress=False)
    )
    mask = np.zeros(int(acts.layout.own_lengths.sum()), dtype=bool)
    if read is not None:
        mask[_own_rows(read)] = True
    return TokenRows(acts, mask, _special(model, acts), _context(model, acts), notes)


def selection_of(data: ProbeData) -> Any:
    """The tokens that the probes read, such as "last" or "-5:"; results of older versions may call several "all"."""
    return (data.meta.get("reading") or {}).get("selection") or data.meta.get("position")


def _places(data: ProbeData) -> dict[str, Any]:
    """The points and layers that the probes read."""
    point, layers = data.meta["point"], [layer.layer for layer in data.layers]
    if point not in POINTS:
        raise UsageError(f"probes of {point!a:.80}, several places side by side, have no view by token")
    every = any(is_output(data, layer) for layer in data.layers) or None in layers
    return {"points": [point], "layers": "all" if every else sorted({i for i in layers if i is not None})}


def _plan_of_read(model: LanguageModel, task: Task, position: Any, options: dict[str, Any]) -> ExtractionPlan | None:
    """The plan that reads the probes' own tokens; None where these texts cannot have them."""
    own = None if position in (None, PER_EXAMPLE) else position
    if own is None and isinstance(task.position, str) and task.spans is None:
        return None
    try:
        return plan_extraction(model, task, ExtractOptions(**options, position=own, on_bad_row="skip"))
    except ProbekitError:
        return None


def _own_rows(plan: ExtractionPlan) -> np.ndarray:
    """The rows, among all own tokens of the texts, of the tokens that a plan reads, int64."""
    own, read = plan.sequences.own_lengths, plan.reading.reads[0]
    starts = np.cumsum(own) - own
    if read.index is None:
        return np.arange(own.sum())
    counts = np.ones(len(own), dtype=np.int64) if read.counts is None else read.counts
    return np.repeat(starts, counts) + read.index - plan.sequences.n_bos


def _read_by_selection(acts: Activations, position: Any) -> tuple[np.ndarray, list[str]]:
    """Which rows a selection reads; those of a mean are the tokens that are averaged."""
    n = int(acts.layout.own_lengths.sum())
    if position == PER_EXAMPLE and isinstance(acts.task.position, np.ndarray):
        lengths, index = acts.layout.own_lengths, acts.task.position
        mask = np.zeros(n, dtype=bool)
        mask[np.cumsum(lengths) - lengths + np.where(index < 0, index + lengths, index)] = True
        return mask, []
    try:
        selection = Selection.parse(str(position))
        if selection.pick == "mean":
            selection = Selection("all", selection.part)
        if selection == ALL:
            return np.ones(n, dtype=bool), []
        chosen = acts.at(selection, "skip")
        _, rows = selected_from(chosen, np.arange(int(chosen.layout.counts().sum())), acts)
    except ProbekitError:
        return np.zeros(n, dtype=bool), [UNKNOWN_READ]
    mask = np.zeros(n, dtype=bool)
    mask[rows] = True
    return mask, []


def _special(model: LanguageModel, acts: Activations) -> np.ndarray | None:
    if model.tokenizer is None or acts.layout.tokens is None:
        return None
    return np.isin(acts.layout.tokens, list(model.tokenizer.special_ids))


def _context(model: LanguageModel, acts: Activations) -> tuple[list[str], list[str]]:
    """The context tokens before and after each text, as the vocabulary spells them."""
    layout, tokenizer = acts.layout, model.tokenizer
    bos = getattr(model.cfg, "bos_token_id", None) if tokenizer is None else tokenizer.bos_token_id
    sep = None if tokenizer is None else tokenizer.sep_token_id

    def spelled(i: int | None, name: str, n: int) -> list[str]:
        return [name if i is None or tokenizer is None else tokenizer.tokens([i])[0]] * n

    return spelled(bos, "BOS", layout.n_bos), spelled(sep, "SEP", layout.n_end)

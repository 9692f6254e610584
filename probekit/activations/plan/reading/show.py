"""Show texts as the model reads them, with the tokens that are read marked.

The commonest mistake is to read a formatting token of a chat template without noticing: the tokens of a template,
special tokens and context tokens are no content.

Axes: L tokens of one text.
"""

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np

from probekit.activations.plan.build import plan_extraction
from probekit.activations.plan.plan import ExtractionPlan
from probekit.activations.plan.reading.offsets import offsets_of
from probekit.activations.plan.token_ids import has_texts, targets_task
from probekit.models.base import LanguageModel
from probekit.options import ExtractOptions
from probekit.options.check import check_whole
from probekit.tasks.base import Task
from probekit.tasks.fields import CHAT
from probekit.tasks.tables.objects import task_of
from probekit.text import counted, printable

ROWS = 3
MOST_ROWS = 1000  # that the note of a plan looks at
OPEN, CLOSE = "{{", "}}"  # around the tokens that are read, where there is no colour
AROUND, MOST_READ, MOST_RUNS = 40, 60, 4  # characters around a read token, and of it; stretches of a position
STYLE = "background:#ffd54f;color:#000;padding:0 1px"  # of a read token in HTML
FORMATTING_STYLE = "background:#e57373;color:#000;padding:0 1px"


@dataclass(frozen=True)
class ShownToken:
    """A token as text.

    Attributes:
        text: with its blanks; its id where there is no tokenizer.
        is_read: whether a position reads it.
        is_formatting: whether it is no content: a context token, a special token, or outside a chat's messages.
        is_printed: whether it is read and among the stretches of a position that are printed: the first few, and the
            last.
    """

    text: str
    is_read: bool
    is_formatting: bool
    is_printed: bool


@dataclass(frozen=True)
class ShownRow:
    """One example.

    Attributes:
        id: its name.
        tokens: all that the model reads, context tokens included.
        reads: for each position its name and what it reads, in words.
    """

    id: str
    tokens: list[ShownToken]
    reads: list[str]


class ShownReading(Sequence[ShownRow]):
    """Some examples as the model reads them; `print` marks the tokens that are read, a notebook colours them."""

    def __init__(self, rows: Iterable[ShownRow]):
        self._rows = list(rows)

    def __getitem__(self, index: Any) -> Any:
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        lines = []
        for row in self._rows:
            lines += [f"{'row':<9}{printable(row.id)}, {printable(said)}" for said in row.reads]
            marked = (f"{OPEN}{text}{CLOSE}" if is_read else text for text, is_read, _ in _runs(row))
            lines.append(f"{'':<9}{''.join(marked)}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        parts = []
        for row in self._rows:
            said = "<br>".join(html.escape(printable(one)) for one in row.reads)
            parts.append(f"<div><b>{html.escape(printable(row.id))}</b>: {said}<pre style='white-space:pre-wrap'>")
            for text, is_read, is_formatting in _runs(row):
                style = FORMATTING_STYLE if is_formatting else STYLE
                parts.append(f'<span style="{style}">{html.escape(text)}</span>' if is_read else html.escape(text))
            parts.append("</pre></div>")
        return "".join(parts)

    def as_dict(self) -> list[dict[str, Any]]:
        """JSON-able: id, text, reads, and the tokens that are read as [index, text, whether it is formatting]."""
        return [
            {
                "id": row.id,
                "text": "".join(token.text for token in row.tokens),
                "reads": row.reads,
                "tokens": [[k, one.text, one.is_formatting] for k, one in enumerate(row.tokens) if one.is_read],
            }
            for row in self._rows
        ]


def show_reading(
    model: LanguageModel,
    task: Task | Iterable[Any],
    position: Any = None,
    *,
    rows: int = ROWS,
    options: ExtractOptions | None = None,
) -> ShownReading:
    """The first examples as the model reads them, with the tokens that a position reads.

    Args:
        model: a model from `load_model`.
        task: a task from `load_task`, or texts, or lists of messages.
        position: as for `extract`; None is the task's own.
        rows: how many examples.
        options: other options of `extract`, such as the chat template.

    Raises:
        As `extract`, before anything runs.
    """
    own = replace(options or ExtractOptions(), **({} if position is None else {"position": position}))
    first = task_of(task)
    some = first.subset(np.arange(min(len(first), check_whole("rows", rows, 1))))
    return shown_reading(plan_extraction(model, some, own), rows)


def shown_reading(plan: ExtractionPlan, rows: int = ROWS) -> ShownReading:
    """The first examples of a plan.

    Args:
        plan: of an extraction.
        rows: how many examples.
    """
    texts = _token_texts(plan, np.arange(min(rows, len(plan.task))))
    each = zip(texts, formatting_tokens(plan, rows), strict=True)
    return ShownReading(_shown(plan, row, *of_row) for row, of_row in enumerate(each))


def _token_texts(plan: ExtractionPlan, rows: np.ndarray) -> list[list[str]]:
    """The tokens of some examples as texts, with the blanks between them that a tokenizer of words leaves out."""
    tokenizer, task, sequences = plan.model.tokenizer, _task_read(plan).subset(rows), plan.sequences.subset(rows)
    if tokenizer is None:
        return [[f" {i}" for i in sequences[row].tolist()] for row in rows]
    found = [tokenizer.tokens(sequences[row].tolist()) for row in rows]
    if not has_texts(task):
        return found
    for texts, text, offsets in zip(found, task.inputs, offsets_of(plan.model, task, sequences), strict=True):
        if len(text) > 0 and not any(one[:1].isspace() for one in texts) and len(offsets) > 1:
            for k in np.flatnonzero(offsets[1:, 0] > offsets[:-1, 1]) + 1:
                texts[sequences.n_bos + k] = " " + texts[sequences.n_bos + k]
    return found


def _shown(plan: ExtractionPlan, row: int, texts: list[str], formatting: np.ndarray) -> ShownRow:
    """One example; `formatting` is which of its tokens are no content, bool [L]."""
    is_read, is_printed, reads = np.zeros(len(texts), dtype=bool), np.zeros(len(texts), dtype=bool), []
    for name, read in zip(plan.reading.positions, plan.reading.reads, strict=True):
        if read.index is None:
            index = np.arange(plan.sequences.n_bos, len(texts) - plan.sequences.n_end)
        else:
            index = read.index[read.of_rows(np.array([row]))[0]]
        is_read[index] = True
        stretches = _stretches(index)
        is_printed[np.concatenate([*stretches[:MOST_RUNS], stretches[-1]])] = True
        reads.append(f"{name.in_words}: {_read_in_words(index, texts, formatting, plan)}")
    flags = is_read.tolist(), formatting.tolist(), is_printed.tolist()
    tokens = [ShownToken(*one) for one in zip(texts, *flags, strict=True)]
    return ShownRow(str(plan.task.ids[row]), tokens, reads)


def _stretches(index: np.ndarray) -> list[np.ndarray]:
    """The tokens in stretches without a gap."""
    return np.split(index, np.flatnonzero(np.diff(index) > 1) + 1)


def _read_in_words(index: np.ndarray, texts: list[str], formatting: np.ndarray, plan: ExtractionPlan) -> str:
    """Which tokens are read, counted from the text's first."""
    n_own = len(texts) - plan.sequences.n_bos - plan.sequences.n_end
    no_content = int(formatting[index].sum())
    kind = "a formatting token" if plan.task.regions is not None else "a special token"
    if len(index) == 1:
        at = int(index[0])
        said = f"token {at - plan.sequences.n_bos} of 0-{n_own - 1}, '{printable(texts[at])}'"
        return said + (f", {kind}" if no_content else "")
    runs = [f"{a[0]}-{a[-1]}" if len(a) > 1 else f"{a[0]}" for a in _stretches(index - plan.sequences.n_bos)]
    where = ", ".join(runs if len(runs) <= MOST_RUNS + 1 else [*runs[:MOST_RUNS], "...", runs[-1]])
    said = f"{counted(len(index), 'token')}, {where} of 0-{n_own - 1}"
    return said + (f"; {no_content} of them {kind[2:]}s" if no_content else "")


def _runs(row: ShownRow) -> list[tuple[str, bool, bool]]:
    """The text in stretches: (text, whether it is marked, whether it is formatting), long ones without their middle."""
    marks = ((one.is_printed, one.is_printed and one.is_formatting) for one in row.tokens)
    groups = [
        (mark, [token for _, token in some])
        for mark, some in groupby(zip(marks, row.tokens, strict=True), itemgetter(0))
    ]
    found = []
    for k, ((is_printed, is_formatting), tokens) in enumerate(groups):
        if is_printed:
            text, half = _text(tokens), MOST_READ // 2
            text = text if len(text) <= MOST_READ + 3 else f"{text[:half]}...{text[-half:]}"
        else:
            text = _between(tokens, k == 0, k == len(groups) - 1)
        found.append((text, is_printed, is_formatting))
    return found


def _text(tokens: Iterable[ShownToken]) -> str:
    return "".join(printable(token.text) for token in tokens)


def _between(tokens: list[ShownToken], is_first: bool, is_last: bool) -> str:
    """Tokens that are not marked; those among them that are read are left out."""
    read = [k for k, token in enumerate(tokens) if token.is_read]
    if read:
        return f"{_text(tokens[: read[0]])[:AROUND]}...{_text(tokens[read[-1] + 1 :])[-AROUND:]}"
    text, before, after = _text(tokens), 0 if is_first else AROUND, 0 if is_last else AROUND
    return text if len(text) <= before + after + 3 else f"{text[:before]}...{text[len(text) - after :]}"


def _task_read(plan: ExtractionPlan) -> Task:
    """The task whose inputs are read: for a decoder, that of the targets."""
    return targets_task(plan.task) if plan.stack == "decoder" else plan.task


def formatting_tokens(plan: ExtractionPlan, n_rows: int) -> list[np.ndarray]:
    """Which tokens of each of the first examples, context included, are no content: bool [L] each."""
    rows = np.arange(min(n_rows, len(plan.task)))
    task, sequences, tokenizer = _task_read(plan).subset(rows), plan.sequences.subset(rows), plan.model.tokenizer
    special = [] if tokenizer is None else list(tokenizer.special_ids)
    found = [np.isin(sequences[row], special) for row in range(len(rows))]
    for own in found:
        own[: sequences.n_bos] = True
        own[len(own) - sequences.n_end :] = True
    if task.regions is None or tokenizer is None or not has_texts(task):
        return found
    for own, offsets, regions in zip(found, offsets_of(plan.model, task, sequences), task.regions, strict=True):
        inside = np.zeros(len(offsets), dtype=bool)
        for _, start, end in regions:
            inside |= (offsets[:, 0] < end) & (offsets[:, 1] > start) & (offsets[:, 0] < offsets[:, 1])
        own[sequences.n_bos : len(own) - sequences.n_end] |= ~inside
    return found


def formatting_note(plan: ExtractionPlan) -> str:
    """How often a position that reads one token of each text reads no content, in words; empty if it never does."""
    singles = [
        (name, read.index)
        for name, read in zip(plan.reading.positions, plan.reading.reads, strict=True)
        if read.counts is None and read.index is not None
    ]
    found = formatting_tokens(plan, MOST_ROWS) if singles else []
    kind = "special" if plan.task.regions is None else "formatting"
    notes = []
    for name, index in singles:
        n = sum(bool(own[index[row]]) for row, own in enumerate(found))
        rows = f"the first {len(found):,} rows" if len(found) < len(plan.task) else f"{len(found):,} rows"
        if n:
            notes.append(f"{name.in_words} is a {kind} token, not content, in {n:,} of {rows}")
        if n and name == "last":
            notes += _last_content(plan.task)
    return "; ".join(notes)


def _last_content(task: Task) -> list[str]:
    """How to read the last content instead, where all chats end with one role and nothing invites the next message."""
    last = {regions[-1].name if regions else None for regions in task.regions or ()}
    chat = task.info.get(CHAT, {})
    is_invited = chat.get("add_generation_prompt") and not chat.get("has_no_generation_prompt")
    if len(last) != 1 or None in last or is_invited:
        return []
    return [f"last@{last.pop()} reads the last content"]

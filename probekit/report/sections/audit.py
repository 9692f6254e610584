"""What the audit of the data found, with the texts: leaks, near-duplicates, contradictory labels, unlike splits."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from probekit.report.parts import Heading, Items, Lines, More, PageTable, Part
from probekit.report.render import html_of
from probekit.report.section import Section
from probekit.tasks.base import Task
from probekit.tasks.chats.messages import as_compared
from probekit.tasks.quality.duplicates import Inputs, near_pairs
from probekit.text import counted

MOST = 50  # texts of each kind that are listed
LONGEST = 300  # characters of a text
CLASSES = 12  # classes of a split in the table


@dataclass(frozen=True)
class FoundPair:
    """Two texts that should not both be there.

    Attributes:
        splits: of both.
        ids: of both.
        texts: both.
        labels: both.
        similarity: Jaccard's, of near-duplicates; 1 of texts that are the same.
    """

    splits: tuple[str, str]
    ids: tuple[str, str]
    texts: tuple[str, str]
    labels: tuple[str, str]
    similarity: float


def audit_section(data: Any, task: Task | None) -> Section:
    """What was found in the data of results, with the texts where the task is there."""
    audit = data.meta.get("audit") or {}
    findings = [str(line) for line in audit.get("lines", [])]
    parts: list[Part] = []
    if audit.get("no_texts"):
        parts.append(Lines(["The activations came without texts, so none were compared."]))
    elif findings:
        parts.append(Items(findings))
    else:
        parts.append(Lines(["The audit found nothing: no leaks, no contradictory labels, no splits that differ."]))
    if audit.get("splits"):
        parts += [Heading("Splits"), PageTable(_splits(audit["splits"]), left=2, wraps=True)]
    parts += _texts(data, audit, task)
    return Section("data", "Data audit", html_of(parts), {"findings": findings})


def _splits(splits: dict[str, dict[str, Any]]) -> list[list[str]]:
    rows = [["split", "labels", "rows", "leaks", "median length"]]
    for name, one in splits.items():
        classes = one.get("classes")
        if classes:
            shown = list(classes.items())[:CLASSES]
            labels = ", ".join(f"{each} {n:,}" for each, n in shown) + (" ..." if len(classes) > CLASSES else "")
        else:
            labels = f"mean {one['mean']:.3g}, std {one['std']:.3g}" if "mean" in one and "std" in one else ""
        length = "" if one.get("median_length") is None else f"{one['median_length']:g} {one.get('unit', '')}"
        rows.append([name, labels, f"{one['n']:,}", f"{one.get('leaks', 0):,}", length])
    return rows


def _texts(data: Any, audit: dict[str, Any], task: Task | None) -> list[Part]:
    """The texts of leaks and contradictions; without the task, the first example of each is in the findings."""
    shared = audit.get("shared", {}).values()
    if not (any(one["exact"] or one["near"] for one in shared) or (audit.get("conflicts") or {}).get("texts")):
        return []
    if task is None:
        return [Lines(["The texts are listed where the results are still in their store (STORE/results)."], "note")]
    compared = as_compared(task)
    label = data.meta["label"]
    if label not in compared.labels or not compared.has_texts:
        return []
    leaks, conflicts = found_pairs(compared, label, near=audit.get("near") is not None)
    parts: list[Part] = []
    for title, pairs in (("texts in two splits", leaks), ("texts with contradictory labels", conflicts)):
        if pairs:
            more = f", the first {MOST} of them" if len(pairs) > MOST else ""
            title = f"{title[:1].upper()}{title[1:]}: {counted(len(pairs), 'pair')}{more}"
            parts.append(More(title, [PageTable(_pair_rows(pairs[:MOST]), left=5, wraps=True)]))
    return parts


def _pair_rows(pairs: list[FoundPair]) -> list[list[str]]:
    rows = [["splits", "labels", "text", "the other text", "ids", "similarity"]]
    for one in pairs:
        text, other = (text if len(text) <= LONGEST else f"{text[:LONGEST]}…" for text in one.texts)
        splits, labels, ids = (" / ".join(dict.fromkeys(both)) for both in (one.splits, one.labels, one.ids))
        rows.append([splits, labels, text, "the same" if text == other else other, ids, f"{one.similarity:.2f}"])
    return rows


def found_pairs(task: Task, label: str, near: bool) -> tuple[list[FoundPair], list[FoundPair]]:
    """The pairs of equal or similar texts in two splits, and those of equal texts with two labels.

    Each text is listed with the first text of an earlier split that it repeats, otherwise with the most similar one.
    Words of a text are only counted in the findings, as all of them have the complete text as their input.
    """
    if task.spans is not None or task.text_of is not None:
        return [], []
    inputs = Inputs.of(task.inputs)
    first: dict[int, list[int]] = {}
    for row, number in enumerate(inputs.number.tolist()):
        first.setdefault(number, []).append(row)
    order = {split: i for i, split in enumerate(("train", "validation", "test"))}
    rank = np.array([order[split] for split in task.splits.tolist()])
    leaks, conflicts, told = [], [], set()
    for rows in first.values():
        earliest = min(rows, key=lambda row: (rank[row], row))
        for row in rows:
            if rank[row] > rank[earliest]:
                leaks.append(_pair(task, label, earliest, row, 1.0))
                told.add(row)
            elif row != earliest and not np.array_equal(task.labels[label][row], task.labels[label][earliest]):
                conflicts.append(_pair(task, label, earliest, row, 1.0))
    if near:
        leaks += _near(task, label, inputs, rank, told)
    conflicts += [one for one in leaks if one.similarity == 1.0 and one.labels[0] != one.labels[1]]
    return leaks, conflicts


def _near(task: Task, label: str, inputs: Inputs, rank: np.ndarray, told: set[int]) -> list[FoundPair]:
    """Each text with the most similar one of an earlier split."""
    row_of = np.unique(inputs.number, return_index=True)[1]
    best: dict[int, tuple[float, int]] = {}
    for one, other, similarity in zip(*near_pairs(inputs.shingles(), np.unique(inputs.number[rank > 0])), strict=True):
        row, earlier = int(row_of[one]), int(row_of[other])
        if row not in told and rank[earlier] < rank[row]:
            best[row] = max(best.get(row, (0.0, 0)), (float(similarity), earlier))
    return [_pair(task, label, earlier, row, similarity) for row, (similarity, earlier) in sorted(best.items())]


def _pair(task: Task, label: str, one: int, other: int, similarity: float) -> FoundPair:
    names, labels = task.label_names[label], task.labels[label]
    texts = tuple(x if isinstance(x, str) else " ".join(map(str, x)) for x in (task.inputs[one], task.inputs[other]))
    shown = tuple(names[int(labels[i])] if names else str(labels[i]) for i in (one, other))
    splits = str(task.splits[one]), str(task.splits[other])
    return FoundPair(
        splits, (str(task.ids[one]), str(task.ids[other])), (texts[0], texts[1]), (shown[0], shown[1]), similarity
    )

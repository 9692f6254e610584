"""Audit a task before a probe is fitted: texts in two splits, contradictory labels, imbalanced classes and splits.

Axes: N examples.
"""

from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np

from probekit.tasks.base import IMBALANCED, SPLITS, Task
from probekit.tasks.data_table import quote
from probekit.tasks.quality.duplicates import THRESHOLD, Inputs, near_pairs, rows_spanning_splits

SHIFT = 0.1  # report a class whose share in a split differs from its share in train by this much
LONGER = 1.5  # report a split whose median length is this many times train's, or train's its
Finding = tuple[str, str]  # what was found, and its first example


@dataclass(frozen=True, eq=False)
class Audit:
    """The findings about a task: for people (`audit_lines`), for files (`audit_dict`).

    Attributes:
        label: the label set that was audited.
        splits: split -> n; unit, median, mean and longest length of its texts; the number of texts if examples are
            words; n of each class, the largest class and its share, or mean, std, low and high of a regression target.
        shared: "validation in train" -> validation texts that also occur in train: number of exact and of near
            duplicates, the train rows they match, n of validation, and the first example of each kind.
        conflicts: texts, or words of a text, with several labels: texts, rows, and the first example.
        groups_across_splits: number of groups that span splits; None without groups.
        leaks: rows to leave out, int64 ascending. Without them no text of validation or test, nor a near-duplicate of
            one, is in train, and none of test is in validation; nor does a group span splits.
        no_texts: whether there were no texts to compare.
        dropped: whether the leaks were left out.
        linked: with folds, the number of texts that have an exact or near duplicate, which is in the same fold.
    """

    label: str
    splits: dict[str, dict[str, Any]]
    shared: dict[str, dict[str, Any]] = field(default_factory=dict)
    conflicts: dict[str, Any] = field(default_factory=lambda: {"texts": 0, "rows": 0})
    groups_across_splits: int | None = None
    leaks: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    no_texts: bool = False
    dropped: bool = False
    linked: int | None = None


def audit_dict(result: Audit) -> dict[str, Any]:
    """The audit as JSON-able values, with the number of leaks in each split instead of their rows."""
    kept = {name: value for name, value in vars(result).items() if name != "leaks"}
    kept |= {"near": THRESHOLD, "leaks": {split: one["leaks"] for split, one in result.splits.items()}}
    return {**kept, "lines": audit_lines(result), "findings": [what for what, _ in _findings(result)]}


def audit_lines(result: Audit) -> list[str]:
    """One line per finding, with its number and its first example; empty if there is nothing to report."""
    return [f"{what}: {example}" if example else what for what, example in _findings(result)]


def _findings(result: Audit) -> list[Finding]:
    """The findings, leaks first."""
    found = [
        _shared_finding(name, one, kind, result)
        for name, one in result.shared.items()
        for kind in ("exact", "near")
        if one[kind]
    ]
    if leaks := [f"{one['leaks']:,} of {split}" for split, one in result.splits.items() if one["leaks"]]:
        done = "left out" if result.dropped else "leave them out with drop_leaks (--drop-leaks)"
        found.append((f"leaks: {' and '.join(leaks)}, {done}", ""))
    if result.conflicts["texts"]:
        found.append(_conflict_finding(result.conflicts))
    if result.groups_across_splits:
        found.append((f"groups that span splits: {result.groups_across_splits:,}", ""))
    if result.linked:
        found.append((f"{result.linked:,} texts have an exact or near duplicate; folds keep them together", ""))
    known = [split for split in SPLITS if split in result.splits]
    return found + [(line, "") for split in known for line in _split_lines(result.splits, split)]


def audit(task: Task, label_set: str | None = None) -> Audit:
    """Audit a checked task and one of its label sets (default: the target); changes nothing.

    `tasks.quality.duplicates` defines exact and near duplicates. Inputs that are placeholders (an import without texts)
    are not compared.

    Raises:
        UsageError: no such label set.
    """
    label_set = task.target if label_set is None else label_set
    task.n_classes(label_set)  # raises if it is unknown
    no_texts = bool(task.info.get("no_texts"))
    splits = {split: _split(task, label_set, split) for split in SPLITS if (task.splits == split).any()}
    result = Audit(label_set, splits, groups_across_splits=_groups_spanning_splits(task), no_texts=no_texts)
    leaks = np.zeros(len(task), dtype=bool)
    if not no_texts:
        rows, of = task.texts()
        texts = task if len(rows) == len(task) else task.subset(rows)
        number, shared, leaks_T = _compare(texts)
        _add_hidden_leaks(texts, leaks_T)
        leaks = leaks_T[of]
        result = replace(result, shared=shared, conflicts=_conflicts(task, number[of], task.labels[label_set]))
    if task.groups is not None:
        leaks[rows_spanning_splits(task.groups, task.splits)] = True
    for split in splits:
        splits[split]["leaks"] = int((leaks & (task.splits == split)).sum())
    return replace(result, leaks=np.flatnonzero(leaks))


def _add_hidden_leaks(task: Task, leaks: np.ndarray) -> None:
    """Add the leaks that appear once the first ones are gone: which shingles are templates depends on all texts."""
    while leaks.any():
        rest = np.flatnonzero(~leaks)
        more = _compare(task.subset(rest))[2]
        if not more.any():
            break
        leaks[rest[more]] = True


def audit_of_folds(task: Task, label_set: str, texts: np.ndarray) -> Audit:
    """Audit all rows together, because folds replace the splits.

    Args:
        task: of N rows.
        label_set: to audit.
        texts: int64 [N], from `duplicates.linked_texts`; a number for each row where there are no texts.
    """
    if task.info.get("no_texts"):
        return Audit(label_set, {}, no_texts=True, linked=0)
    rows, of = task.texts() if task.text_of is not None else (np.arange(len(task)),) * 2
    conflicts = _conflicts(task, Inputs.of([task.inputs[i] for i in rows]).number[of], task.labels[label_set])
    own = texts[task.texts()[0]]
    return Audit(label_set, {}, conflicts=conflicts, linked=int((np.bincount(own)[own] > 1).sum()))


def _compare(task: Task) -> tuple[np.ndarray, dict[str, dict[str, Any]], np.ndarray]:
    """Each input's number (equal inputs share one), what each two splits share, and the rows that leak, bool [N]."""
    inputs = Inputs.of(task.inputs)
    pairs = near_pairs(inputs.shingles(), np.unique(inputs.number[task.splits != SPLITS[0]]))
    shared, leaks = {}, np.zeros(len(task), dtype=bool)
    for here, there in combinations([split for split in SPLITS if (task.splits == split).any()], 2):
        shared[f"{there} in {here}"], rows = _shared(task, inputs.number, pairs, here, there)
        leaks |= rows
    return inputs.number, shared, leaks


def _split(task: Task, label_set: str, split: str) -> dict[str, Any]:
    rows = np.flatnonzero(task.splits == split)
    texts = isinstance(task.inputs[0], str)
    firsts = np.intersect1d(rows, task.texts()[0])
    lengths = np.array([len(str(task.inputs[i]).split() if texts else task.inputs[i]) for i in firsts.tolist()])
    about: dict[str, Any] = {"n": len(rows), "leaks": 0}
    if not task.info.get("no_texts"):
        about |= {"unit": "words" if texts else "tokens", "median_length": float(np.median(lengths))}
        about |= {"texts": len(firsts)} if task.spans is not None or task.text_of is not None else {}
        about |= {"mean_length": float(lengths.mean()), "longest": int(lengths.max())}
    labels = task.labels[label_set][rows]
    if not task.n_classes(label_set):
        low, high = float(labels.min()), float(labels.max())
        return {**about, "mean": float(labels.mean()), "std": float(labels.std()), "low": low, "high": high}
    counts = {name: int((labels == k).sum()) for k, name in enumerate(task.label_names[label_set])}
    largest = max(counts, key=lambda name: counts[name])
    return {**about, "classes": counts, "commonest": largest, "share": counts[largest] / len(rows)}


def _shared(
    task: Task, number: np.ndarray, pairs: tuple[np.ndarray, np.ndarray, np.ndarray], here: str, there: str
) -> tuple[dict[str, Any], np.ndarray]:
    """Duplicates of split `there` in split `here`, and the rows of `here` that they match, bool [N]."""
    in_here, in_there = task.splits == here, task.splits == there
    exact = np.intersect1d(number[in_here], number[in_there])
    is_between = np.isin(pairs[0], number[in_there]) & np.isin(pairs[1], number[in_here])
    one, other, index = (values[is_between] for values in pairs)
    is_exact = in_there & np.isin(number, exact)
    is_near = in_there & np.isin(number, one) & ~is_exact
    rows = in_here & np.isin(number, np.concatenate([exact, other]))
    masks = {"n": in_there, "exact": is_exact, "near": is_near, "rows": rows}
    about: dict[str, Any] = {name: int(mask.sum()) for name, mask in masks.items()}
    if is_exact.any():
        row = int(is_exact.argmax())
        about["first_exact"] = _example(task, row, int((in_here & (number == number[row])).argmax()))
    if is_near.any():
        row = int(is_near.argmax())
        best = int(np.where(one == number[row], index, -1).argmax())
        about["first_near"] = _example(task, row, int((in_here & (number == other[best])).argmax()))
        about["first_near"]["jaccard"] = float(index[best])
    return about, rows


def _conflicts(task: Task, number: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """Equal texts that are read at the same token or word and have different labels."""
    if task.spans is not None:  # compare exact characters, which spans count
        known: dict[Any, int] = {}
        texts = [known.setdefault(text, len(known)) for text in task.inputs]
        number = np.unique(np.column_stack([texts, task.spans]), axis=0, return_inverse=True)[1].ravel()
    if not isinstance(task.position, str):
        number = _of_pairs(number, task.position)
    classes = np.unique(labels, axis=0, return_inverse=True)[1].ravel()
    seen = number[np.unique(_of_pairs(number, classes), return_index=True)[1]]
    texts = np.flatnonzero(np.bincount(seen) > 1)
    rows = np.flatnonzero(np.isin(number, texts))
    conflicts: dict[str, Any] = {"texts": len(texts), "rows": len(rows)}
    if task.spans is not None:
        conflicts["unit"] = "words"
    elif task.text_of is not None:
        conflicts["unit"] = "tokens"
    if len(rows):
        other = int(((number == number[rows[0]]) & (classes != classes[rows[0]])).argmax())
        conflicts["first"] = _example(task, int(rows[0]), other)
    return conflicts


def _of_pairs(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """One number for each pair of whole numbers, int64 [N]; sorting numbers is many times faster than sorting pairs."""
    low = int(other.min())
    return np.unique(one * (int(other.max()) - low + 1) + (other - low), return_inverse=True)[1].ravel()


def _groups_spanning_splits(task: Task) -> int | None:
    if task.groups is None:
        return None
    groups = np.unique(task.groups, return_inverse=True)[1].ravel()
    splits = np.unique(task.splits, return_inverse=True)[1].ravel()
    return int((np.bincount(np.unique(np.stack([groups, splits]), axis=1)[0]) > 1).sum())


def _example(task: Task, one: int, other: int) -> dict[str, Any]:
    """Ids and texts of two rows, shortened, with special characters escaped."""
    return {"ids": [quote(task.ids[i]) for i in (one, other)], "texts": [quote(task.inputs[i]) for i in (one, other)]}


def _shared_finding(name: str, one: dict[str, Any], kind: str, result: Audit) -> Finding:
    there, here = name.split(" in ")
    (one_id, other_id), (text, other) = one[f"first_{kind}"]["ids"], one[f"first_{kind}"]["texts"]
    gone = ", where they were left out" if result.dropped else ""
    if kind == "exact":
        what = f"{one[kind]:,} of the {one['n']:,} {there} texts also occur in {here}{gone}"
        return what, f"{text} ({one_id}, {other_id})"
    more = "more " if one["exact"] else ""
    grams = "word trigrams" if result.splits[there]["unit"] == "words" else "token n-grams"
    what = f"{one[kind]:,} {more}of the {one['n']:,} {there} texts are near-duplicates of {here} texts{gone}"
    return f"{what} (Jaccard similarity of {grams} >= {THRESHOLD:g})", f"{text} ({one_id}) and {other} ({other_id})"


def _conflict_finding(conflicts: dict[str, Any]) -> Finding:
    ids, texts = conflicts["first"]["ids"], conflicts["first"]["texts"]
    number = f"{conflicts['texts']:,} ({conflicts['rows']:,} rows)"
    return f"{conflicts.get('unit', 'texts')} with contradictory labels, {number}", f"{texts[0]} ({ids[0]}, {ids[1]})"


def _split_lines(splits: dict[str, dict[str, Any]], split: str) -> list[str]:
    """Imbalanced classes in train; in other splits, lengths and class shares that differ from train's."""
    own, train = splits[split], splits.get("train", {})
    lines = []
    if split == "train" and own.get("share", 0) > IMBALANCED:
        lines.append(f"imbalanced classes: {own['share']:.0%} of train is {quote(own['commonest'])}")
    lengths = [about.get("median_length", 1.0) for about in (own, train)]
    if max(lengths) >= LONGER * min(lengths):
        lines.append(f"median length: {lengths[0]:g} {own['unit']} in {split}, {lengths[1]:g} in train")
    for name, n in own.get("classes", {}).items():
        share, usual = n / own["n"], train["classes"][name] / train["n"] if train else 0.0
        if train and abs(share - usual) >= SHIFT:
            lines.append(f"class {quote(name)}: {share:.0%} of {split}, {usual:.0%} of train")
    return lines

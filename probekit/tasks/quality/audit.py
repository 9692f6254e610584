"""Audit a task before a probe is fitted: texts in two splits, contradictory labels, imbalanced classes and splits.

Axes: N examples.
"""

from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np

from probekit.tasks.base import SPLITS, Task
from probekit.tasks.chats.messages import as_compared
from probekit.tasks.quality.compare_splits import difference_text, split_differences, split_record
from probekit.tasks.quality.duplicates import THRESHOLD, Inputs, near_pairs, rows_spanning_splits
from probekit.tasks.splitting.classes import IMBALANCED, look_alike_words
from probekit.tasks.splitting.splits import first_rows, groups_across_splits, text_numbers
from probekit.tasks.tables.data_table import quote
from probekit.tasks.token_labels import label_rows
from probekit.text import counted

Finding = tuple[str, str]  # what was found, and its first example
Pairs = tuple[np.ndarray, np.ndarray, np.ndarray]  # as `near_pairs` finds them
NO_PAIRS: Pairs = (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), np.empty(0))


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
        near: whether near-duplicates were looked for; without, `shared` and `leaks` are of exact ones alone.
        linked: with folds, the number of texts that have an exact or near duplicate, which is in the same fold.
        differences: how validation and test differ from train in length, labels and repeated texts (`compare_splits`).
        test_leak: {"texts": test texts with an exact or near duplicate in an earlier split, "near": those with near
            ones alone, "of_texts", "also_in": these splits, "group_rows": other test rows that share a group with
            one, "of_rows"}; None without a test split.
    """

    label: str
    splits: dict[str, dict[str, Any]]
    shared: dict[str, dict[str, Any]] = field(default_factory=dict)
    conflicts: dict[str, Any] = field(default_factory=lambda: {"texts": 0, "rows": 0})
    groups_across_splits: int | None = None
    leaks: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    no_texts: bool = False
    dropped: bool = False
    near: bool = True
    linked: int | None = None
    differences: list[dict[str, Any]] = field(default_factory=list)
    test_leak: dict[str, Any] | None = None


def audit_dict(result: Audit) -> dict[str, Any]:
    """The audit as JSON-able values, with the number of leaks in each split instead of their rows."""
    kept = {name: value for name, value in vars(result).items() if name not in ("leaks", "test_leak")}
    kept |= {"near": THRESHOLD, "leaks": {split: one["leaks"] for split, one in result.splits.items()}}
    if not result.near:  # 0 would say that there are none
        kept |= {"near": None, "shared": {name: {**one, "near": None} for name, one in result.shared.items()}}
    return {**kept, "lines": audit_lines(result), "findings": audit_findings(result)}


def audit_lines(result: Audit) -> list[str]:
    """One line per finding, with its number and its first example; empty if there is nothing to report."""
    return [f"{what}: {example}" if example else what for what, example in _findings(result)]


def audit_findings(result: Audit) -> list[str]:
    """The findings without their examples."""
    return [what for what, _ in _findings(result)]


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
        found.append((f"rows that leak: {' and '.join(leaks)}, {done}", ""))
    if alike := look_alike_words(result.splits.get("train", {}).get("classes", {})):
        found.append((alike, ""))
    if result.conflicts["texts"]:
        found.append(_conflict_finding(result.conflicts))
    if result.groups_across_splits:
        n = result.groups_across_splits
        found.append((f"{counted(n, 'group')} {'spans' if n == 1 else 'span'} splits", ""))
    if result.linked:
        found.append((f"{result.linked:,} texts have an exact or near duplicate; folds keep them together", ""))
    train = result.splits.get("train", {})
    if train.get("share", 0) > IMBALANCED:
        found.append((f"imbalanced classes: {train['share']:.0%} of train is {quote(train['commonest'])}", ""))
    return found + [(difference_text(one), "") for one in result.differences]


@dataclass(frozen=True, eq=False)
class TextComparison:
    """What is known about the texts of a task, whatever its labels.

    Attributes:
        number: int64 [N], equal for equal inputs; None where there are no texts.
        shared: as in `Audit`.
        leaks: bool [N], the rows that leak.
        repeats: bool [N], the test rows whose text is in an earlier split.
        near: whether near-duplicates were looked for.
    """

    number: np.ndarray | None
    shared: dict[str, dict[str, Any]]
    leaks: np.ndarray
    repeats: np.ndarray
    near: bool


def compare_texts(task: Task, near: bool = True) -> TextComparison:
    """Which texts and groups of the task are in several splits; most of the work of an audit. `near` as in `audit`."""
    task, number, shared = as_compared(task), None, {}
    leaks, repeats = np.zeros(len(task), dtype=bool), np.zeros(len(task), dtype=bool)
    if task.has_texts:
        rows, of = task.texts()
        texts = task if len(rows) == len(task) else task.subset(rows)
        inputs = Inputs.of(texts.inputs) if near else None
        number_T, shared, leaks_T, repeats_T = _compare(texts, inputs)
        if inputs is not None:
            _add_hidden_leaks(texts, inputs, leaks_T)
        leaks, repeats, number = leaks_T[of], repeats_T[of], number_T[of]
    if task.groups is not None:
        leaks[rows_spanning_splits(task.groups, task.splits)] = True
    return TextComparison(number, shared, leaks, repeats, near)


def audit(task: Task, label_set: str | None = None, near: bool = True, texts: TextComparison | None = None) -> Audit:
    """Audit a checked task and one of its label sets (default: the target); changes nothing.

    `tasks.splitting.splits` defines exact duplicates, `tasks.quality.duplicates` near ones. Inputs that are
    placeholders (an import without texts) are not compared.

    Args:
        task: of N examples.
        label_set: to audit.
        near: whether to look for near-duplicates too; without them, 100,000 texts take a second or two.
        texts: from `compare_texts`, to audit several label sets; None compares them here.

    Raises:
        UsageError: no such label set.
    """
    label_set = task.label_set(label_set)
    task = as_compared(label_rows(task, label_set) if label_set in task.token_labels else task)
    splits = {split: split_record(task, label_set, split) for split in SPLITS if (task.splits == split).any()}
    texts = texts or compare_texts(task, near)
    spanning = groups_across_splits(task)
    result = Audit(label_set, splits, texts.shared, groups_across_splits=spanning, no_texts=not task.has_texts)
    if texts.number is not None:
        result = replace(result, conflicts=_conflicts(task, texts.number, task.labels[label_set]))
    for split in splits:
        splits[split]["leaks"] = int((texts.leaks & (task.splits == split)).sum())
    return replace(
        result,
        leaks=np.flatnonzero(texts.leaks),
        near=texts.near,
        differences=split_differences(task, label_set, texts.number),
        test_leak=_test_leak(task, texts, result.shared),
    )


def _test_leak(task: Task, texts: TextComparison, shared: dict[str, dict[str, Any]]) -> dict[str, Any] | None:
    """How much of test is also in an earlier split."""
    test, repeats = task.splits == "test", texts.repeats
    if not test.any():
        return None
    exact = np.zeros(len(task), dtype=bool)
    if texts.number is not None:
        exact = repeats & np.isin(texts.number, texts.number[np.isin(task.splits, SPLITS) & ~test])
    firsts, grouped = task.texts()[0], np.zeros(len(task), dtype=bool)
    if task.groups is not None:
        grouped = test & np.isin(task.groups, task.groups[~test]) & ~repeats
    pairs = {name.partition(" in ")[2]: one for name, one in shared.items() if name.startswith("test ")}
    return {
        "texts": int(repeats[firsts].sum()),
        "near": int((repeats & ~exact)[firsts].sum()),
        "of_texts": int(test[firsts].sum()),
        "also_in": [split for split, one in pairs.items() if one["exact"] or one["near"]],
        "group_rows": int(grouped.sum()),
        "of_rows": int(test.sum()),
    }


def _add_hidden_leaks(task: Task, inputs: Inputs, leaks: np.ndarray) -> None:
    """Add the leaks that appear once the first ones are gone: which shingles are templates depends on all texts."""
    while leaks.any():
        rest = np.flatnonzero(~leaks)
        more = _compare(task.subset(rest), inputs.of_rows(rest))[2]
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
    if not task.has_texts:
        return Audit(label_set, {}, no_texts=True, linked=0)
    task = as_compared(task)
    rows, of = task.texts() if task.text_of is not None else (np.arange(len(task)),) * 2
    conflicts = _conflicts(task, Inputs.of([task.inputs[i] for i in rows]).number[of], task.labels[label_set])
    own = texts[task.texts()[0]]
    return Audit(label_set, {}, conflicts=conflicts, linked=int((np.bincount(own)[own] > 1).sum()))


def _compare(task: Task, inputs: Inputs | None) -> tuple[np.ndarray, dict[str, dict[str, Any]], np.ndarray, np.ndarray]:
    """Each input's number, what each two splits share, the rows that leak, and the test rows that repeat others.

    Inputs of one number are the same text. Rows are marked, bool [N]. None for `inputs` leaves out near-duplicates.
    """
    if inputs is not None:
        number = inputs.number
        pairs = near_pairs(inputs.shingles(), np.unique(number[task.splits != SPLITS[0]]))
    else:
        number, pairs = text_numbers(task.inputs), NO_PAIRS
    shared, leaks, repeats = {}, np.zeros(len(task), dtype=bool), np.zeros(len(task), dtype=bool)
    for here, there in combinations([split for split in SPLITS if (task.splits == split).any()], 2):
        shared[f"{there} in {here}"], rows, found = _shared(task, number, pairs, here, there)
        leaks |= rows
        repeats |= found & (there == "test")
    return number, shared, leaks, repeats


def _shared(
    task: Task, number: np.ndarray, pairs: Pairs, here: str, there: str
) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
    """Duplicates of split `there` in split `here`; the rows of `here` that they match, and their own, bool [N]."""
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
    return about, rows, is_exact | is_near


def _conflicts(task: Task, number: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """Equal texts that are read at the same token or word and have different labels."""
    if task.spans is not None:  # compare exact characters, which spans count
        texts = first_rows([*map(str, task.inputs)])[1]
        number = np.unique(np.column_stack([texts, task.spans]), axis=0, return_inverse=True)[1].ravel()
    if not isinstance(task.position, str):
        number = _of_pairs(number, task.position)
    again = np.flatnonzero(np.bincount(number)[number] > 1)  # rows whose text is that of another
    number, classes = number[again], np.unique(labels[again], axis=0, return_inverse=True)[1].ravel()
    seen = number[np.unique(_of_pairs(number, classes), return_index=True)[1]] if len(again) else number
    texts = np.flatnonzero(np.bincount(seen) > 1)
    rows = np.flatnonzero(np.isin(number, texts))
    conflicts: dict[str, Any] = {"texts": len(texts), "rows": len(rows)}
    if task.spans is not None:
        conflicts["unit"] = "words"
    elif task.text_of is not None:
        conflicts["unit"] = "tokens"
    if len(rows):
        other = int(((number == number[rows[0]]) & (classes != classes[rows[0]])).argmax())
        conflicts["first"] = _example(task, int(again[rows[0]]), int(again[other]))
    return conflicts


def _of_pairs(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """One number for each pair of whole numbers, int64 [N]; sorting numbers is many times faster than sorting pairs."""
    low = int(other.min())
    return np.unique(one * (int(other.max()) - low + 1) + (other - low), return_inverse=True)[1].ravel()


def _example(task: Task, one: int, other: int) -> dict[str, Any]:
    """Ids and texts of two rows, shortened, with special characters escaped."""
    return {"ids": [quote(task.ids[i]) for i in (one, other)], "texts": [quote(task.inputs[i]) for i in (one, other)]}


def _shared_finding(name: str, one: dict[str, Any], kind: str, result: Audit) -> Finding:
    there, here = name.split(" in ")
    (one_id, other_id), (text, other) = one[f"first_{kind}"]["ids"], one[f"first_{kind}"]["texts"]
    gone = ", where they were left out" if result.dropped else ""
    if kind == "exact":
        occur = "occurs" if one[kind] == 1 else "occur"
        what = f"{one[kind]:,} of the {counted(one['n'], f'{there} text')} also {occur} in {here}{gone}"
        return what, f"{text} ({one_id}, {other_id})"
    more = "more " if one["exact"] else ""
    grams = "word trigrams" if result.splits[there]["unit"] == "words" else "token n-grams"
    are = "is a near-duplicate" if one[kind] == 1 else "are near-duplicates"
    what = f"{one[kind]:,} {more}of the {counted(one['n'], f'{there} text')} {are} of {here} texts{gone}"
    return f"{what} (Jaccard similarity of {grams} >= {THRESHOLD:g})", f"{text} ({one_id}) and {other} ({other_id})"


def _conflict_finding(conflicts: dict[str, Any]) -> Finding:
    ids, texts = conflicts["first"]["ids"], conflicts["first"]["texts"]
    what = counted(conflicts["texts"], conflicts.get("unit", "texts").removesuffix("s"))
    return f"{what} with contradictory labels ({conflicts['rows']:,} rows)", f"{texts[0]} ({ids[0]}, {ids[1]})"

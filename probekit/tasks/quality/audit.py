"""What is wrong with the data before a probe is fitted: texts in two splits, contradictory labels, lopsided splits.

Axes: N examples.
"""

from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np

from probekit.tasks.base import IMBALANCED, SPLITS, Task
from probekit.tasks.data_table import quote
from probekit.tasks.quality.duplicates import THRESHOLD, Inputs, near_pairs, torn_rows

SHIFT = 0.1  # a class whose share in a split is so far from that in train is noted
LONGER = 1.5  # and texts that are so many times as long


@dataclass(frozen=True, eq=False)
class Audit:
    """What was found, for people (`lines`) and for files (`as_dict`).

    Attributes:
        label: the label set that was looked at.
        splits: split -> n, unit and median, mean and longest length of its texts; where examples are words, how many
            texts that are; n of each class and the commonest one's share, or
            mean, std, low and high of a regression's target.
        shared: "validation in train" -> texts of the one that stand in the other too: exact, near (those that only
            nearly do), rows of the other they meet, n of the one, and the first example of each kind.
        conflicts: texts, or words of one text, with several labels: texts, rows, and the first example.
        groups_across_splits: groups that stand in several splits; None where there are no groups.
        leaks: rows to leave out, int64 ascending: then no text of validation or test, and none that is nearly one,
            stands in train, and none of test in validation; nor does a group stand in two splits.
        no_texts: whether there were no texts to compare.
        dropped: whether the leaks were left out.
        linked: with folds, rows whose text stands, exactly or nearly, in another row; they are in its fold.
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

    def as_dict(self) -> dict[str, Any]:
        """JSON-able; of the leaks their number in each split."""
        kept = {name: value for name, value in vars(self).items() if name != "leaks"}
        return {**kept, "near": THRESHOLD, "leaks": {split: one["leaks"] for split, one in self.splits.items()}}

    def lines(self) -> list[str]:
        """One line for each finding, with its number and its first example; none when all is well."""
        found = [
            _shared_line(name, one, kind, self.dropped)
            for name, one in self.shared.items()
            for kind in ("exact", "near")
        ]
        found += [_conflict_line(self.conflicts)] if self.conflicts["texts"] else []
        found += (
            [f"groups that stand in several splits: {self.groups_across_splits:,}"] if self.groups_across_splits else []
        )
        found += [_linked_line(self.linked)] if self.linked else []
        found += [line for split in SPLITS if split in self.splits for line in _split_lines(self.splits, split)]
        left_out = [f"{one['leaks']:,} of {split}" for split, one in self.splits.items() if one["leaks"]]
        were = "were left out" if self.dropped else "would have to be left out"
        found += [f"leaks: {' and '.join(left_out)} {were}"] if left_out else []
        return [line for line in found if line]


def audit(task: Task, label_set: str | None = None) -> Audit:
    """Look at a checked task and one of its label sets (default: the target); changes nothing.

    What counts as equal or nearly equal is told in `evaluation.duplicates`. Where inputs only stand for rows (an import
    without texts) they are not compared.

    Raises:
        UsageError: no such label set.
    """
    label_set = task.target if label_set is None else label_set
    task.n_classes(label_set)  # raises where it is unknown
    no_texts = bool(task.info.get("no_texts"))
    splits = {split: _split(task, label_set, split) for split in SPLITS if (task.splits == split).any()}
    found = Audit(label_set, splits, groups_across_splits=_torn_groups(task), no_texts=no_texts)
    leaks = np.zeros(len(task), dtype=bool)
    if not no_texts:
        rows, of = task.texts()
        texts = task if task.spans is None else task.subset(rows)
        number, shared, leaks_T = _compare(texts)
        _spread(texts, leaks_T)
        leaks = leaks_T[of]
        found = replace(found, shared=shared, conflicts=_conflicts(task, number[of], task.labels[label_set]))
    if task.groups is not None:
        leaks[torn_rows(task.groups, task.splits)] = True
    for split in splits:
        splits[split]["leaks"] = int((leaks & (task.splits == split)).sum())
    return replace(found, leaks=np.flatnonzero(leaks))


def _spread(task: Task, leaks: np.ndarray) -> None:
    """Add the leaks that come to light without the first ones: what is a template depends on what is there."""
    while leaks.any():
        rest = np.flatnonzero(~leaks)
        more = _compare(task.subset(rest))[2]
        if not more.any():
            break
        leaks[rest[more]] = True


def audit_of_folds(task: Task, label_set: str, texts: np.ndarray) -> Audit:
    """The same of all rows together, which folds part anew.

    Args:
        task: of N rows.
        label_set: to look at.
        texts: which rows are of one text, exactly or nearly: equal numbers, int64 [N] (`protocol.rows_together`).
    """
    if task.info.get("no_texts"):
        return Audit(label_set, {}, no_texts=True, linked=0)
    conflicts = _conflicts(task, Inputs.of(task.inputs).number, task.labels[label_set])
    own = texts[task.texts()[0]]
    return Audit(label_set, {}, conflicts=conflicts, linked=int((np.bincount(own)[own] > 1).sum()))


def _linked_line(rows: int) -> str:
    return f"{rows:,} texts stand in another row too, exactly or nearly; folds keep them together"


def _compare(task: Task) -> tuple[np.ndarray, dict[str, dict[str, Any]], np.ndarray]:
    """Number of each input, equal for equal ones; what each two splits share; and the rows that leak, bool [N]."""
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
        about |= {"texts": len(firsts)} if task.spans is not None else {}
        about |= {"mean_length": float(lengths.mean()), "longest": int(lengths.max())}
    labels = task.labels[label_set][rows]
    if not task.n_classes(label_set):
        low, high = float(labels.min()), float(labels.max())
        return {**about, "mean": float(labels.mean()), "std": float(labels.std()), "low": low, "high": high}
    counts = {name: int((labels == k).sum()) for k, name in enumerate(task.label_names[label_set])}
    commonest = max(counts, key=lambda name: counts[name])
    return {**about, "classes": counts, "commonest": commonest, "share": counts[commonest] / len(rows)}


def _shared(
    task: Task, number: np.ndarray, pairs: tuple[np.ndarray, np.ndarray, np.ndarray], here: str, there: str
) -> tuple[dict[str, Any], np.ndarray]:
    """What of split `there` stands in split `here` too, and the rows of `here` that it meets, bool [N]."""
    in_here, in_there = task.splits == here, task.splits == there
    exact = np.intersect1d(number[in_here], number[in_there])
    pairs_held = np.isin(pairs[0], number[in_there]) & np.isin(pairs[1], number[in_here])
    one, other, index = (values[pairs_held] for values in pairs)
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
    """Equal texts, read at the same token or word, with different labels."""
    if task.spans is not None:  # to the letter: spans count letters
        known: dict[Any, int] = {}
        texts = [known.setdefault(text, len(known)) for text in task.inputs]
        number = np.unique(np.column_stack([texts, task.spans]), axis=0, return_inverse=True)[1].ravel()
    if not isinstance(task.position, str):
        number = np.unique(np.stack([number, task.position]), axis=1, return_inverse=True)[1].ravel()
    classes = np.unique(labels, return_inverse=True)[1].ravel()
    seen = np.unique(np.stack([number, classes]), axis=1)[0]
    texts = np.flatnonzero(np.bincount(seen) > 1)
    rows = np.flatnonzero(np.isin(number, texts))
    found: dict[str, Any] = {"texts": len(texts), "rows": len(rows)}
    if task.spans is not None:
        found["unit"] = "words"
    if len(rows):
        other = int(((number == number[rows[0]]) & (labels != labels[rows[0]])).argmax())
        found["first"] = _example(task, int(rows[0]), other)
    return found


def _torn_groups(task: Task) -> int | None:
    if task.groups is None:
        return None
    groups = np.unique(task.groups, return_inverse=True)[1].ravel()
    splits = np.unique(task.splits, return_inverse=True)[1].ravel()
    return int((np.bincount(np.unique(np.stack([groups, splits]), axis=1)[0]) > 1).sum())


def _example(task: Task, one: int, other: int) -> dict[str, Any]:
    """Two rows for people, every strange character escaped."""
    return {"ids": [quote(task.ids[i]) for i in (one, other)], "texts": [quote(task.inputs[i]) for i in (one, other)]}


def _shared_line(name: str, one: dict[str, Any], kind: str, dropped: bool) -> str:
    if not one[kind]:
        return ""
    there, here = name.split(" in ")
    (one_id, other_id), (text, other) = one[f"first_{kind}"]["ids"], one[f"first_{kind}"]["texts"]
    if kind == "exact":
        stand = f"also stood in {here}, before they were left out there" if dropped else f"also stand in {here}"
        return f"{one[kind]:,} of the {one['n']:,} {there} texts {stand}: {text} ({one_id}, {other_id})"
    more = "more " if one["exact"] else ""
    their = f"{here} texts, which were left out" if dropped else f"{here} texts"
    return (
        f"{one[kind]:,} {more}of the {one['n']:,} {there} texts are near duplicates of {their}: "
        f"{text} ({one_id}) and {other} ({other_id})"
    )


def _conflict_line(conflicts: dict[str, Any]) -> str:
    ids, texts = conflicts["first"]["ids"], conflicts["first"]["texts"]
    number = f"{conflicts['texts']:,} ({conflicts['rows']:,} rows)"
    return (
        f"{conflicts.get('unit', 'texts')} that have different labels: {number}, first {texts[0]} ({ids[0]}, {ids[1]})"
    )


def _split_lines(splits: dict[str, dict[str, Any]], split: str) -> list[str]:
    own, train = splits[split], splits.get("train", {})
    lines = []
    if split == "train" and own.get("share", 0) > IMBALANCED:
        lines.append(f"{own['share']:.0%} of train is of one class, {quote(own['commonest'])}")
    lengths = [about.get("median_length", 1.0) for about in (own, train)]
    if max(lengths) >= LONGER * min(lengths):
        lines.append(f"a text of {split} has {lengths[0]:g} {own['unit']} (median), of train {lengths[1]:g}")
    for name, n in own.get("classes", {}).items():
        share, usual = n / own["n"], train["classes"][name] / train["n"] if train else 0.0
        if train and abs(share - usual) >= SHIFT:
            lines.append(f"class {quote(name)} is {share:.0%} of {split} and {usual:.0%} of train")
    return lines

"""What the splits of a task hold, and where validation and test differ from train.

A difference counts if it is large, and larger than random rows would show (p < 0.001): means that are a fifth of a
standard deviation apart (Cohen's d >= 0.2), or shares with a total variation distance of 0.1 or more. Tokens of one
text depend on one another, so labels of tokens are compared by text: random texts, not random tokens.

Axes: N examples, T texts.
"""

from typing import Any

import numpy as np
from scipy.special import chdtrc, stdtr  # scipy.stats takes a third of the start of `extract` to import

from probekit.files.scratch import picked
from probekit.tasks.base import SPLITS, Task
from probekit.tasks.tables.data_table import quote

LEAST_D = 0.2
LEAST_SHIFT = 0.1  # total variation distance
LEAST_P = 0.001
LEAST_ROWS = 20  # in each split; fewer rows show little beyond noise


def split_record(task: Task, label_set: str, split: str) -> dict[str, Any]:
    """The numbers of one split, JSON-able; `Audit.splits` lists them."""
    rows = np.flatnonzero(task.splits == split)
    texts = isinstance(task.inputs[0], str)
    firsts = task.texts()[0]
    firsts = firsts[task.splits[firsts] == split]
    sizes = (len(str(one).split() if texts else one) for one in picked(task.inputs, firsts))
    lengths = np.fromiter(sizes, np.int64, len(firsts))
    about: dict[str, Any] = {"n": len(rows), "leaks": 0}
    if task.has_texts:
        about |= {"unit": "words" if texts else "tokens", "median_length": float(np.median(lengths))}
        about |= {"texts": len(firsts)} if task.spans is not None or task.text_of is not None else {}
        about |= {"mean_length": float(lengths.mean()), "longest": int(lengths.max())}
    labels = task.labels[label_set][rows]
    if not task.n_classes(label_set):
        small, exponent = _scaled(labels)
        mean, std = (float(np.ldexp(value, exponent)) for value in (small.mean(), small.std()))
        return {**about, "mean": mean, "std": std, "low": float(labels.min()), "high": float(labels.max())}
    counts = task.counts(label_set)[split]
    largest = max(counts, key=lambda name: counts[name])
    return {**about, "classes": counts, "commonest": largest, "share": counts[largest] / len(rows)}


def split_differences(task: Task, label_set: str, number: np.ndarray | None) -> list[dict[str, Any]]:
    """How validation and test differ from train: JSON-able records for `difference_text`.

    Args:
        task: of N examples.
        label_set: the labels to compare.
        number: the number of each example's text, int64 [N]; None where there are no texts.
    """
    found = []
    for split in SPLITS[1:]:
        pair = (task.splits == split, task.splits == SPLITS[0])
        if not all(rows.any() for rows in pair):
            continue
        if number is not None:
            found += _text_differences(task, number, split, pair)
        found += _label_differences(task, label_set, split, pair)
    return found


def difference_text(one: dict[str, Any]) -> str:
    """A difference in one line."""
    split, (own, train) = one["split"], one["values"]
    if one["what"] == "length":
        how = "longer" if own > train else "shorter"
        return f"{split} texts are {how} than train texts: {own:,.1f} and {train:,.1f} {one['unit']} on average"
    if one["what"] == "repeated texts":
        return f"texts that occur more than once: {own:.0%} of {split}, {train:.0%} of train"
    if one["what"] == "label":
        return f"class {quote(one['class'])}: {own:.0%} of {split}, {train:.0%} of train"
    return f"mean {quote(one['label'])}: {own:.4g} in {split}, {train:.4g} in train"


def _text_differences(
    task: Task, number: np.ndarray, split: str, pair: tuple[np.ndarray, np.ndarray]
) -> list[dict[str, Any]]:
    """Length, and the share of texts that occur more than once in the task; words share the text that they are in."""
    firsts = task.texts()[0]
    lengths = np.fromiter(map(len, picked(task.inputs, firsts)), np.float64, len(firsts))
    again = (np.bincount(number[firsts])[number[firsts]] > 1).astype(np.int64)
    own, train = (rows[firsts] for rows in pair)
    found = []
    if effect := _mean_effect(lengths[own], lengths[train]):
        unit = "characters" if isinstance(task.inputs[0], str) else "tokens"
        values = [float(lengths[own].mean()), float(lengths[train].mean())]
        found.append({"split": split, "what": "length", "values": values, "unit": unit, **effect})
    if effect := _share_effect(again[own], again[train], 2):
        values = [float(again[own].mean()), float(again[train].mean())]
        found.append({"split": split, "what": "repeated texts", "values": values, **effect})
    return found


def _label_differences(
    task: Task, label_set: str, split: str, pair: tuple[np.ndarray, np.ndarray]
) -> list[dict[str, Any]]:
    """Of classes, the one whose share differs most is named."""
    n_classes = task.n_classes(label_set)
    own, train = (task.labels[label_set][rows] for rows in pair)
    if task.text_of is not None and (own.ndim > 1 or not _texts_differ(task.text_of, task.labels[label_set], pair)):
        return []
    if n_classes and (effect := _share_effect(own, train, n_classes)):
        shares = [np.bincount(labels, minlength=n_classes) / len(labels) for labels in (own, train)]
        k = int(np.abs(shares[0] - shares[1]).argmax())
        values, name = [float(share[k]) for share in shares], task.label_names[label_set][k]
        return [{"split": split, "what": "label", "values": values, "class": name, **effect}]
    if not n_classes and own.ndim == 1 and (effect := _mean_effect(own, train)):
        values = [float(np.ldexp(small.mean(), exponent)) for small, exponent in map(_scaled, (own, train))]
        return [{"split": split, "what": "target", "values": values, "label": label_set, **effect}]
    return []


def _texts_differ(text_of: np.ndarray, labels: np.ndarray, pair: tuple[np.ndarray, np.ndarray]) -> bool:
    """Whether the share of a class, or the mean, of two splits differs by more than random texts would show.

    The share is a ratio of sums over texts. Its standard error comes from each text's influence on it (Cochran 1977,
    Sampling Techniques, 6.3-6.4); the p of several classes is Bonferroni's.
    """
    labels = _scaled(labels)[0] if labels.dtype.kind == "f" else labels
    classes = np.unique(labels) if labels.dtype.kind != "f" else [None]
    p = 1.0
    for k in classes:
        values = labels if k is None else (labels == k).astype(np.float64)
        p = min(p, _p_of_means(*(_influences(text_of[rows], values[rows]) for rows in pair)) * len(classes))
    return p < LEAST_P


def _influences(text_of: np.ndarray, values: np.ndarray) -> np.ndarray:
    """For each text a number [T] whose mean is the mean of all values, and whose spread is that of the mean."""
    of = np.unique(text_of, return_inverse=True)[1]
    n, sums = np.bincount(of), np.bincount(of, values)
    mean = values.mean()
    return mean + (sums - mean * n) / n.mean()


def _p_of_means(a: np.ndarray, b: np.ndarray) -> float:
    """The p of Welch's test; 1 for fewer than `LEAST_ROWS` values.

    The degrees of freedom are those of the smaller sample, which are the fewest that the test may have.
    """
    n = min(len(a), len(b))
    if n < LEAST_ROWS:
        return 1.0
    noise = np.sqrt(a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b))
    apart = abs(float(a.mean() - b.mean()))
    return float(2 * stdtr(n - 1, -apart / noise)) if noise else float(not apart)


def _mean_effect(a: np.ndarray, b: np.ndarray) -> dict[str, float | None] | None:
    """Cohen's d of two samples and the p of Welch's test, if they differ; d is None where neither varies."""
    small, _ = _scaled(np.concatenate([a, b]))
    a, b = small[: len(a)], small[len(a) :]
    apart = abs(float(a.mean() - b.mean()))
    if min(len(a), len(b)) < LEAST_ROWS or not apart:
        return None
    spread, p = np.sqrt((a.var(ddof=1) + b.var(ddof=1)) / 2), _p_of_means(a, b)
    d = float(apart / spread) if spread else None
    return {"d": d, "p": p} if (d is None or d >= LEAST_D) and p < LEAST_P else None


def _scaled(values: np.ndarray) -> tuple[np.ndarray, int]:
    """The values divided by a power of two, so that squares do not overflow, and its exponent."""
    exponent = int(np.frexp(np.abs(values).max())[1])
    return np.ldexp(values, -exponent), exponent


def _share_effect(a: np.ndarray, b: np.ndarray, n_classes: int) -> dict[str, float] | None:
    """Total variation distance and the p of the chi-squared test of homogeneity of two samples, if they differ."""
    if min(len(a), len(b)) < LEAST_ROWS:
        return None
    counts = np.stack([np.bincount(each, minlength=n_classes) for each in (a, b)]).astype(np.float64)
    counts = counts[:, counts.any(axis=0)]
    n = counts.sum(axis=1, keepdims=True)
    distance = float(np.abs(np.diff(counts / n, axis=0)).sum() / 2)
    expected = n * counts.sum(axis=0) / counts.sum()
    p = float(chdtrc(max(1, counts.shape[1] - 1), ((counts - expected) ** 2 / expected).sum()))
    return {"total_variation": distance, "p": p} if distance >= LEAST_SHIFT and p < LEAST_P else None

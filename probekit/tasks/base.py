"""A task: inputs with labels, their splits, and the token that is read."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from probekit.errors import DataError, UsageError, nearest
from probekit.tasks.digest import task_digest
from probekit.tasks.same_text import text_numbers
from probekit.tasks.splits import carve, carve_missing, components
from probekit.tasks.task_checks import (
    POSITIONS,
    SPLITS,
    check_example_ids,
    check_groups,
    check_inputs,
    check_label_sets,
    check_lengths,
    check_name,
    check_position,
    check_spans,
    check_splits,
    count_line,
    span_flaw,
)
from probekit.tasks.task_fields import array_of, coded, grouped, label_sets, listed_inputs, name_lists
from probekit.tasks.token_labels import (
    TokenLabels,
    as_token_labels,
    check_token_labels,
    constant_output,
    token_rows,
)
from probekit.text import counted, listed

__all__ = ["CARVED", "IMBALANCED", "POSITIONS", "SPLITS", "Task", "count_line"]

IMBALANCED = 0.8  # share of the training labels above which one class makes accuracy uninformative
CARVED = "carved_from_train"  # in a task's info: the splits that were carved


@dataclass(frozen=True, eq=False)
class Task:
    """N labelled examples in three splits; checked when it is made.

    Lists, arrays, tensors and columns of tables are taken wherever an array is named. A task without labels holds texts
    to extract, all of them in train.

    Attributes:
        name: for titles and manifests.
        inputs: N texts, or N lists of token ids.
        labels: label set -> int64 [N] with values 0..n_classes-1, or float64 [N] or [N, K], targets of a regression.
            Label texts, and numbers and booleans without names, become numbers in sorted order, as `load_task` does it.
            A single list is the set "label".
        label_names: label set -> the class names, in label order; empty for a regression. None derives them: numbers
            with fractions are then a regression. In a dict that leaves a set of floats out, it is a regression.
        splits: [N] of "train", "validation", "test". None carves a tenth each of validation and test (seed 0), as
            `load_task` does.
        target: the default label set, of `labels` or of `token_labels`; "" is the only one.
        position: the token to read: "last", "first", "mean", or an int64 [N] of token indices (negative: from the end).
        ids: N names, kept when other examples are left out: file (or split) and row counted from 0, "train:17".
        groups: [N] or None; examples of one group belong in one split.
        spans: int64 [N, 2] or None; each example is a word or phrase of its text, the characters [start, end), and
            `position` is the "first" or "last" of its tokens, or their "mean".
        targets: N texts or lists of token ids for the decoder of an encoder-decoder, whose encoder reads `inputs`; or
            None. `position` counts the tokens of the stack that is extracted.
        info: the origin, as JSON-able values: source, seed, sha256 of files, what was dropped or skipped.
        token_labels: label set -> a label for each token of each input of token ids: N arrays, int64 [L] or float64 [L]
            or [L, K]; given as an array [N, L] or [N, L, K], or as lists. Texts are classes.
        text_of: int64 [N], where each example is a token (`token_rows`): the number of its text; otherwise None.

    Raises:
        DataError: fields that do not fit together, or a label, split, input, span or group that cannot be used.
        UsageError: a field of another kind.
    """

    name: str
    inputs: list[str] | list[list[int]]
    labels: dict[str, np.ndarray] = None  # pyright: ignore[reportAssignmentType]
    label_names: dict[str, list[str]] = None  # pyright: ignore[reportAssignmentType]
    splits: np.ndarray = None  # pyright: ignore[reportAssignmentType]
    target: str = ""
    position: str | np.ndarray = "last"
    ids: list[str] = field(default_factory=list)
    groups: np.ndarray | None = None
    info: dict[str, Any] = field(default_factory=dict)
    spans: np.ndarray | None = None
    targets: list[str] | list[list[int]] | None = None
    token_labels: TokenLabels = field(default_factory=dict)
    text_of: np.ndarray | None = None

    def __post_init__(self) -> None:
        check_name(self.name)
        self._set(inputs=listed_inputs(self.inputs))
        check_inputs(self.inputs if self.text_of is None else self._of_texts())
        self._set(ids=listed_inputs(self.ids, "ids") if len(self.ids) else [str(i) for i in range(len(self))])
        self._set_labels()
        for name in ("position", "spans"):
            if not isinstance(given := getattr(self, name), str | None):
                self._set(**{name: array_of(given, name)})
        if self.groups is not None:
            self._set(groups=grouped(self.groups, self.ids))
        if self.targets is not None:
            self._set(targets=listed_inputs(self.targets, "targets"))
        carve_splits = self.splits is None
        self._set(splits=np.full(len(self), "train") if carve_splits else array_of(self.splits, "splits"))
        self._check_fields()
        if carve_splits and self._label_sets():
            self._carve_splits()

    def _set(self, **fields: Any) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def _set_labels(self) -> None:
        given, names = label_sets(self.labels), self.label_names
        token_labels, of_tokens = as_token_labels(self.token_labels, names if isinstance(names, Mapping) else {})
        if isinstance(names, Mapping) and token_labels:
            names = {name: own for name, own in names.items() if name not in token_labels} or None
        names = name_lists(names, list(given))
        sets = {name: coded(name, one, names, self.ids) for name, one in given.items()}
        self._set(labels={name: labels for name, (labels, _) in sets.items()})
        self._set(label_names=(names or {}) | {name: own for name, (_, own) in sets.items()} | of_tokens)
        self._set(token_labels=token_labels)
        if not self.target:
            known = self._label_sets()
            if len(known) > 1:
                raise UsageError(f"several label sets, and none is the default; name it, target=...: {listed(known)}")
            self._set(target=next(iter(known), ""))

    def _label_sets(self) -> list[str]:
        return [*self.labels, *self.token_labels]

    def _of_texts(self) -> list[Any]:
        return [self.inputs[i] for i in self.texts()[0].tolist()]

    def _carve_splits(self) -> None:
        """Carve validation and test from train, with the defaults of `load_task`."""
        labels, seed = self._stratified(), 0
        missing = ["validation", "test"]
        splits = carve_missing(labels, self.splits.tolist(), self.split_keys().tolist(), missing, seed)
        self._set(splits=splits, info={**self.info, "seed": seed, CARVED: missing})

    def __len__(self) -> int:
        return len(self.inputs)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{split} {(self.splits == split).sum()}" for split in SPLITS)
        if not self._label_sets():
            return f"Task({self.name!r}: {sizes}; no labels)"
        kind = f"of {self.n_classes()} classes" if self.n_classes() else "a regression"
        return f"Task({self.name!r}: {sizes}; target {self.target!r} {kind})"

    def label_set(self, name: str | None = None) -> str:
        """The name of a label set that is there (default: the target).

        Raises:
            UsageError: no such label set.
        """
        name = self.target if name is None else name
        if isinstance(name, str) and name in (known := self._label_sets()):
            return name
        if known := self._label_sets():
            raise UsageError(f"no label set {name!a}; {ascii(nearest(str(name), known))[1:-1]}")
        there = f"no label set {name!a}: " if name else ""
        raise UsageError(f"{there}{self.name!a} has no labels to train on; extract again with a task that has labels")

    def n_classes(self, label_set: str | None = None) -> int:
        """The number of classes of the label set (default: the target); 0 for a regression."""
        return len(self.label_names[self.label_set(label_set)])

    def counts(self, label_set: str | None = None) -> dict[str, dict[str, int]]:
        """The number of examples, or of tokens that have labels, by split and class: {split: {class name: n}}.

        A regression has no classes.
        """
        label_set = self.label_set(label_set)
        if label_set in self.token_labels:
            return token_rows(self).counts(label_set)
        labels, names = self.labels[label_set], self.label_names[label_set]
        counts: dict[str, dict[str, int]] = {split: {} for split in SPLITS}
        for split in SPLITS if len(names) else ():
            own = labels[self.splits == split]
            found = np.bincount(own[(own >= 0) & (own < len(names))], minlength=len(names))
            counts[split] = dict(zip(names, found.tolist(), strict=True))
        return counts

    def subset(self, rows: np.ndarray) -> "Task":
        """The task with only these rows (indices or a boolean mask [N]), in this order; ids stay.

        Raises:
            UsageError: neither.
        """
        rows = array_of(rows, "rows")
        if len(rows) and rows.dtype.kind not in "biu":
            raise UsageError(f"rows are indices or a boolean mask of the {len(self)} examples, got {rows.dtype}")
        rows = np.flatnonzero(rows) if rows.dtype == bool else rows.astype(np.int64)
        return replace(
            self,
            inputs=[self.inputs[i] for i in rows],
            labels={label_set: labels[rows] for label_set, labels in self.labels.items()},
            splits=self.splits[rows],
            position=self.position if isinstance(self.position, str) else self.position[rows],
            ids=[self.ids[i] for i in rows],
            groups=None if self.groups is None else self.groups[rows],
            spans=None if self.spans is None else self.spans[rows],
            targets=None if self.targets is None else [self.targets[i] for i in rows],
            token_labels={name: [labels[i] for i in rows] for name, labels in self.token_labels.items()},
            text_of=None if self.text_of is None else self.text_of[rows],
        )

    @property
    def words(self) -> list[str] | None:
        """The text of each span, N; None where the examples are complete inputs."""
        if self.spans is None:
            return None
        return [str(text)[start:end] for text, (start, end) in zip(self.inputs, self.spans.tolist(), strict=True)]

    def texts(self) -> tuple[np.ndarray, np.ndarray]:
        """The first row of each text of each split, and the number of each example's text: int64 [T], int64 [N].

        Only in tasks of words and in those of tokens do several rows share a text.
        """
        if self.text_of is not None:
            return np.unique(self.text_of, return_index=True, return_inverse=True)[1:]
        if self.spans is None:
            return np.arange(len(self)), np.arange(len(self))
        known: dict[Any, int] = {}
        keys = zip(self.splits.tolist(), self.inputs, strict=True)
        number = np.array([known.setdefault(key, len(known)) for key in keys], dtype=np.int64)
        return np.unique(number, return_index=True)[1], number

    def with_validation(self, fraction: float = 0.2, seed: int = 0) -> "Task":
        """The task with a validation split carved from train, stratified by the target.

        A regression is stratified by tenths of its values. Rows of the same text (`tasks.same_text`) or group stay in
        one split, so large groups can make the split larger or smaller than `fraction`.

        Args:
            fraction: of the training examples, between 0 and 1.
            seed: the same seed chooses the same examples.

        Raises:
            UsageError: a fraction out of range; the task has a validation split.
            DataError: fields that do not fit together. `check` tests whether both splits have every class.
        """
        if not isinstance(fraction, int | float) or not 0 < fraction < 1:
            raise UsageError(f"fraction must be between 0 and 1, got {fraction!a}")
        if (self.splits == "validation").any():
            raise UsageError(f"{self.name!a} has a validation split already; leave with_validation out")
        train = np.flatnonzero(self.splits == "train")
        size = max(self.n_classes() or 2, round(fraction * len(train)))
        chosen = carve(self._stratified()[train], self.split_keys()[train].tolist(), min(size, len(train)), seed)
        splits = self.splits.astype("<U10")
        splits[train[chosen]] = "validation"
        made = {"fraction": float(fraction), "seed": seed}
        return replace(self, splits=splits, info={**self.info, "validation_carved": made})

    def _stratified(self) -> np.ndarray:
        """The labels [N] by which splits are carved; those of tokens are not stratified."""
        return self.labels.get(self.target, np.zeros(len(self)))

    def split_keys(self) -> np.ndarray:
        """Numbers int64 [N], equal for rows that must share a split: those with the same text or group."""
        if self.text_of is not None:
            rows, of = self.texts()
            return replace(self.subset(rows), text_of=None).split_keys()[of]
        texts = np.arange(len(self)) if self.info.get("no_texts") else text_numbers(self.inputs)
        return components(texts.tolist(), *([] if self.groups is None else [self.groups.tolist()]))

    def fingerprint(self) -> str:
        """A sha256 over inputs, labels (of tokens too), class names, splits, ids, groups, position, spans, targets."""
        return task_digest(self)

    def check(self, label_set: str | None = None) -> None:
        """Check that a probe can be trained and tested on this label set (default: the target).

        A task may lack validation rows; they only serve to choose between probes.

        Raises:
            UsageError: no such label set.
            DataError: fields that do not fit together, an empty input, labels out of range, fewer than two classes, or
                a class that a split lacks, with the counts per class and split. For a regression: NaN, infinity, or a
                split without two different values.
        """
        label_set = self.label_set(label_set)
        self._check_fields()
        self._check_contents()
        if label_set in self.token_labels:
            token_rows(self).check(label_set)
        elif self._is_regression(label_set):
            self._check_target(label_set)
        else:
            self._check_classes(label_set)

    def _check_classes(self, label_set: str) -> None:
        self._check_labels(label_set)
        counts = self.counts(label_set)
        counts = {split: counts[split] for split in self._needed_splits()}
        if sum(any(classes[name] for classes in counts.values()) for name in self.label_names[label_set]) < 2:
            raise DataError(f"a probe needs two classes of {label_set!a} or more, got {count_line(counts)}")
        if any(n == 0 for classes in counts.values() for n in classes.values()):
            more = "" if self.groups is None else ", or make the groups smaller"
            advice = f"add examples, or merge rare classes{more}{self._numbers(label_set)}"
            raise DataError(
                f"every split needs every class of {label_set!a}, got {count_line(counts)}; "
                f"{self.too_alike(label_set) or advice}"
            )

    def _numbers(self, label_set: str) -> str:
        names = self.label_names[label_set]
        numbers = len(names) > 20 and all(name.lstrip("+-").isdigit() for name in names)
        return "; numbers such as years are predicted with --regression" if numbers else ""

    def _check_fields(self) -> None:
        """What `__post_init__` checks, also in a task whose dicts were changed since."""
        if self._label_sets() or self.target:
            self.label_set()
        check_token_labels(self)
        optional = {name: getattr(self, name) for name in ("groups", "position", "spans", "targets")}
        lengths = {f"labels[{name!r}]": labels for name, labels in self.labels.items()}
        lengths |= {"splits": self.splits, "ids": self.ids}
        lengths |= {name: value for name, value in optional.items() if not isinstance(value, str | None)}
        check_position(self.position)
        check_lengths(len(self), lengths)
        check_example_ids(self.ids)
        check_splits(self.splits)
        names = {name: own for name, own in self.label_names.items() if name not in self.token_labels}
        check_label_sets(self.labels, names, self.ids)
        if self.groups is not None:
            check_groups(self.groups)
        if self.spans is not None:
            check_spans(self.spans, self.inputs, self.position, self.ids)
        if self.targets is not None:
            check_inputs(self.targets, "targets")

    def _check_contents(self) -> None:
        """Check that no input and no span is empty."""
        for row, given in zip(self.ids, self.inputs, strict=True):
            if not len(given) or (isinstance(given, str) and not given.strip()):
                raise DataError(f"example {row!r} has an empty input; leave it out")
        if self.spans is not None:
            for row, text, (start, end) in zip(self.ids, self.inputs, self.spans.tolist(), strict=True):
                if flaw := span_flaw(text, start, end):
                    raise DataError(f"example {row!a}: {flaw}")

    def _is_regression(self, label_set: str) -> bool:
        return not len(self.label_names[label_set]) and self.labels[label_set].dtype.kind == "f"

    def _check_target(self, label_set: str) -> None:
        labels = self.labels[label_set]
        values = {split: labels[self.splits == split] for split in self._needed_splits()}
        if labels.ndim == 2 and (flaw := constant_output(labels, values)):
            raise DataError(f"a regression needs outputs that vary, and {flaw} of {label_set!a}; leave it out")
        if any(len(np.unique(own)) < 2 for own in values.values()):
            found = "; ".join(f"{split}: {_values_of(own)}" for split, own in values.items())
            raise DataError(
                f"a regression needs two different values of {label_set!a} or more in every split, got {found}; "
                f"{self.too_alike(label_set) or 'add examples, or name another column of labels'}"
            )

    def too_alike(self, label_set: str) -> str:
        """Advice where carved splits lack something because too many texts are equal; otherwise ""."""
        if CARVED not in self.info or self.info.get("no_texts"):
            return ""
        n, least = int(self.split_keys().max(initial=-1)) + 1, len(SPLITS)
        if self.spans is None:
            least *= max(2, self.n_classes(label_set))
        if n == len(self) or n >= least:
            return ""
        by_text = self.groups is None or self.spans is not None
        what, one = ("texts", "text") if by_text else ("texts and groups", "group")
        return (
            f"equal {what} stay in one split, and the {len(self)} examples have only "
            f"{counted(n, f'different {one}')}; add other texts, or give each split its own file"
        )

    def _needed_splits(self) -> list[str]:
        """Train, test and, if it has rows, validation: it only serves to choose between probes."""
        return [split for split in SPLITS if split != "validation" or (self.splits == split).any()]

    def _check_labels(self, label_set: str) -> None:
        labels, n = self.labels[label_set], self.n_classes(label_set)
        if ((labels < 0) | (labels >= n)).any():
            found = {
                split: {str(k): int((labels[self.splits == split] == k).sum()) for k in np.unique(labels)}
                for split in SPLITS
            }
            raise DataError(
                f"labels of {label_set!r} must be 0..{n - 1}, got {count_line(found)}; leave unlabelled examples out"
            )


def _values_of(labels: np.ndarray) -> str:
    return f"{len(labels)} of {labels.min():g} to {labels.max():g}" if len(labels) else "nothing"

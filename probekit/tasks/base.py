"""A task: inputs with labels, their splits, and the token that is read."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from probekit.errors import DataError, UsageError, nearest
from probekit.files.scratch import scratch_list
from probekit.options.task import OnBadRow
from probekit.selections import Selection
from probekit.tasks.chats.messages import checked_chats
from probekit.tasks.fields import (
    CARVED_FROM_TRAIN,
    NO_TEXTS,
    PROMPT_CHARACTERS,
    VALIDATION_CARVED,
    Region,
    changed_columns,
    column_rows,
    fingerprint,
)
from probekit.tasks.splitting.classes import check_trainable
from probekit.tasks.splitting.splits import (
    carve,
    carve_missing,
    components,
    first_rows,
    split_array,
    split_names,
    text_numbers,
)
from probekit.tasks.task_checks import (
    SPLITS,
    array_of,
    check_columns,
    check_inputs,
    check_not_empty,
    coded,
    grouped,
    label_sets,
    listed_inputs,
    name_lists,
    side_columns,
)
from probekit.tasks.token_labels import (
    TokenLabels,
    as_token_labels,
    check_token_labels,
    label_rows,
    no_label,
    rows_with_label,
    strata_of,
)
from probekit.text import counted, kind_of, listed

__all__ = ["SPLITS", "Task"]


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
        position: the tokens to read: a selection (`probekit.selections`), such as "last" or "mean@user", or an int64
            [N] of token indices (negative: from the end).
        ids: N names, kept when other examples are left out: file (or split) and row counted from 0, "train:17".
        groups: [N] or None; examples of one group belong in one split.
        spans: int64 [N, 2] or None; each example is a word or phrase of its text, the characters [start, end), and
            `position` is the "first" or "last" of its tokens, or their "mean".
        targets: N texts or lists of token ids for the decoder of an encoder-decoder, whose encoder reads `inputs`; or
            None. `position` counts the tokens of the stack that is extracted.
        info: the origin, as JSON-able values: source, seed, sha256 of files, what was dropped or skipped.
        token_labels: label set -> a label for each token of each input: N arrays, int64 [L] or float64 [L] or [L, K];
            given as an array [N, L] or [N, L, K], or as lists. Classes are derived as those of `labels`; floats are a
            regression. None is no label (-1, NaN): no probe uses the token. Those of texts are compared with the
            model's tokens by `extract`, which also takes a label for each character, or stretches of characters,
            {"start", "end", "label"}; one without start and end has the label of the tokens outside all others.
        text_of: int64 [N], where each example is a token (`token_rows`): the number of its text; otherwise None.
        chats: N lists of messages, {"role", "content"}, before a chat template made texts of them; or None. `inputs`
            are then the messages as plain lines, and the model's template makes the texts that it reads. Contents given
            as parts, {"type": "text", "text"}, are joined.
        regions: of each text its named parts, such as the contents of a chat's messages, in order; or None.
        token_ids: N lists of the token ids that each text is run as, context tokens left out; None asks the tokenizer.
        generated: int64 [N], how many tokens at the end of each text the model wrote itself; or None.
        columns: other columns of the examples by name, numbers or texts, None where one is missing: surface features
            that a probe may be reading instead (`train_probes(acts, nuisance=...)`).
        rows_made: what `token_rows` gave last, so that it is made once: the tokens of each text, and the task.

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
    chats: list[list[dict[str, Any]]] | None = None
    regions: list[list[Region]] | None = None
    token_ids: list[list[int]] | None = None
    generated: np.ndarray | None = None
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    rows_made: "tuple[np.ndarray, Task] | None" = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise UsageError(f"a task begins with its name, got {kind_of(self.name)}; write Task('mine', inputs, ...)")
        self._set(inputs=listed_inputs(self.inputs))
        check_inputs(self.inputs if self.text_of is None else [self.inputs[i] for i in self.texts()[0].tolist()])
        ids = listed_inputs(self.ids, "ids")
        self._set(ids=ids if len(ids) else scratch_list(map(str, range(len(self)))))
        if not isinstance(self.info, Mapping):
            raise UsageError(f"info is a dict of JSON-able values, got {kind_of(self.info)}; give a dict")
        self._set_labels()
        if isinstance(self.position, Selection) and self.position.each is not None:
            self._set(position=self.position.each)
        for name in ("position", "spans", "generated"):
            if not isinstance(given := getattr(self, name), str | None):
                self._set(**{name: array_of(given, name)})
        if isinstance(self.position, str):
            self._set(position=Selection.parse(self.position))
        if self.groups is not None:
            self._set(groups=grouped(self.groups, self.ids))
        if self.targets is not None:
            self._set(targets=listed_inputs(self.targets, "targets"))
        self._set(columns=side_columns(self.columns, self.ids))
        carve_splits = self.splits is None
        splits = np.broadcast_to("train", len(self)) if carve_splits else array_of(self.splits, "splits")
        self._set(splits=split_array(splits))
        self._check_fields()
        if self.chats is not None and self.text_of is None:
            self._set(chats=checked_chats(self.chats, self.ids))
        if carve_splits and self._label_sets():
            self._carve_splits()

    def _set(self, **fields: Any) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def _set_labels(self) -> None:
        given, of_tokens = label_sets(self.labels), label_sets(self.token_labels, "token_labels")
        if twice := [name for name in of_tokens if name in given]:
            raise UsageError(f"{twice[0]!a} is in labels and in token_labels; give each label set its own name")
        names = name_lists(self.label_names, [*given, *of_tokens])
        coded_sets = {name: coded(name, one, names, self.ids) for name, one in given.items()}
        token_labels, token_names = as_token_labels(of_tokens, names or {}, self.ids, self.inputs)
        own_names = {name: own for name, (_, own) in coded_sets.items()}
        self._set(labels={name: labels for name, (labels, _) in coded_sets.items()}, token_labels=token_labels)
        self._set(label_names=(names or {}) | own_names | token_names)
        if not self.target:
            known = self._label_sets()
            if len(known) > 1:
                raise UsageError(f"several label sets, and none is the default; name it, target=...: {listed(known)}")
            self._set(target=next(iter(known), ""))

    def _label_sets(self) -> list[str]:
        return [*self.labels, *self.token_labels]

    def _carve_splits(self) -> None:
        """Carve validation and test from train, with the defaults of `load_task`."""
        missing = ["validation", "test"]
        splits = carve_missing(strata_of(self), self.splits, self.split_keys(), missing, seed=0)
        self._set(splits=splits, info={**self.info, "seed": 0, CARVED_FROM_TRAIN: missing})

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
        raise UsageError(
            f"{there}{self.name!a} has no labels to train on; join some with probekit label (pk.label), or extract "
            "again with a task that has labels"
        )

    def n_classes(self, label_set: str | None = None) -> int:
        """The number of classes of the label set (default: the target); 0 for a regression."""
        return len(self.label_names[self.label_set(label_set)])

    def counts(self, label_set: str | None = None) -> dict[str, dict[str, int]]:
        """The number of examples, or of tokens that have labels, by split and class: {split: {class name: n}}.

        A regression has no classes.
        """
        label_set = self.label_set(label_set)
        if label_set in self.token_labels:
            return label_rows(self, label_set).counts(label_set)
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
            UsageError: neither, or an index out of range.
        """
        rows = array_of(rows, "rows")
        is_mask = rows.dtype == bool and len(rows) == len(self)
        if len(rows) and (rows.ndim != 1 or not (is_mask or rows.dtype.kind in "iu")):
            found = f"{rows.dtype} {list(rows.shape)}"
            raise UsageError(f"rows are indices or a boolean mask of the {len(self)} examples, got {found}")
        rows = np.flatnonzero(rows) if rows.dtype == bool else rows.astype(np.int64)
        if ((rows < -len(self)) | (rows >= len(self))).any():
            raise UsageError(f"rows are indices of the {len(self)} examples, got {rows.min()} to {rows.max()}")
        return replace(self, **changed_columns(self, lambda values: column_rows(values, rows)))

    @property
    def words(self) -> list[str] | None:
        """The text of each span, N; None where the examples are complete inputs."""
        if self.spans is None:
            return None
        return [str(text)[start:end] for text, (start, end) in zip(self.inputs, self.spans.tolist(), strict=True)]

    @property
    def has_texts(self) -> bool:
        """False where the inputs are only names of rows, as in an import without texts."""
        return not self.info.get(NO_TEXTS)

    def texts(self) -> tuple[np.ndarray, np.ndarray]:
        """The first row of each text of each split, and the number of each example's text: int64 [T], int64 [N].

        Only in tasks of words and in those of tokens do several rows share a text.
        """
        if self.text_of is not None:
            return np.unique(self.text_of, return_index=True, return_inverse=True)[1:]
        if self.spans is None:
            return np.arange(len(self)), np.arange(len(self))
        first, number = first_rows([*zip(self.splits.tolist(), self.inputs, strict=True)])
        return first, number.astype(np.int64)

    def with_validation(self, fraction: float = 0.2, seed: int = 0) -> "Task":
        """The task with a validation split carved from train, stratified by the target.

        A regression is stratified by tenths of its values. Rows of the same text (`tasks.splitting.splits`) or group
        stay in one split, so large groups can make the split larger or smaller than `fraction`.

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
        chosen = carve(strata_of(self)[train], self.split_keys()[train], min(size, len(train)), seed)
        codes = np.zeros(len(self), dtype=np.int8)
        for code, split in enumerate(SPLITS):
            codes[self.splits == split] = code
        codes[train[chosen]] = SPLITS.index("validation")
        splits = split_names(codes, SPLITS)
        made = {"fraction": float(fraction), "seed": seed}
        return replace(self, splits=splits, info={**self.info, VALIDATION_CARVED: made})

    def split_keys(self) -> np.ndarray:
        """Numbers int64 [N], equal for rows that must share a split: those with the same text or group."""
        if self.text_of is not None:
            rows, of = self.texts()
            return replace(self.subset(rows), text_of=None).split_keys()[of]
        texts = text_numbers(self.inputs) if self.has_texts else np.arange(len(self))
        return components(texts, *([] if self.groups is None else [self.groups]))

    def fingerprint(self) -> str:
        """A sha256 over every column, the class names, the target and the position."""
        return fingerprint(self)

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
        check_not_empty(self.inputs, self.spans, self.ids)
        if label_set in self.token_labels:
            label_rows(self, label_set).check(label_set)
        else:
            check_trainable(rows_with_label(self, label_set), label_set)

    def _check_fields(self) -> None:
        """What `__post_init__` checks, also in a task whose dicts were changed since."""
        if self._label_sets() or self.target:
            self.label_set()
        check_token_labels(self)
        check_columns(self)


def without_bad_rows(task: Task, bad: Mapping[int, str], flaw: str, on_bad_row: OnBadRow) -> tuple[Task, np.ndarray]:
    """The task without the bad rows, counted in `info["skipped"]`, and the rows that are left, int64.

    Args:
        task: the examples.
        bad: row -> what is wrong with it and what to do, as the message of an error.
        flaw: the kind of flaw, under which the rows are counted.
        on_bad_row: "error" raises for the first bad row.

    Raises:
        DataError: there is a bad row, or none is left.
    """
    rows = np.delete(np.arange(len(task)), list(bad))
    if not bad:
        return task, rows
    first = min(bad)
    if on_bad_row == "error":
        more = f" ({len(bad):,} such rows in all; --on-bad-row skip leaves them out)" if len(bad) > 1 else ""
        raise DataError(f"example {task.ids[first]!a}: {bad[first]}{more}")
    if not len(rows):
        raise DataError(f"all {counted(len(task), 'row')} are left out; example {task.ids[first]!a}: {bad[first]}")
    skipped = dict(task.info.get("skipped", {}))
    skipped[flaw] = skipped.get(flaw, 0) + len(bad)
    total = int(task.info.get("skipped_rows", 0)) + len(bad)
    left = replace(task.subset(rows), info={**task.info, "skipped": skipped, "skipped_rows": total})
    return left, rows


def examples_table(task: Task) -> dict[str, np.ndarray]:
    """Name -> [N]: id, text (or ids, of tokens), what the model wrote, word, split, group, label sets, other columns.

    `prompt` and `continuation` are the two parts of a text that the model continued. Classes are names; a missing
    label is None, or NaN of a number. A column whose name is taken is called "column NAME".
    """
    found: dict[str, np.ndarray] = {"id": _objects(task.ids)}
    if task.has_texts:
        found["ids" if len(task) and not isinstance(task.inputs[0], str) else "text"] = _objects(task.inputs)
    others = dict(task.columns)
    starts = others.pop(PROMPT_CHARACTERS, None)
    if starts is not None and "text" in found:
        cut = [(str(text), int(start)) for text, start in zip(task.inputs, starts.tolist(), strict=True)]
        found["prompt"] = _objects([text[:start] for text, start in cut])
        found["continuation"] = _objects([text[start:] for text, start in cut])
    if task.words is not None:
        found["word"] = _objects(task.words)
    found["split"] = _objects(task.splits.tolist())
    if task.groups is not None:
        found["group"] = _objects(task.groups.tolist())
    sets = {name: _labels(task, name) for name in task.labels if task.labels[name].ndim == 1}
    for name, values in (sets | others).items():
        found[name if name not in found else f"column {name}"] = values
    return found


def _labels(task: Task, name: str) -> np.ndarray:
    labels, names = task.labels[name], task.label_names[name]
    if not names:
        return labels
    missing = no_label(labels).tolist()
    return _objects([None if gone else names[k] for k, gone in zip(labels.tolist(), missing, strict=True)])


def _objects(values: Any) -> np.ndarray:
    cells = np.empty(len(values), dtype=object)
    cells[:] = list(values)
    return cells

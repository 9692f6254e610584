"""A task: inputs with labels, their splits, and the token that is read."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np

from probekit.errors import DataError, UsageError, nearest
from probekit.tasks.splits import carve, components
from probekit.tasks.token_labels import (
    TokenLabels,
    check_token_labels,
    constant_output,
    token_digest,
    token_fields,
    token_rows,
)

SPLITS = ("train", "validation", "test")
IMBALANCED = 0.8  # share of the training labels above which one class makes accuracy uninformative
POSITIONS = ("last", "first", "mean")
CARVED = "carved_from_train"  # in a task's info: the splits that were carved


@dataclass(frozen=True, eq=False)
class Task:
    """N labelled examples in three splits.

    Attributes:
        name: for titles and manifests.
        inputs: N texts, or N lists of token ids.
        labels: label set -> int64 [N] with values 0..n_classes-1, or float64 [N] or [N, K], the target of a regression.
        label_names: label set -> the class names, in label order; empty for a regression. Those of token labels can be
            left out.
        splits: [N] of "train", "validation", "test".
        target: the default label set, of `labels` or of `token_labels`; "" is the first.
        position: the token to read: "last", "first", "mean", or an int64 [N] of token indices (negative: from the end).
        ids: N names, kept when other examples are left out: file (or split) and row counted from 0, "train:17".
        groups: [N] or None; examples of one group belong in one split.
        spans: int64 [N, 2] or None; each example is a word or phrase of its text, the characters [start, end), and
            `position` is the "first" or "last" of its tokens, or their "mean".
        targets: N texts or lists of token ids for the decoder of an encoder-decoder, whose encoder reads `inputs`; or
            None. `position` counts the tokens of the stack that is extracted.
        info: the origin, as JSON-able values: source, seed, sha256 of files, what was dropped or skipped.
        token_labels: label set -> a label for each token of each input of token ids: N arrays, int64 [L] or float64 [L]
            or [L, K]; given as an array [N, L] or [N, L, K], or as lists.
        text_of: int64 [N], where each example is a token (`token_rows`): the number of its text; otherwise None.
    """

    name: str
    inputs: list[str] | list[list[int]]
    labels: dict[str, np.ndarray] = field(default_factory=dict)
    label_names: dict[str, list[str]] = field(default_factory=dict)
    splits: np.ndarray = field(default_factory=lambda: np.empty(0, dtype="<U10"))
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
        for name, value in token_fields(self).items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "labels", {name: np.asarray(given) for name, given in self.labels.items()})
        object.__setattr__(self, "splits", np.asarray(self.splits))
        if self.spans is not None:
            object.__setattr__(self, "spans", np.asarray(self.spans))
        if not self.ids:
            object.__setattr__(self, "ids", [str(i) for i in range(len(self.inputs))])

    def __len__(self) -> int:
        return len(self.inputs)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{split} {(self.splits == split).sum()}" for split in SPLITS)
        kind = f"of {self.n_classes()} classes" if self.n_classes() else "a regression"
        return f"Task({self.name!r}: {sizes}; target {self.target!r} {kind})"

    def n_classes(self, label_set: str | None = None) -> int:
        """The number of classes of the label set (default: the target); 0 for a regression."""
        return len(self.label_names[self._known(label_set)])

    def counts(self, label_set: str | None = None) -> dict[str, dict[str, int]]:
        """The number of examples by split and class: {split: {class name: n}}; a regression has no classes.

        Of token labels: the number of tokens.
        """
        label_set = self._known(label_set)
        if label_set in self.token_labels:
            return token_rows(self).counts(label_set)
        labels, names = self.labels[label_set], self.label_names[label_set]
        return {
            split: {name: int(((labels == k) & (self.splits == split)).sum()) for k, name in enumerate(names)}
            for split in SPLITS
        }

    def subset(self, rows: np.ndarray) -> "Task":
        """The task with only these rows (indices or a boolean mask [N]), in this order; ids stay."""
        rows = np.flatnonzero(rows) if rows.dtype == bool else rows
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

        A regression is stratified by tenths of its values. Equal inputs, and groups, stay in one split, so large groups
        can make the split larger or smaller than `fraction`.

        Args:
            fraction: of the training examples, between 0 and 1.
            seed: the same seed chooses the same examples.

        Raises:
            UsageError: a fraction out of range; the task has a validation split.
            DataError: fields that do not fit together. `check` tests whether both splits have every class.
        """
        if not 0 < fraction < 1:
            raise UsageError(f"fraction must be between 0 and 1, got {fraction!a}")
        if (self.splits == "validation").any():
            raise UsageError(f"{self.name!a} has a validation split; only a task without one has it carved from train")
        self._check_shapes()
        train = np.flatnonzero(self.splits == "train")
        size = max(self.n_classes() or 2, round(fraction * len(train)))
        labels = self.labels.get(self.target, np.zeros(len(self)))  # those of tokens are not stratified
        chosen = carve(labels[train], self.split_keys()[train].tolist(), min(size, len(train)), seed)
        splits = self.splits.astype("<U10")
        splits[train[chosen]] = "validation"
        made = {"fraction": float(fraction), "seed": seed}
        return replace(self, splits=splits, info={**self.info, "validation_carved": made})

    def split_keys(self) -> np.ndarray:
        """Numbers int64 [N], equal for rows that must share a split: those with equal inputs or groups."""
        if self.text_of is not None:
            rows, of = self.texts()
            return replace(self.subset(rows), text_of=None).split_keys()[of]
        inputs = [*_each(lambda one: one.strip() if isinstance(one, str) else tuple(_plain(one)), self.inputs)]
        return components(inputs, *([] if self.groups is None else [self.groups.tolist()]))

    def fingerprint(self) -> str:
        """A sha256 over inputs, labels (of tokens too), class names, splits, ids, groups, position, spans, targets."""
        digest = hashlib.sha256()
        for line in _each(_line, chain(self.inputs, self.splits.tolist(), self.ids)):
            digest.update(line)
        for label_set in sorted(self.labels):
            digest.update(repr((label_set, _plain(self.label_names[label_set]))).encode("utf-8", "surrogatepass"))
            labels = self.labels[label_set]
            digest.update(labels.astype("<f8" if self._is_regression(label_set) else "<i8").tobytes())
        position = self.position if isinstance(self.position, str) else self.position.astype("<i8").tobytes()
        groups = None if self.groups is None else self.groups.tolist()
        digest.update(repr((self.target, position, groups)).encode("utf-8", "surrogatepass"))
        for label_set in sorted(self.token_labels):
            digest.update(token_digest(label_set, self.label_names[label_set], self.token_labels[label_set]))
        if self.spans is not None:
            digest.update(self.spans.astype("<i8").tobytes())
        for line in _each(_line, self.targets or ()):
            digest.update(line)
        return digest.hexdigest()

    def check(self, label_set: str | None = None) -> None:
        """Check that a probe can be trained and evaluated on this label set (default: the target).

        Raises:
            UsageError: no such label set.
            DataError: fields that do not fit together, an empty input, labels out of range, fewer than two classes, or
                a class that a split lacks, with the counts per class and split. For a regression: NaN, infinity, or a
                split without two different values.
        """
        label_set = self._known(label_set)
        self._check_shapes()
        self._check_inputs()
        if label_set in self.token_labels:
            token_rows(self).check(label_set)
        elif self._is_regression(label_set):
            self._check_target(label_set)
        else:
            self._check_classes(label_set)

    def _check_classes(self, label_set: str) -> None:
        self._check_labels(label_set)
        counts = self.counts(label_set)
        if sum(any(classes[name] for classes in counts.values()) for name in self.label_names[label_set]) < 2:
            raise DataError(f"a probe needs two classes of {label_set!a} or more, got {count_line(counts)}")
        if any(n == 0 for classes in counts.values() for n in classes.values()):
            more = "" if self.groups is None else ", or make the groups smaller"
            advice = f"{self._carving()}add examples, or merge rare classes{more}{self._numbers(label_set)}"
            raise DataError(
                f"every split needs every class of {label_set!a}, got {count_line(counts)}; "
                f"{self.too_alike(label_set) or advice}"
            )

    def _numbers(self, label_set: str) -> str:
        names = self.label_names[label_set]
        numbers = len(names) > 20 and all(name.lstrip("+-").isdigit() for name in names)
        return "; numbers such as years are predicted with --regression" if numbers else ""

    def _known(self, label_set: str | None) -> str:
        label_set = self.target if label_set is None else label_set
        if label_set not in self.labels and label_set not in self.token_labels:
            known = [*self.labels, *self.token_labels]
            raise UsageError(f"no label set {label_set!a}; {ascii(nearest(str(label_set), known))[1:-1]}")
        return label_set

    def _check_shapes(self) -> None:
        n = len(self)
        self._known(None)
        check_token_labels(self)
        if self.labels.keys() | self.token_labels.keys() != self.label_names.keys():
            raise DataError(
                f"labels has the sets {sorted(self.labels)}, label_names {sorted(self.label_names)}; name the same sets"
            )
        lengths: dict[str, Any] = {f"labels[{k!r}]": v for k, v in self.labels.items()}
        lengths |= {"splits": self.splits, "ids": self.ids}
        lengths |= {} if self.groups is None else {"groups": self.groups}
        lengths |= {} if isinstance(self.position, str) else {"position": self.position}
        lengths |= {} if self.spans is None else {"spans": self.spans}
        lengths |= {} if self.targets is None else {"targets": self.targets}
        for part, values in lengths.items():
            if len(values) != n:
                raise DataError(f"expected one of {part} for each of the {n} inputs, got {len(values)}")
        if len(set(self.ids)) != n:
            raise DataError("ids must all be different")
        if isinstance(self.position, str) and self.position not in POSITIONS:
            raise UsageError(f"no position {self.position!r}; {nearest(self.position, POSITIONS)}")
        if strange := set(self.splits.tolist()) - set(SPLITS):
            raise DataError(f"splits are named {', '.join(SPLITS)}, got {sorted(strange)}")

    def _check_inputs(self) -> None:
        for row, given in zip(self.ids, self.inputs, strict=True):
            if not given or (isinstance(given, str) and not given.strip()):
                raise DataError(f"example {row!r} has an empty input; leave it out")
        if self.spans is not None:
            self._check_spans(self.spans)

    def _check_spans(self, spans: np.ndarray) -> None:
        if spans.dtype.kind not in "iu" or spans.shape != (len(self), 2):
            raise DataError(f"spans are whole numbers [{len(self)}, 2], got {spans.dtype} {list(spans.shape)}")
        if not isinstance(self.position, str):
            raise DataError("words are read at their first or last token or their mean; give one of these")
        for row, text, (start, end) in zip(self.ids, self.inputs, spans.tolist(), strict=True):
            if flaw := span_flaw(text, start, end):
                raise DataError(f"example {row!a}: {flaw}")

    def _is_regression(self, label_set: str) -> bool:
        return not len(self.label_names[label_set]) and self.labels[label_set].dtype.kind == "f"

    def _check_target(self, label_set: str) -> None:
        labels = self.labels[label_set]
        if not (finite := np.isfinite(labels).reshape(len(labels), -1).all(axis=1)).all():
            row = int(finite.argmin())
            raise DataError(
                f"a regression needs finite numbers, example {self.ids[row]!a} has {labels[row]} as its {label_set!a}; "
                f"leave it out ({int((~finite).sum())} in all)"
            )
        values = {split: labels[self.splits == split] for split in SPLITS}
        if labels.ndim == 2 and (flaw := constant_output(labels, values)):
            raise DataError(f"a regression needs outputs that vary, and {flaw} of {label_set!a}; leave it out")
        if any(len(np.unique(own)) < 2 for own in values.values()):
            found = "; ".join(f"{split}: {_values_of(own)}" for split, own in values.items())
            raise DataError(
                f"a regression needs two different values of {label_set!a} or more in every split, got {found}; "
                f"{self.too_alike(label_set) or f'{self._carving()}add examples, or name another column of labels'}"
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
            f"equal {what} stay in one split, and the {len(self)} examples have only {n} different "
            f"{one}{'s' * (n > 1)}; add other texts, or give each split its own file"
        )

    def _carving(self) -> str:
        """Advice where there is no validation split and none was carved."""
        if CARVED in self.info or (self.splits == "validation").any():
            return ""
        return "task.with_validation() carves the one that is missing; "

    def _check_labels(self, label_set: str) -> None:
        labels, n = self.labels[label_set], self.n_classes(label_set)
        if not np.issubdtype(labels.dtype, np.integer):
            raise DataError(
                f"labels {label_set!r} must be integers, got {labels.dtype}; a regression has no class names"
            )
        if ((labels < 0) | (labels >= n)).any():
            found = {
                split: {str(k): int((labels[self.splits == split] == k).sum()) for k in np.unique(labels)}
                for split in SPLITS
            }
            raise DataError(
                f"labels of {label_set!r} must be 0..{n - 1}, got {count_line(found)}; leave unlabelled examples out"
            )


def span_flaw(text: Any, start: int, end: int) -> str | None:
    """What is wrong with these characters as a word or phrase of the text; None if nothing is."""
    if not isinstance(text, str):
        return "a span is of characters, and the input is a list of token ids; give the text"
    if not 0 <= start < end <= len(text):
        return f"expected a span from 0 to {len(text)}, the text's characters, got {start} to {end}; correct it"
    if text[start:end].isspace():
        return f"the span from {start} to {end} holds only blanks; correct it"
    return None


def _plain(value: Any) -> Any:
    """Numbers and texts of numpy and torch, single or nested, as Python's own, so that equal ones have equal reprs.

    The repr of a long array would omit its middle.
    """
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, list) and set(map(type, value)) <= {int}:
        return value
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value


def _line(value: Any) -> bytes:
    """One value as a fingerprint takes it."""
    return repr(_plain(value)).encode("utf-8", "surrogatepass") + b"\n"


def _each(function: Callable[[Any], Any], values: Iterable[Any]) -> Iterator[Any]:
    """The function's results, computed once for one object several times in a row: the tokens of a text repeat it."""
    last, result = function, None
    for value in values:
        if value is not last:
            last, result = value, function(value)
        yield result


def _values_of(labels: np.ndarray) -> str:
    return f"{len(labels)} of {labels.min():g} to {labels.max():g}" if len(labels) else "nothing"


def count_line(counts: Mapping[str, Mapping[str, int]], most: int = 12) -> str:
    """Counts per class and split in one line; if a split has more than `most` classes, its rarest ones."""
    parts = []
    for split, classes in counts.items():
        shown = list(classes.items())
        if len(shown) > most:
            shown = sorted(shown, key=lambda item: item[1])[:most]
        more = f", and {len(classes) - most} more classes" if len(classes) > most else ""
        parts.append(
            f"{split}: " + (", ".join(f"{ascii(name)[1:-1][:40]}={n}" for name, n in shown) or "nothing") + more
        )
    return "; ".join(parts)

"""What every `Task` is checked for when it is made; the checks take the fields, not the task.

Axes: N examples.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from probekit.errors import DataError, UsageError
from probekit.files.scratch import DiskList, pieces
from probekit.tasks.splitting.split_names import SPLITS
from probekit.tasks.tables.data_table import quote
from probekit.text import kind_of, listed

ROWS = (list, tuple)  # and arrays and tensors: what an input of token ids may be


def check_name(name: Any) -> None:
    """Check that a task's first argument is its name.

    Raises:
        UsageError: it is something else, such as the inputs.
    """
    if not isinstance(name, str):
        raise UsageError(f"a task begins with its name, got {kind_of(name)}; write Task('mine', inputs, ...)")


def check_inputs(inputs: Sequence[Any], what: str = "inputs") -> None:
    """Check that all inputs are texts, or all are lists of token ids. An empty one is refused only by `Task.check`.

    Raises:
        DataError: one is something else; the message names the first.
    """
    if isinstance(inputs, DiskList) and inputs.are_texts:
        return
    kinds = set(map(type, inputs))
    are_texts = {issubclass(kind, str) for kind in kinds}
    if are_texts <= {True}:
        return
    if not kinds <= set(ROWS):
        for row, given in enumerate(inputs):
            if not isinstance(given, str) and not _is_row(given):
                hint = (
                    "a single list of token ids goes into another list" if _is_whole(type(inputs[0])) else "correct it"
                )
                raise DataError(f"{what}[{row}]: expected a text or a list of token ids, got {quote(given)}; {hint}")
    if len(are_texts) > 1:
        texts = [isinstance(given, str) for given in inputs]
        text, ids = texts.index(True), texts.index(False)
        raise DataError(f"{what}[{text}] is a text and {what}[{ids}] a list of token ids; give only one of the two")
    _check_token_ids(inputs, kinds, what)


def _check_token_ids(inputs: Sequence[Any], kinds: set[type], what: str) -> None:
    arrays = [one for one in inputs if hasattr(one, "dtype")] if not kinds <= set(ROWS) else []
    plain = inputs if not arrays else [one for one in inputs if not hasattr(one, "dtype")]
    are_whole = all("int" in str(dtype) for dtype in {one.dtype for one in arrays})  # of NumPy or torch
    if are_whole and all(map(_is_whole, set(map(type, chain.from_iterable(plain))))):
        return
    for row, given in enumerate(inputs):
        for one in given.tolist() if hasattr(given, "tolist") else given:
            if not _is_whole(type(one)):
                is_pair = isinstance(given, tuple) and len(given) == 2 and isinstance(one, str)
                hint = "load_task takes (text, label) pairs" if is_pair else "give a text as one string"
                raise DataError(f"{what}[{row}]: expected token ids, whole numbers, got {quote(one)}; {hint}")


def _is_row(given: Any) -> bool:
    return isinstance(given, ROWS) or (hasattr(given, "tolist") and getattr(given, "ndim", 0) == 1)


def _is_whole(kind: type) -> bool:
    return issubclass(kind, int | np.integer) and not issubclass(kind, bool)


def check_lengths(n: int, parts: Mapping[str, Any]) -> None:
    """Check that each part has one entry for each of the n inputs.

    Raises:
        DataError: a part is shorter or longer.
    """
    for part, values in parts.items():
        if len(values) != n:
            raise DataError(f"expected one of {part} for each of the {n:,} inputs, got {len(values):,}; give as many")


def check_example_ids(ids: Sequence[Any]) -> None:
    """Check that the names of the examples are texts (or whole numbers), all different.

    Raises:
        DataError: they are not.
    """
    if isinstance(ids, DiskList) and ids.are_texts and all_differ(ids):
        return
    if strange := [kind for kind in set(map(type, ids)) if not issubclass(kind, str | int | np.integer)]:
        raise DataError(f"ids are texts, got a {strange[0].__name__}; write them as texts")
    if len(set(ids)) != len(ids):
        twice = next(one for one, n in Counter(ids).items() if n > 1)
        raise DataError(f"ids must all differ, and {twice!a} occurs more than once; give each example its own")


def all_differ(ids: DiskList) -> bool:
    """True if no two ids are equal, by 64 bits of each; False may also be a coincidence."""
    hashes = np.fromiter(map(hash, ids), np.int64, len(ids))
    hashes.sort()
    return not (hashes[1:] == hashes[:-1]).any()


def check_splits(splits: np.ndarray) -> None:
    """Check that each example is in a known split.

    Raises:
        DataError: a name that is no split.
    """
    flat = splits.ravel()
    if strange := {name for rows in pieces(len(flat)) for name in set(flat[rows].tolist())} - set(SPLITS):
        found = sorted(map(quote, strange))
        raise DataError(
            f"splits are named {', '.join(SPLITS)}, got [{listed(found)}]; rename them, or leave splits out, and they "
            "are carved"
        )


def check_position(position: Any) -> None:
    """Check the token that is read, apart from the number of indices.

    Raises:
        UsageError: no word, nor an index for each example.
    """
    if not isinstance(position, str) and (position.ndim != 1 or position.dtype.kind not in "iu"):
        raise UsageError(
            f"a task's position is a selection such as last or mean@user, or a token's index for each example, got "
            f"{quote(position.tolist())}; one index for all is given to extract: position=3"
        )


def check_groups(groups: np.ndarray) -> None:
    """Check that each example has one group.

    Raises:
        DataError: an array of several axes.
    """
    if groups.ndim != 1:
        raise DataError(
            f"groups are one name or number for each example, got the shape {list(groups.shape)}; give one list of them"
        )


def check_spans(spans: np.ndarray, inputs: Sequence[Any], position: Any, ids: Sequence[Any]) -> None:
    """Check that each span is inside its text.

    Raises:
        DataError: other numbers than [N, 2], a position that words do not have, or a span outside its text.
    """
    if spans.dtype.kind not in "iu" or spans.shape != (len(inputs), 2):
        raise DataError(f"spans are whole numbers [{len(inputs)}, 2], got {spans.dtype} {list(spans.shape)}")
    if not isinstance(position, str):
        raise DataError("words are read at their first or last token or their mean; give one of these")
    ends = np.fromiter(map(len, inputs), dtype=np.int64, count=len(inputs))
    outside = (spans[:, 0] < 0) | (spans[:, 0] >= spans[:, 1]) | (spans[:, 1] > ends)
    are_ids = len(inputs) > 0 and not isinstance(inputs[0], str)
    for row in range(len(inputs)) if are_ids else np.flatnonzero(outside).tolist():
        raise DataError(f"example {ids[row]!a}: {span_flaw(inputs[row], *spans[row].tolist())}")


def check_not_empty(inputs: Sequence[Any], spans: np.ndarray | None, ids: Sequence[Any]) -> None:
    """Check that no input is empty, and no span holds only blanks.

    Raises:
        DataError: one is; the message names the first.
    """
    for row, given in zip(ids, inputs, strict=True):
        if not len(given) or (isinstance(given, str) and not given.strip()):
            raise DataError(f"example {row!a} has an empty input; leave it out")
    if spans is not None:
        for row, text, (start, end) in zip(ids, inputs, spans.tolist(), strict=True):
            if flaw := span_flaw(text, start, end):
                raise DataError(f"example {row!a}: {flaw}")


def check_label_sets(
    labels: Mapping[str, np.ndarray], names: Mapping[str, Any], ids: Sequence[Any], partial: Collection[str] = ()
) -> None:
    """Check that every label set is one number for each example, and its class names are different texts.

    Labels outside 0..C-1 are refused only by `Task.check` of that set: -1 means "not labelled". In the sets of
    `partial`, NaN means it too.

    Raises:
        DataError: they are not; NaN or infinity.
    """
    if labels.keys() != names.keys():
        own, named = (listed([ascii(one) for one in sorted(sets)]) or "none" for sets in (labels, names))
        raise DataError(f"labels has the sets {own}, and label_names {named}; name the same sets")
    for name, given in labels.items():
        if given.ndim != 1 and not (given.ndim == 2 and given.shape[1] and given.dtype.kind == "f"):
            raise DataError(
                f"labels[{name!r}] is one label, or several decimal numbers, for each example, got the shape "
                f"{list(given.shape)}; give one list of them"
            )
        if given.dtype.kind == "f":
            _check_finite(name, np.where(np.isnan(given), 0, given) if name in partial else given, names[name], ids)
        check_class_names(name, given.dtype, names[name])


def check_class_names(name: str, dtype: np.dtype, names: Sequence[str]) -> None:
    """Check that a label set has class names, all different, if and only if its labels are whole numbers.

    Raises:
        DataError: it is not so.
    """
    if dtype.kind not in "fiu" or bool(len(names)) == (dtype.kind == "f"):
        raise DataError(_of_kind(name, dtype))
    if len(set(names)) != len(names):
        raise DataError(f"label_names[{name!r}] names a class twice; give each class a name of its own")


def _of_kind(name: str, dtype: np.dtype) -> str:
    if dtype.kind in "iu":
        return (
            f"labels[{name!r}] are whole numbers without class names; leave label_names out, or give floats for a "
            "regression"
        )
    return f"labels {name!r} must be integers, got {dtype}; a regression has no class names"


def _check_finite(name: str, labels: np.ndarray, class_names: Sequence[str], ids: Sequence[Any]) -> None:
    if not (finite := np.isfinite(labels).reshape(len(labels), -1).all(axis=1)).all():
        row = int(finite.argmin())
        needs = (
            f"classes are numbered 0, 1, ... in {name!a}" if len(class_names) else "a regression needs finite numbers"
        )
        raise DataError(
            f"{needs}, example {ids[row]!a} has {labels[row]} as its {name!a}; leave it out "
            f"({int((~finite).sum())} in all)"
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


def is_sequence(given: Any) -> bool:
    """True for lists, tuples, arrays, tensors, columns of tables: anything with entries in order but texts."""
    if isinstance(given, str | bytes | Mapping | set | frozenset) or hasattr(given, "columns"):
        return False  # a data frame gives its columns, not its rows
    return isinstance(given, Sequence) or (isinstance(given, Iterable) and hasattr(given, "__len__"))

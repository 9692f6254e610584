"""What a `Task` makes of the fields that it is given (lists become arrays, label texts classes), and what it checks.

Axes: N examples.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from probekit.errors import DataError, UsageError
from probekit.files.scratch import DiskList, pieces, settled
from probekit.tasks.fields import UNLABELLED, task_columns
from probekit.tasks.labels import as_labels, column_of, encode, group_name, label_flaw, name_flaw, refuse_unlabelled
from probekit.tasks.splitting.splits import SPLITS
from probekit.tasks.tables.data_table import quote
from probekit.text import kind_of, listed

Task = Any  # `tasks.base.Task`, which imports this module
LABEL = "label"  # the name of a label set that is given without one
ROWS = (list, tuple)  # and arrays and tensors: what an input of token ids may be


def listed_inputs(inputs: Any, what: str = "inputs") -> list[Any]:
    """Inputs as a list: an array or a column of a table becomes one, a list stays itself.

    Raises:
        DataError: no sequence.
    """
    if isinstance(inputs, list | DiskList):
        return settled(inputs)
    if isinstance(inputs, str):
        raise DataError(f"{what} is a list of texts, got one text; put it into a list")
    if not is_sequence(inputs):
        kinds = "texts" if what == "ids" else "texts or of lists of token ids"
        raise DataError(f"{what} is a list of {kinds}, got {kind_of(inputs)}; give a list")
    return inputs.tolist() if hasattr(inputs, "tolist") else list(inputs)


def array_of(given: Any, what: str) -> np.ndarray:
    """An array of the entries of a list, a column or a tensor.

    Raises:
        UsageError: no sequence, such as a dict.
        DataError: lists of several lengths.
    """
    if isinstance(given, np.ndarray):
        return given
    cells = _cells(given, what)
    try:
        return np.asarray(cells)
    except ValueError:
        raise DataError(f"{what} is one entry for each example, got lists of several lengths") from None


def grouped(groups: Any, ids: Sequence[Any]) -> np.ndarray:
    """Groups as whole numbers or texts [N]; others, such as 1.0 or True, as `load_task` names them.

    Raises:
        DataError: an example without a group.
    """
    array = groups if isinstance(groups, np.ndarray) else np.array(_cells(groups, "groups"), dtype=object)
    if array.ndim != 1 or array.dtype.kind in "iuU":
        return array
    cells = array.tolist()
    for row, cell in enumerate(cells):
        if flaw := name_flaw(cell, "group"):
            raise DataError(f"example {ids[row] if row < len(ids) else row!a}: {flaw[1]}")
    kinds = set(map(type, cells))
    return np.array(cells if kinds in ({int}, {str}) else [group_name(cell) for cell in cells])


def label_sets(labels: Any, what: str = "labels") -> dict[str, Any]:
    """Label set -> what was given for it; a plain list is the set "label", None is no set.

    Raises:
        UsageError: something else.
    """
    if labels is None:
        return {}
    if isinstance(labels, Mapping):
        if strange := [name for name in labels if not isinstance(name, str)]:
            raise UsageError(f"label sets are named by texts, got {strange[0]!a}; write {what}={{'label': [...]}}")
        return dict(labels)
    if not is_sequence(labels):
        raise UsageError(f"{what} are a list, or label set -> list, got {kind_of(labels)}; write {what}=[...]")
    return {LABEL: labels}


def name_lists(names: Any, sets: Sequence[str]) -> dict[str, list[str] | None] | None:
    """Label set -> its class names as they were given; a plain list belongs to the only set. None stays None.

    Raises:
        UsageError: something else.
    """
    if names is None:
        return None
    if not isinstance(names, Mapping):
        if len(sets) != 1 or not is_sequence(names):
            raise UsageError(f"label_names is label set -> class names in label order, got {kind_of(names)}")
        names = {sets[0]: names}
    for name, given in names.items():
        if given is not None and not is_sequence(given):
            raise UsageError(f"label_names[{name!r}] is a list of class names, got {kind_of(given)}")
    return {name: None if given is None else [str(one) for one in given] for name, given in names.items()}


def coded(
    name: str, given: Any, names: Mapping[str, list[str] | None] | None, ids: Sequence[Any]
) -> tuple[np.ndarray, list[str]]:
    """The labels of one set as numbers, and its class names.

    Without names, texts, whole numbers and booleans become classes in sorted order, and numbers with fractions a
    regression, as in a file. Floats are a regression wherever there is a dict of names that leaves the set out.

    Raises:
        DataError: a label that cannot be used, or a text that is no class.
    """
    known = None if names is None else names.get(name)
    if isinstance(given, np.ndarray) and given.dtype.kind in "iuf" and known is not None:
        return given, known  # nothing to derive, as in each copy of a task
    array = array_of(given, f"labels[{name!r}]")
    if array.ndim == 2 and array.dtype.kind == "f" and not known:
        return array.astype(np.float64), []
    if known is None:
        is_regression = names is not None and array.dtype.kind == "f"
        if is_regression:
            return array.astype(np.float64), []
        cells = _cells(given, "labels")
        return derived(name, cells, _places(name, ids, len(cells)))
    if array.dtype.kind in "biuf":
        return array.astype(np.int64) if array.dtype.kind == "b" else array, known
    cells = _cells(given, "labels")
    return numbered(name, cells, known, _places(name, ids, len(cells))), known


def _places(name: str, ids: Sequence[Any], n: int) -> list[str]:
    """Where each of n labels is, for errors; there may be more labels than examples."""
    places = [f"example {one!a}" for one in ids[:n]]
    return places + [f"labels[{name!r}][{row}]" for row in range(len(places), n)]


def _cells(given: Any, what: str) -> list[Any]:
    """The entries as Python's own values."""
    if not is_sequence(given):
        raise UsageError(f"{what} is a list or an array with one entry for each example, got {kind_of(given)}")
    cells = given.tolist() if hasattr(given, "tolist") else list(given)
    return [cell.item() if isinstance(cell, np.generic) else cell for cell in cells]


def derived(name: str, cells: Sequence[Any], places: Sequence[str]) -> tuple[np.ndarray, list[str]]:
    """Labels without class names as a file would give them: int64 classes in sorted order, or float64 targets.

    Raises:
        DataError: a label that cannot be used; `places` say where each is.
    """
    if not cells:
        raise DataError(f"classes of {name!a} are derived from its labels, and there are none; give label_names too")
    for cell, place in zip(cells, places, strict=True):
        if flaw := label_flaw(cell, typed=True):
            raise DataError(f"{place} of labels[{name!r}]: {flaw[1]}, or leave the example out")
    classes = as_labels(cells, places, name)
    refuse_unlabelled(classes, places, name, "leave the example out, or write another label")
    return encode(classes)


def numbered(name: str, cells: Sequence[Any], known: Sequence[str], places: Sequence[str]) -> np.ndarray:
    """Label texts as the numbers of their class names, int64.

    Raises:
        DataError: a label that is no class; `places` say where each is.
    """
    number = {one: k for k, one in enumerate(known)}
    for cell, place in zip(cells, places, strict=True):
        if not isinstance(cell, str) or cell not in number:
            raise DataError(
                f"{place} has the label {cell!a} of {name!a}, which is not one of its class names "
                f"({listed([ascii(one) for one in known])}); add it to label_names, or leave label_names out"
            )
    return np.array([number[cell] for cell in cells], dtype=np.int64)


def side_columns(given: Any, ids: Sequence[Any]) -> dict[str, np.ndarray]:
    """Column -> numbers float64 [N] or categories object [N], from lists, arrays or columns of tables.

    Raises:
        UsageError: no dict of columns by name.
        DataError: more or fewer entries than examples, or one that is no number, text or truth value.
    """
    if not isinstance(given, Mapping) or not all(isinstance(name, str) and name for name in given):
        raise UsageError(f"columns is a dict of columns by name, got {kind_of(given)}; write columns={{'source': ...}}")
    found = {}
    for name, cells in given.items():
        if isinstance(cells, np.ndarray) and cells.dtype == np.float64 and cells.ndim == 1:
            column = cells
        else:
            own = _cells(cells, f"columns[{name!r}]")
            column = column_of(own, name, [f"example {one!a}" for one in ids] + [f"row {i}" for i in range(len(own))])
        if len(column) != len(ids):
            raise DataError(
                f"expected one entry of columns[{name!r}] for each of the {len(ids):,} inputs, got {len(column):,}; "
                "give as many"
            )
        found[name] = column
    return found


def check_columns(task: Task) -> None:
    """Check that the columns of a task fit together.

    An empty input, and a label outside 0..C-1, are refused only by `Task.check`: the label -1 means "not labelled".

    Raises:
        DataError: columns of several lengths, ids that are no texts or not all different, unknown splits, labels of
            another form, NaN or infinity, a span or region outside its text.
        UsageError: a position that is not an index for each example.
    """
    if not isinstance(task.position, str) and (task.position.ndim != 1 or task.position.dtype.kind not in "iu"):
        raise UsageError(
            f"a task's position is a selection such as last or mean@user, or a token's index for each example, got "
            f"{quote(task.position.tolist())}; one index for all is given to extract: position=3"
        )
    n = len(task)
    for (field, name), values in task_columns(task):
        if len(values) != n:
            part = f"{field}[{name!r}]" if name else field
            raise DataError(f"expected one of {part} for each of the {n:,} inputs, got {len(values):,}; give as many")
    _check_ids(task.ids)
    flat = task.splits.ravel()
    if strange := {name for rows in pieces(len(flat)) for name in set(flat[rows].tolist())} - set(SPLITS):
        found = sorted(map(quote, strange))
        raise DataError(
            f"splits are named {', '.join(SPLITS)}, got [{listed(found)}]; rename them, or leave splits out, and they "
            "are carved"
        )
    _check_label_sets(task)
    if task.groups is not None and task.groups.ndim != 1:
        raise DataError(
            "groups are one name or number for each example, got the shape "
            f"{list(task.groups.shape)}; give one list of them"
        )
    if task.spans is not None:
        _check_spans(task)
    if task.targets is not None:
        check_inputs(task.targets, "targets")
    if task.regions is not None and task.text_of is None:  # the rows of tokens repeat those of their texts
        _check_regions(task)


def _check_ids(ids: Sequence[Any]) -> None:
    if isinstance(ids, DiskList) and ids.are_texts:
        hashes = np.fromiter(map(hash, ids), np.int64, len(ids))  # equal ones may be a coincidence
        hashes.sort()
        if not (hashes[1:] == hashes[:-1]).any():
            return
    if strange := [kind for kind in set(map(type, ids)) if not issubclass(kind, str | int | np.integer)]:
        raise DataError(f"ids are texts, got a {strange[0].__name__}; write them as texts")
    if len(set(ids)) != len(ids):
        twice = next(one for one, n in Counter(ids).items() if n > 1)
        raise DataError(f"ids must all differ, and {twice!a} occurs more than once; give each example its own")


def _check_label_sets(task: Task) -> None:
    """Check that every label set is one number, or several decimal ones, for each example, and has class names."""
    names = {name: own for name, own in task.label_names.items() if name not in task.token_labels}
    if task.labels.keys() != names.keys():
        own, named = (listed([ascii(one) for one in sorted(sets)]) or "none" for sets in (task.labels, names))
        raise DataError(f"labels has the sets {own}, and label_names {named}; name the same sets")
    for name, given in task.labels.items():
        if given.ndim != 1 and not (given.ndim == 2 and given.shape[1] and given.dtype.kind == "f"):
            raise DataError(
                f"labels[{name!r}] is one label, or several decimal numbers, for each example, got the shape "
                f"{list(given.shape)}; give one list of them"
            )
        if given.dtype.kind == "f":
            is_partial = name in task.info.get(UNLABELLED, ())  # NaN is no label in these sets
            _check_finite(name, np.where(np.isnan(given), 0, given) if is_partial else given, names[name], task.ids)
        check_class_names(name, given.dtype, names[name])


def check_class_names(name: str, dtype: np.dtype, names: Sequence[str]) -> None:
    """Check that a label set has class names, all different, if and only if its labels are whole numbers.

    Raises:
        DataError: it is not so.
    """
    if dtype.kind in "iu" and not len(names):
        raise DataError(
            f"labels[{name!r}] are whole numbers without class names; leave label_names out, or give floats for a "
            "regression"
        )
    if dtype.kind not in "fiu" or bool(len(names)) == (dtype.kind == "f"):
        raise DataError(f"labels {name!r} must be integers, got {dtype}; a regression has no class names")
    if len(set(names)) != len(names):
        raise DataError(f"label_names[{name!r}] names a class twice; give each class a name of its own")


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


def _check_spans(task: Task) -> None:
    spans, inputs = task.spans, task.inputs
    if spans.dtype.kind not in "iu" or spans.shape != (len(inputs), 2):
        raise DataError(f"spans are whole numbers [{len(inputs)}, 2], got {spans.dtype} {list(spans.shape)}")
    if not isinstance(task.position, str):
        raise DataError("words are read at their first or last token or their mean; give one of these")
    ends = np.fromiter(map(len, inputs), dtype=np.int64, count=len(inputs))
    outside = (spans[:, 0] < 0) | (spans[:, 0] >= spans[:, 1]) | (spans[:, 1] > ends)
    are_ids = len(inputs) > 0 and not isinstance(inputs[0], str)
    for row in range(len(inputs)) if are_ids else np.flatnonzero(outside).tolist():
        raise DataError(f"example {task.ids[row]!a}: {span_flaw(inputs[row], *spans[row].tolist())}")


def _check_regions(task: Task) -> None:
    """Check that each region lies in its text, and that those of a text follow one another."""
    for row, (own, text) in enumerate(zip(task.regions, task.inputs, strict=True)):
        last = 0
        for name, start, end in own:
            if not isinstance(text, str) or not last <= start <= end <= len(text):
                raise DataError(
                    f"example {task.ids[row]!a}: the region {name!a} [{start}, {end}) is not in the text of "
                    f"{len(text)} characters after the one before it; give regions in order, without overlap"
                )
            last = end


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

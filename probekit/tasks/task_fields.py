"""What a `Task` makes of the fields that it is given: lists become arrays, label texts become classes, gaps are filled.

Axes: N examples.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from probekit.errors import DataError, UsageError
from probekit.files.scratch import DiskList, settled
from probekit.tasks.labels import as_labels, encode, group_flaw, group_name, is_unlabelled, label_flaw
from probekit.tasks.task_checks import is_sequence
from probekit.text import kind_of, listed

LABEL = "label"  # the name of a label set that is given without one


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
    if not is_sequence(given):
        raise UsageError(f"{what} is a list or an array with one entry for each example, got {kind_of(given)}")
    try:
        return np.asarray(given.tolist() if hasattr(given, "tolist") else list(given))
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
        if flaw := group_flaw(cell):
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
    for cell, place in zip(classes, places, strict=True):
        if is_unlabelled(cell):
            raise DataError(
                f"{place} has the label -1 of {name!a}, which means 'not labelled'; leave the example out, or write "
                "another label"
            )
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

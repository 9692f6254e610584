"""Read labels of tokens, in any form that a `Task` is given, into arrays.

Inputs of token ids have a label for each token. Texts may have labels by character instead, `stretches.Stretches`, or a
list whose length says which; `activations.plan.token_labels` makes labels of tokens of them with the model's tokenizer.

Axes: N texts, L tokens of one text, K numbers of a label.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from probekit.errors import DataError, UsageError
from probekit.tasks.tables.data_table import quote
from probekit.tasks.task_checks import is_sequence
from probekit.tasks.task_fields import derived, numbered
from probekit.tasks.tokens.stretches import EXAMPLE, Stretches, are_stretches, no_label, read_stretches
from probekit.text import counted, kind_of

TokenLabels = dict[str, list[Any]]  # of each text an array of its tokens, or `Stretches` of its characters


class _OfText(NamedTuple):
    """The labels of one text as they were given.

    Attributes:
        labels: those that are there, [l] or [l, K].
        there: which of the L tokens, or of the stretches and the rest, have one: bool [L].
        spans: of stretches, int64 [S, 2]; None for labels of tokens.
    """

    labels: np.ndarray
    there: np.ndarray
    spans: np.ndarray | None = None


def as_token_labels(
    given: Mapping[str, Any],
    label_names: Mapping[str, list[str] | None],
    ids: Sequence[Any],
    inputs: Sequence[Any] = (),
) -> tuple[TokenLabels, dict[str, list[str]]]:
    """Labels of tokens in the form that `Task` holds, and the class names of each label set.

    Whole numbers, booleans and texts are classes; without `label_names` they are numbered in sorted order. Numbers with
    a decimal point, and whole numbers whose names are empty, are targets of a regression. None, NaN and the class -1
    are tokens without a label.

    Args:
        given: label set -> an array [N, L] or [N, L, K], or N entries: L labels, L lists of K numbers, or stretches of
            the text's characters.
        label_names: label set -> class names, in label order, or None.
        ids: names of the N texts, for errors.
        inputs: the N texts, or lists of token ids.

    Raises:
        UsageError: no list or array.
        DataError: labels of neither kind, of another shape, or that are no class.
    """
    labels: TokenLabels = {}
    names: dict[str, list[str]] = {}
    for label_set, texts in given.items():
        if not is_sequence(texts):
            raise UsageError(
                f"token_labels[{label_set!r}] is an array [texts, tokens], or a list for each text, got "
                f"{kind_of(texts)}; give one of these"
            )
        inputs_of = [*inputs, *[""] * (len(texts) - len(inputs))]
        own = []
        for row, (one, text) in enumerate(zip(texts, inputs_of, strict=False)):
            try:
                own.append(_of_text(one, text))
            except DataError as error:
                raise DataError(f"example {_name(ids, row)}, token labels {label_set!a}: {error}") from None
        labels[label_set], names[label_set] = _coded(label_set, own, label_names.get(label_set), ids)
    return labels, names


def _name(ids: Sequence[Any], row: int) -> str:
    return ascii(ids[row] if row < len(ids) else row)


def _of_text(given: Any, text: Any) -> _OfText:
    """The labels of one text; errors do not name it."""
    if isinstance(given, Stretches):
        there = ~no_label(given.values)
        return _OfText(given.values[there], there, given.spans)
    is_text = isinstance(text, str)
    if given is None or are_stretches(given) or (is_text and is_sequence(given) and not len(given)):
        if not is_text and given is None:
            return _of_tokens([None] * len(text))
        spans, cells = read_stretches(given or [], text)
        return _of_tokens(cells)._replace(spans=spans)
    return _of_tokens(given)


def _of_tokens(given: Any) -> _OfText:
    """Labels in a list or an array; None and NaN are no label."""
    if isinstance(given, np.ndarray) and given.dtype.kind != "O":
        return _OfText(_array(given), np.ones(len(given), dtype=bool))
    if not is_sequence(given):
        raise DataError(f"expected a list of labels, or of stretches such as {EXAMPLE}, got {quote(given)}; give one")
    cells = given.tolist() if hasattr(given, "tolist") else list(given)
    missing = (cell is None or (isinstance(cell, float) and cell != cell) for cell in cells)
    there = ~np.fromiter(missing, bool, len(cells))
    known = [cell for cell, has_label in zip(cells, there.tolist(), strict=True) if has_label]
    found = _array(known)
    if found.dtype.kind == "U" and not all(isinstance(cell, str) for cell in known):
        raise DataError("they are texts and numbers; give only one of the two")
    return _OfText(found, there)


def _coded(
    label_set: str, own: list[_OfText], known: list[str] | None, ids: Sequence[Any]
) -> tuple[list[np.ndarray | Stretches], list[str]]:
    """The labels of one set as numbers, and its class names."""
    kinds = {one.labels.dtype.kind for one in own if one.labels.size}
    if "U" in kinds and len(kinds) > 1:
        is_text = [one.labels.dtype.kind == "U" if one.labels.size else None for one in own]
        texts, numbers = (_name(ids, is_text.index(kind)) for kind in (True, False))
        raise DataError(
            f"the token labels {label_set!a} of example {texts} are texts, and those of {numbers} numbers; give only "
            "one of the two"
        )
    if "f" in kinds or (known == [] and "U" not in kinds):
        width = next((one.labels.shape[1:] for one in own if one.labels.size), ())
        full = [one.labels if one.labels.size else np.empty((0, *width)) for one in own]
        own = [one._replace(labels=of.astype(np.float64, copy=False)) for one, of in zip(own, full, strict=True)]
        return [_whole(one) for one in map(_without_missing, own)], known or []
    own = [one if one.labels.dtype.kind in "bU" else _without_missing(one) for one in own]
    if known is not None and "U" not in kinds:
        return [_whole(one._replace(labels=one.labels.astype(np.int64, copy=False))) for one in own], known
    full = [one.labels for one in own if one.labels.size]  # an empty one has no type of its own
    flat = np.concatenate(full) if full else np.empty(0, dtype=np.int64)
    cells, first, of = np.unique(flat, return_index=True, return_inverse=True)
    ends = np.cumsum([len(one.labels) for one in own])
    rows = np.searchsorted(ends, first, side="right").tolist()
    places = [f"a token of example {_name(ids, row)}" for row in rows]
    if known is None:
        codes, known = derived(label_set, cells.tolist(), places)
    else:
        codes = numbered(label_set, cells.tolist(), known, places)
    codes = np.split(codes[of], ends[:-1]) if own else []
    return [_whole(one._replace(labels=labels)) for one, labels in zip(own, codes, strict=True)], known


def _without_missing(one: _OfText) -> _OfText:
    """The labels without NaN, or without the class -1."""
    missing = no_label(one.labels)
    if not missing.any():
        return one
    there = one.there.copy()
    there[np.flatnonzero(there)[missing]] = False
    return one._replace(labels=one.labels[~missing], there=there)


def _whole(one: _OfText) -> np.ndarray | Stretches:
    """The labels with -1 or NaN where there is none."""
    labels = one.labels
    if not one.there.all():
        none = np.nan if labels.dtype.kind == "f" else -1
        labels = np.full((len(one.there), *labels.shape[1:]), none, dtype=labels.dtype)
        labels[one.there] = one.labels
    return labels if one.spans is None else Stretches(one.spans, labels)


def _array(labels: Any) -> np.ndarray:
    try:
        found = np.asarray(labels)
    except ValueError:
        found = np.empty(1, dtype=object)
    found = found if found.size else found.astype(np.int64)
    if found.dtype.kind not in "biufU" or found.ndim not in (1, 2) or (found.ndim == 2 and found.dtype.kind != "f"):
        raise DataError(
            f"expected a class or a number for each token, or several decimal numbers, got {found.dtype} with "
            f"{counted(found.ndim, 'axis', 'axes')}; give an array [texts, tokens], or a list for each text"
        )
    return found

"""Labels of tokens in any form in which they are given, read into arrays.

Inputs of token ids have a label for each token. Texts may have labels by character instead, `Stretches`, or a list
whose length says which; `activations.plan.token_labels` makes labels of tokens of them with the model's tokenizer.

Axes: N texts, L tokens and S stretches of one text, K numbers of a label.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from probekit.errors import DataError, UsageError
from probekit.tasks.tables.data_table import quote
from probekit.tasks.task_checks import derived, is_sequence, numbered, span_flaw
from probekit.text import counted, kind_of

EXAMPLE = '{"start": 4, "end": 7, "label": "name"}'


class Stretches(NamedTuple):
    """The labels of one text by character.

    Attributes:
        spans: the characters [start, end) of each stretch, in order and without overlap, int64 [S, 2].
        values: the label of each stretch, and last the label of tokens outside all of them: [S + 1] or [S + 1, K]; -1
            or NaN is no label.
    """

    spans: np.ndarray
    values: np.ndarray


def are_stretches(given: Any) -> bool:
    """True for a list with a dict in it, as the stretches of a text are given."""
    return isinstance(given, Sequence) and any(isinstance(one, Mapping) for one in given)


def read_stretches(given: Sequence[Any], text: Any) -> tuple[np.ndarray, list[Any]]:
    """The characters of the stretches of one text, int64 [S, 2], and S + 1 labels, last that of the rest of the text.

    Args:
        given: {"start", "end", "label"} each; one without start and end has the label of the rest, which is otherwise
            None.
        text: they belong to.

    Raises:
        DataError: a stretch without a label, outside the text, or over another one; it does not name the text.
    """
    stretches: list[tuple[int, int, Any]] = []
    rest: list[Any] = []
    for one in given:
        if not isinstance(one, Mapping) or "label" not in one:
            raise DataError(f"expected a stretch such as {EXAMPLE}, got {quote(one)}; correct it")
        start, end = one.get("start"), one.get("end")
        if start is None and end is None:
            rest.append(one["label"])
            continue
        if start is None or end is None or not (_is_whole(start) and _is_whole(end)):
            raise DataError(f"expected whole numbers as start and end of a stretch, got {quote(one)}; correct it")
        if flaw := span_flaw(text, int(start), int(end)):
            raise DataError(flaw)
        stretches.append((int(start), int(end), one["label"]))
    if len(rest) > 1:
        raise DataError(f"expected one label for the rest of the text, got {len(rest)}; keep one without start and end")
    stretches.sort(key=lambda one: one[:2])
    spans = np.array([one[:2] for one in stretches], dtype=np.int64).reshape(-1, 2)
    if (over := spans[1:, 0] < spans[:-1, 1]).any():
        (a, b), (c, d) = spans[int(over.argmax()) :][:2].tolist()
        raise DataError(f"the stretches {a} to {b} and {c} to {d} overlap; give each character one label")
    return spans, [*(one[2] for one in stretches), *(rest or [None])]


def stretches_of_characters(labels: np.ndarray) -> Stretches:
    """Equal labels [L] or [L, K] of neighbouring characters as stretches; characters without a label are in none."""
    missing = no_label(labels)
    begins = np.ones(len(labels), dtype=bool)
    differ = labels[1:] != labels[:-1]
    begins[1:] = differ if labels.ndim == 1 else differ.any(axis=1)
    starts = np.flatnonzero(begins & ~missing)
    ends = np.append(np.flatnonzero(begins), len(labels))
    ends = ends[np.searchsorted(ends, starts, side="right")]
    rest = np.full((1, *labels.shape[1:]), np.nan if labels.dtype.kind == "f" else -1, dtype=labels.dtype)
    return Stretches(np.stack([starts, ends], axis=1), np.concatenate([labels[starts], rest]))


def labels_of_tokens(stretches: Stretches, offsets: np.ndarray) -> np.ndarray:
    """The label of each token of a text, [T] or [T, K]; -1 or NaN for none.

    A token has the label of the stretch whose characters it covers. If it covers those of several, it has the label
    with most of its characters; ties go to the label that comes first. A token without a character of any stretch has
    the label of the rest. So has a token of blanks alone, unless it is inside a stretch.

    Args:
        stretches: of the text.
        offsets: the characters [start, end) of each token, int64 [T, 2], as from `Tokenizer.offsets`.
    """
    (starts, ends), values = stretches.spans.T, stretches.values
    # stretches do not overlap, so those that a token meets follow one another: first to one past the last
    first = np.searchsorted(ends, offsets[:, 0], side="right")
    past = np.searchsorted(starts, offsets[:, 1], side="left")
    labels = values[np.where(past > first, first, len(starts))]
    for token in np.flatnonzero(past > first + 1).tolist():
        some = slice(int(first[token]), int(past[token]))
        start, end = offsets[token].tolist()
        covered = np.minimum(ends[some], end) - np.maximum(starts[some], start)
        _, own, which = np.unique(values[some], axis=0, return_index=True, return_inverse=True)
        votes = np.bincount(which.ravel(), weights=covered)
        best = own[votes == votes.max()].min()  # ties go to the first
        labels[token] = values[some][best]
    return labels


def no_label(labels: np.ndarray) -> np.ndarray:
    """Which of the labels [L] or [L, K] say that there is none, -1 or NaN: bool [L]."""
    if labels.dtype.kind != "f":
        return np.equal(labels, -1)
    missing = np.isnan(labels)
    return np.asarray(missing if labels.ndim == 1 else missing.all(axis=1))


def _is_whole(given: Any) -> bool:
    return isinstance(given, int | np.integer) and not isinstance(given, bool)


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

"""Labels of tokens: read into arrays in any form in which they are given, checked, and made rows of a task.

Inputs of token ids have a label for each token. Texts may have labels by character instead, `Stretches`, or a list
whose length says which; `activations.plan.token_labels` makes labels of tokens of them with the model's tokenizer.

Axes: N texts, L tokens and S stretches of one text, K numbers of a label, T tokens of all texts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from probekit.errors import DataError, UsageError
from probekit.tasks.fields import UNLABELLED, changed_columns
from probekit.tasks.tables.data_table import quote
from probekit.tasks.task_checks import check_class_names, derived, is_sequence, numbered, span_flaw
from probekit.text import counted, kind_of

Task = Any  # `tasks.base.Task`, which imports this module
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


# the task whose examples are tokens ----------------------------------------------------------------------------------


def values_of(labels: np.ndarray | Stretches) -> np.ndarray:
    """The labels of one text: of its tokens, or of its stretches and the rest."""
    return labels.values if isinstance(labels, Stretches) else labels


def by_token(task: Task) -> bool:
    """False while some labels are by character, or texts were not tokenised."""
    return not any(isinstance(one, Stretches) for labels in task.token_labels.values() for one in labels)


def check_token_labels(task: Task) -> None:
    """Check that every token of every input has a place for a label in every set.

    The labels of texts are compared with their tokens when an extraction is planned.

    Raises:
        DataError: targets of a decoder, words, an input with more or fewer labels than tokens, or infinity.
    """
    if not task.token_labels:
        return
    for what, given in (("targets of a decoder", task.targets), ("spans, the words of its texts", task.spans)):
        if given is not None:
            raise DataError(f"token_labels are of the tokens of inputs, and the task has {what}; leave one of them out")
    are_texts = len(task) > 0 and isinstance(task.inputs[0], str)
    for label_set, labels in task.token_labels.items():
        if labels:
            check_class_names(label_set, values_of(labels[0]).dtype, task.label_names[label_set])
        if len(labels) != len(task):
            found = f"expected the token labels {label_set!a} of {counted(len(task), 'input')}, got {len(labels)}"
            raise DataError(f"{found}; give one list for each input")
        (_check_characters if are_texts else _check_counts)(task, label_set, labels)
        if len({values_of(one).shape[1:] for one in labels}) > 1:
            raise DataError(
                f"some token labels of {label_set!a} hold more numbers than others; give each token equally many"
            )
        _check_finite(task, label_set, labels)


def _check_counts(task: Task, label_set: str, labels: Sequence[np.ndarray | Stretches]) -> None:
    """Check the labels of inputs of token ids."""
    for row, (one, ids) in enumerate(zip(labels, task.inputs, strict=True)):
        if isinstance(one, Stretches):
            raise DataError(
                f"example {task.ids[row]!a} has token labels {label_set!a} by character, and its input is a list of "
                "token ids; give one label for each token"
            )
        if len(one) != len(ids):
            raise DataError(
                f"example {task.ids[row]!a} has {counted(len(ids), 'token')} and {len(one)} labels "
                f"{label_set!a}; give one label for each token"
            )


def _check_characters(task: Task, label_set: str, labels: Sequence[np.ndarray | Stretches]) -> None:
    """Check that stretches are of the text that a task has, and not of a chat that becomes another text."""
    for row, one in enumerate(labels):
        if isinstance(one, Stretches) and len(one.spans):
            if task.chats is not None:
                raise DataError(
                    f"example {task.ids[row]!a} has token labels {label_set!a} by character, and is a chat, whose text "
                    "is made by a template; give one label for each token, or the rendered text"
                )
            if one.spans[-1, 1] > len(task.inputs[row]):
                raise DataError(
                    f"example {task.ids[row]!a} has {len(task.inputs[row])} characters, and token labels {label_set!a} "
                    f"up to character {one.spans[-1, 1]}; give labels of this text"
                )


def token_rows(task: Task, lengths: np.ndarray | None = None, index: np.ndarray | None = None) -> Task:
    """The task whose examples are the tokens, T rows, those of text 0 first; computed once for a task.

    Each token has its own labels and those of its text. Rows of one text have one number in `text_of`: they share its
    split and its groups, and are resampled together.

    Args:
        task: of N inputs; texts need `lengths`.
        lengths: how many tokens of each text are rows, int64 [N]; None is all of them. A text that was cut at the
            model's context has fewer.
        index: which token of its text each row is, int64 [T]; None is the first ones.
    """
    lengths = np.array([len(one) for one in task.inputs], dtype=np.int64) if lengths is None else lengths
    key = lengths if index is None else np.concatenate([lengths, index])
    if task.rows_made and np.array_equal(task.rows_made[0], key):
        return task.rows_made[1]
    text = np.repeat(np.arange(len(task)), lengths)
    if index is None:
        index = np.arange(len(text)) - np.repeat(np.cumsum(lengths) - lengths, lengths)

    def repeated_column(values: Any) -> Any:  # of a list the same object each time
        if isinstance(values, np.ndarray):
            return values[text]
        return [one for one, n in zip(values, lengths.tolist(), strict=True) for _ in range(n)]

    repeated = changed_columns(task, repeated_column)
    of_tokens = _labels_of_rows(task, text, index)
    repeated |= {
        "labels": repeated.get("labels", {}) | of_tokens,
        "token_labels": {},
        "position": index,
        "ids": [f"{one}:{k}" for one, k in zip(repeated["ids"], index.tolist(), strict=True)],
        "info": _info_of_rows(task, of_tokens),
        "text_of": text,
    }
    made = replace(task, **repeated)
    object.__setattr__(task, "rows_made", (key, made))  # in the task: weak references can swallow a Ctrl-C
    return made


def labels_at(task: Task, index: np.ndarray) -> Task:
    """The task with the labels of one token of each text, index [N] (negative: from the end), as labels [N]."""
    if not task.token_labels:
        return task
    counts = [len(values_of(one)) for one in next(iter(task.token_labels.values()))]
    own = _labels_of_rows(task, np.arange(len(task)), np.where(index < 0, index + counts, index))
    return replace(task, labels=task.labels | own, token_labels={}, info=_info_of_rows(task, own))


def label_rows(task: Task, label_set: str) -> Task:
    """The task whose examples are the labels of one set of `token_labels`, as `token_rows` has them.

    Tokens without a label are left out. Of labels by character each stretch is one, and so is the rest of a text.
    """
    rows = task
    if not (len(task) and by_token(task) and not isinstance(task.inputs[0], str)):
        values = [values_of(one) for one in task.token_labels[label_set]]
        names, sizes = {label_set: task.label_names[label_set]}, np.array([len(one) for one in values], dtype=np.int64)
        own = replace(task, labels={}, label_names=names, token_labels={label_set: values}, target=label_set)
        rows = token_rows(own, sizes)
    else:
        rows = token_rows(task)
    return rows_with_label(rows, label_set)


def unlabelled_rows(task: Task, label_set: str) -> np.ndarray:
    """Which examples have no label in the set, -1 or NaN, and are known to have none: bool [N]."""
    is_known = label_set in task.labels and label_set in task.info.get(UNLABELLED, {})
    return no_label(task.labels[label_set]) if is_known else np.zeros(len(task), dtype=bool)


def rows_with_label(task: Task, label_set: str) -> Task:
    """The task with only the examples that have a label in the set; the task itself if all have."""
    missing = unlabelled_rows(task, label_set)
    return task.subset(~missing) if missing.any() else task


def strata_of(task: Task) -> np.ndarray:
    """The labels [N] by which splits are carved: those of the target, or of labels of tokens `text_strata`."""
    if task.target in task.token_labels:
        return text_strata(task, task.target)
    return task.labels.get(task.target, np.zeros(len(task)))


def text_strata(task: Task, label_set: str) -> np.ndarray:
    """What splits are stratified by, [N]: the class of each text that is in the fewest texts, or its mean number.

    A text without labels is a class of its own, or has the mean of all.
    """
    values = [values_of(one) for one in task.token_labels[label_set]]
    text = np.repeat(np.arange(len(values)), [len(one) for one in values])
    flat = np.concatenate(values) if values else np.empty(0, dtype=np.int64)
    there = ~no_label(flat)
    text, flat = text[there], flat[there]
    if flat.dtype.kind == "f":
        flat = flat if flat.ndim == 1 else flat[:, 0]
        n, sums = np.bincount(text, minlength=len(values)), np.bincount(text, flat, minlength=len(values))
        return np.where(n > 0, sums / np.maximum(n, 1), flat.mean() if len(flat) else 0.0)
    n_classes = len(task.label_names[label_set])
    pairs = np.unique(text * n_classes + flat)  # each class of each text once
    text, classes = pairs // max(1, n_classes), pairs % max(1, n_classes)
    texts_with = np.bincount(classes, minlength=n_classes)
    order = np.lexsort((classes, texts_with[classes], text))
    found, first = np.unique(text[order], return_index=True)
    strata = np.full(len(values), n_classes)
    strata[found] = classes[order][first]
    return strata


def _labels_of_rows(task: Task, text: np.ndarray, index: np.ndarray) -> dict[str, np.ndarray]:
    """The labels of tokens `index` [R] of texts `text` [R], by label set."""
    found = {}
    for label_set, labels in task.token_labels.items():
        if any(isinstance(one, Stretches) for one in labels):
            raise DataError(
                f"the token labels {label_set!a} are by character, and no tokenizer has made tokens of the texts; "
                "extract them first, or give one label for each token"
            )
        sizes = np.fromiter(map(len, labels), np.int64, len(labels))
        if (short := index >= sizes[text]).any():
            row = int(text[short.argmax()])
            raise DataError(
                f"example {task.ids[row]!a} has {counted(int(index[text == row].max()) + 1, 'token')} or more and "
                f"{sizes[row]} labels {label_set!a}; give one label for each token"
            )
        starts = np.cumsum(sizes) - sizes
        found[label_set] = np.concatenate(labels)[starts[text] + index] if labels else np.empty(0)
    return found


def _info_of_rows(task: Task, labels: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The task's info, with how many rows have no label in each set."""
    counts = {name: int(no_label(own).sum()) for name, own in labels.items()}
    found = {name: n for name, n in counts.items() if n}
    return {**task.info, UNLABELLED: {**task.info.get(UNLABELLED, {}), **found}} if found else task.info


def _check_finite(task: Task, label_set: str, labels: Sequence[np.ndarray | Stretches]) -> None:
    values = [values_of(one) for one in labels]
    if not values or values[0].dtype.kind != "f" or _usable(np.concatenate(values)).all():
        return
    row = next(row for row, own in enumerate(values) if not _usable(own).all())
    token = int(_usable(values[row]).argmin())
    raise DataError(
        f"a regression needs finite numbers, token {token} of example {task.ids[row]!a} has {values[row][token]} as "
        f"its {label_set!a}; write a number, or None for no label"
    )


def _usable(labels: np.ndarray) -> np.ndarray:
    """Which numbers [L] or [L, K] are finite or no label, bool [L]."""
    finite = np.isfinite(labels)
    return (finite if labels.ndim == 1 else finite.all(axis=1)) | no_label(labels)

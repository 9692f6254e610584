"""Labels of tokens of texts, once a model's tokenizer says what the tokens are.

Axes: N examples, L tokens of one text.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from probekit.activations.plan.reading.offsets import offsets_of
from probekit.activations.plan.reading.select_tokens import Bad
from probekit.activations.plan.token_ids import Sequences, has_texts
from probekit.models.base import LanguageModel
from probekit.tasks.base import Task
from probekit.tasks.token_labels import Stretches, labels_of_tokens, no_label, stretches_of_characters
from probekit.text import counted, listed

MOST_SHOWN = 8  # tokens of the first text in a plan
WRONG_LABELS = "token_labels"  # under which rows that are left out are counted


def with_labels_by_token(model: LanguageModel, task: Task, sequences: Sequences) -> tuple[Task, Bad]:
    """The task with one label for each token of its texts.

    Labels by character become those of the tokens that cover the characters. Of a text that was cut at the context, the
    labels of the first tokens are kept. Tokens that the model wrote itself have no label.

    Args:
        model: with the tokenizer of texts.
        task: the examples.
        sequences: their token ids.

    Returns:
        The task, and the texts with another number of labels than of tokens or characters: row -> what is wrong. If
        there are any, the task is as it was.
    """
    if not task.token_labels or not has_texts(task):
        return task, {}
    wholes = _tokens_of_texts(model, task, sequences)
    prompts = wholes if task.generated is None else wholes - task.generated
    by_set = {name: _by_character(task, labels, wholes) for name, labels in task.token_labels.items()}
    bad = {
        row: why
        for name, labels in reversed(by_set.items())
        for row, why in _misfits(task, name, labels, wholes, prompts, sequences.own_lengths).items()
    }
    if bad:
        return task, bad
    are_by_character = any(isinstance(one, Stretches) for labels in by_set.values() for one in labels)
    offsets = offsets_of(model, task, sequences) if are_by_character else None
    sizes = np.stack([sequences.own_lengths, prompts], axis=1).tolist()
    found = {
        name: [_of_tokens(one, offsets[row] if offsets else None, *sizes[row]) for row, one in enumerate(labels)]
        for name, labels in by_set.items()
    }
    return replace(task, token_labels=found), {}


def _tokens_of_texts(model: LanguageModel, task: Task, sequences: Sequences) -> np.ndarray:
    """Tokens of each text before it was cut at the context, int64 [N]."""
    if task.token_ids is not None:
        return np.fromiter(map(len, task.token_ids), np.int64, len(task))
    counts = sequences.own_lengths.copy()
    assert model.tokenizer is not None
    if sequences.n_cut:
        for row in np.flatnonzero(sequences.lengths >= model.cfg.n_ctx).tolist():
            counts[row] = len(model.tokenizer.encode(str(task.inputs[row])))
    return counts


def _by_character(
    task: Task, labels: Sequence[np.ndarray | Stretches], wholes: np.ndarray
) -> list[np.ndarray | Stretches]:
    """Lists of labels as stretches, if more texts have as many characters as labels than have as many tokens."""
    lists = [row for row, one in enumerate(labels) if not isinstance(one, Stretches)]
    of_tokens = sum(len(labels[row]) == wholes[row] for row in lists)
    of_characters = [row for row in lists if len(labels[row]) == len(task.inputs[row])]
    if len(of_characters) <= of_tokens:
        return list(labels)
    own: dict[int, Any] = {row: stretches_of_characters(labels[row]) for row in of_characters}  # pyright: ignore[reportArgumentType]
    return [own.get(row, one) for row, one in enumerate(labels)]


def _misfits(
    task: Task, name: str, labels: Sequence[np.ndarray | Stretches], wholes: np.ndarray, *others: np.ndarray
) -> Bad:
    """The texts with another number of labels than of tokens: all, the prompt's, or those that a store kept."""
    fitting = np.stack([wholes, *others], axis=1).tolist()
    bad = {}
    for row, one in enumerate(labels):
        if not isinstance(one, Stretches) and len(one) not in fitting[row]:
            bad[row] = (
                f"it has {counted(int(wholes[row]), 'token')}, {counted(len(task.inputs[row]), 'character')} and "
                f"{counted(len(one), 'label')} of {name!a}; give one label for each token, or for each character"
            )
    return bad


def _of_tokens(labels: np.ndarray | Stretches, offsets: np.ndarray | None, n: int, own: int) -> np.ndarray:
    """The labels of the first n tokens of a text, of which the first `own` have labels."""
    if isinstance(labels, Stretches):
        assert offsets is not None
        labels = labels_of_tokens(labels, offsets)
    none: Any = np.nan if labels.dtype.kind == "f" else -1
    labels = labels[: min(n, own)] if own < n else labels[:n]
    if len(labels) == n:
        return labels
    return np.concatenate([labels, np.full((n - len(labels), *labels.shape[1:]), none, dtype=labels.dtype)])


def token_label_lines(model: LanguageModel, task: Task, sequences: Sequences) -> dict[str, str]:
    """The target's labels of tokens for the plan: how many of each class, those of the first text, and missing ones."""
    if task.target not in task.token_labels:
        return {}
    name, names = task.target, task.label_names[task.target]
    labels = task.token_labels[name]
    flat = np.concatenate(labels)
    n_missing = int(no_label(flat).sum())
    lines = {}
    if names:
        counts = np.bincount(flat[flat >= 0], minlength=len(names))
        order = np.argsort(-counts, kind="stable").tolist()
        lines["labels"] = f"{name} of each token: {listed([f'{names[k]}={counts[k]:,}' for k in order])}"
    own = sequences.subset(np.array([0])).own.tolist()
    tokens = model.tokenizer.tokens(own) if model.tokenizer and has_texts(task) else own
    first = zip(tokens, labels[0][: len(tokens)], no_label(labels[0]), strict=False)
    shown = [f"{token!a:.20} {'-' if is_none else _in_words(label, names)}" for token, label, is_none in first]
    lines["first"] = listed(shown, most=MOST_SHOWN)
    if n_missing:
        have = "has" if n_missing == 1 else "have"
        lines["without"] = f"{counted(n_missing, 'token')} {have} no {name}: no probe reads them"
    return lines


def _in_words(label: Any, names: Sequence[str]) -> str:
    return ascii(names[label])[1:-1][:20] if names else " ".join(f"{one:g}" for one in np.atleast_1d(label))

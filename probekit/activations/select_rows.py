"""Apply a selection to activations that were kept at several tokens of each text; no tokenizer is needed.

The tokens to choose from are those that were kept: `last` is the last kept one, and `mean@user` the mean over the kept
tokens of the user's messages.

Axes: N examples, R rows of a place.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probekit.activations.layout import Layout, fingerprint_of
from probekit.activations.plan.reading.select_tokens import Bad, ReadableTokens, select_tokens
from probekit.errors import UsageError
from probekit.selections import ALL, PER_EXAMPLE, Selection, check_in_language, check_kept, not_a_selection
from probekit.tasks.base import Task
from probekit.tasks.token_labels import labels_at


@dataclass(frozen=True, eq=False)
class SelectedRows:
    """The rows of one position, among those that were kept.

    Attributes:
        index: the rows, one example after the other, int64.
        counts: how many of each example, int64 [N]; none of an example without such a token.
        is_mean: whether their mean is the value, and not they.
        is_ragged: whether each of them is a value.
    """

    index: np.ndarray
    counts: np.ndarray
    is_mean: bool = False
    is_ragged: bool = False


def select_rows(
    layout: Layout, task: Task, position: Selection, of_targets: bool = False, some_cut: bool = False
) -> tuple[SelectedRows, Bad]:
    """The rows of a position, and the texts without such a token, with why.

    Args:
        layout: of the activations.
        task: their examples.
        position: one of several that were kept; or, where all tokens or those of a part were, any selection.
        of_targets: whether the tokens are those of a decoder's targets.
        some_cut: whether texts were cut at the model's context.

    Raises:
        UsageError: a position that was not extracted, or that the texts cannot have.
    """
    if position.each is not None:
        raise not_a_selection(position.each, ", or a token's index")
    N, P = len(layout.lengths), len(layout.positions)
    if not layout.is_ragged:
        check_kept(layout.positions, position)
        return SelectedRows(np.arange(N) * P + layout.positions.index(position), np.ones(N, dtype=np.int64)), {}
    check_in_language(position)
    chosen, bad = select_tokens(position, _kept_tokens(layout, task, of_targets, some_cut))
    starts = layout.offsets()[:-1]
    index = np.arange(starts[-1] + layout.counts()[-1]) if chosen.index is None else chosen.index
    index = index if chosen.index is None else np.repeat(starts, chosen.counts) + index
    return SelectedRows(index, chosen.counts, is_mean=position.pick == "mean", is_ragged=position.several), bad


def chosen_tokens(
    layout: Layout, chosen: SelectedRows, starts: np.ndarray
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """The id of each chosen token and its index in its text, int64; -1 for a mean, None if unknown.

    `starts` are the first rows of the texts, int64 [N].
    """
    if chosen.is_mean:
        return None, np.full(len(starts), -1)
    index = layout.token_index
    if index is not None:
        index = index[chosen.index]
    elif layout.positions == [ALL]:
        index = chosen.index - np.repeat(starts, chosen.counts)
    return None if layout.tokens is None else layout.tokens[chosen.index], index


def labelled_rows(
    layout: Layout,
    task: Task,
    meta: Mapping[str, Any],
    position: Selection,
    chosen: SelectedRows,
    index: np.ndarray | None,
) -> Task:
    """The task with the labels of the tokens that are read.

    Args:
        layout: of all that was kept.
        task: with the examples of the rows.
        meta: of the activations.
        position: what is read.
        chosen: its rows.
        index: the token of each row in its text, int64 [N]; None if unknown.

    Raises:
        UsageError: a mean of tokens that have labels, or tokens that nothing names.
    """
    if not task.token_labels:
        return task
    if chosen.is_ragged:
        return task
    if index is not None and (index >= 0).all():
        return labels_at(task, index)
    if position == PER_EXAMPLE:
        given = fingerprint_of(task.position) if isinstance(task.position, np.ndarray) else None
        if given is None or meta.get("position_fingerprint", given) != given:
            raise UsageError(
                "the task has a label for each token, and does not say which token of each text was read; give "
                "Task(position=...), or extract again with position all (--position all)"
            )
        return labels_at(task, np.asarray(task.position))
    own = {"first": 0, "last": -1}.get(position, position.plain)
    if not isinstance(own, int):
        raise UsageError(
            f"each label belongs to one token, and position {position} reads several; take --position last, first, a "
            "token's index or all"
        )
    index = np.full(len(task), own)
    return labels_at(task, np.where(index < 0, index + layout.own_lengths, index))


def selected_values(rows: Tensor, chosen: SelectedRows) -> Tensor:
    """The values of a position, [N, D], or [R, D] of a selection of several tokens, from all rows of a place."""
    if len(chosen.index) != len(rows) or not chosen.is_mean:
        rows = rows[torch.from_numpy(chosen.index).to(rows.device)]
    if not chosen.is_mean:
        return rows
    lengths = torch.from_numpy(chosen.counts).to(rows.device)
    wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
    return torch.segment_reduce(wide, "mean", lengths=lengths, axis=0).to(rows.dtype)


def _kept_tokens(layout: Layout, task: Task, of_targets: bool, some_cut: bool) -> ReadableTokens:
    """The kept tokens of each text, as a selection takes them."""
    counts = layout.counts()
    texts: Any = task.targets if of_targets else task.inputs
    characters = layout.characters
    generated = None
    if task.generated is not None and task.token_ids is not None:
        prompts = np.array([len(ids) for ids in task.token_ids], dtype=np.int64) - task.generated
        if layout.picked is None or layout.token_index is None:
            generated = np.maximum(counts - prompts, 0)
        else:
            is_own = layout.token_index >= np.repeat(prompts, counts)
            generated = np.add.reduceat(is_own.astype(np.int64), np.cumsum(counts) - counts)
    return ReadableTokens(
        lengths=counts,
        texts=None if characters is None else texts,
        offsets=None if characters is None else np.split(characters, np.cumsum(counts)[:-1]),
        regions=None if of_targets else task.regions,
        generated=generated,
        cut=layout.lengths == layout.lengths.max() if some_cut and layout.picked is None else None,  # all alike long
        are_some=layout.picked is not None,
    )

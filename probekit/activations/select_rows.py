"""Apply a selection to activations that were kept at several tokens of each text; no tokenizer is needed.

The tokens to choose from are those that were kept: `last` is the last kept one, and `mean@user` the mean over the kept
tokens of the user's messages.

Axes: N examples, R rows of a place.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from probekit.activations.layout import Layout
from probekit.activations.plan.reading.select_tokens import ReadableTokens, select_tokens
from probekit.errors import DataError, UsageError
from probekit.places import check_kept
from probekit.selections import EXAMPLES, as_position, keeps_several, parse_selection
from probekit.tasks.base import Task


@dataclass(frozen=True, eq=False)
class SelectedRows:
    """The rows of one position, among those that were kept.

    Attributes:
        index: the rows, one example after the other, int64.
        counts: how many of each example, int64 [N].
        is_mean: whether their mean is the value, and not they.
        is_ragged: whether each of them is a value.
    """

    index: np.ndarray
    counts: np.ndarray
    is_mean: bool = False
    is_ragged: bool = False


def select_rows(
    layout: Layout, task: Task, position: Any, of_targets: bool = False, some_cut: bool = False
) -> SelectedRows:
    """The rows of a position.

    Args:
        layout: of the activations.
        task: their examples.
        position: one of several that were kept; or, where all tokens or those of a part were, any selection.
        of_targets: whether the tokens are those of a decoder's targets.
        some_cut: whether texts were cut at the model's context.

    Raises:
        UsageError: a position that was not extracted, or that the texts cannot have.
        DataError: a text without such a token.
    """
    position = int(position) if isinstance(position, np.integer) else position
    if not isinstance(position, str | int) or isinstance(position, bool):
        raise UsageError(f"a position is a selection such as {EXAMPLES}, or a token's index; got {position!r:.80}")
    N, P = len(layout.lengths), len(layout.positions)
    if not layout.is_ragged:
        check_kept(layout.positions, position)
        return SelectedRows(np.arange(N) * P + layout.positions.index(str(position)), np.ones(N, dtype=np.int64))
    selection = parse_selection(str(as_position(str(position))))
    chosen, bad = select_tokens(selection, _kept_tokens(layout, task, of_targets, some_cut))
    for row in sorted(bad)[:1]:
        more = f" ({len(bad):,} such rows in all)" if len(bad) > 1 else ""
        raise DataError(f"example {task.ids[row]!a}: {bad[row]}{more}")
    starts = layout.offsets(("", None))[:-1]
    index = np.arange(starts[-1] + layout.counts(("", None))[-1]) if chosen.index is None else chosen.index
    index = index if chosen.index is None else np.repeat(starts, chosen.counts) + index
    several = keeps_several(selection)
    return SelectedRows(index, chosen.counts, is_mean=selection.pick == "mean", is_ragged=several)


def _kept_tokens(layout: Layout, task: Task, of_targets: bool, some_cut: bool) -> ReadableTokens:
    """The kept tokens of each text, as a selection takes them."""
    counts = layout.counts(("", None))
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
    )

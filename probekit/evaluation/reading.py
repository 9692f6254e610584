"""Which rows of the activations a curve reads: one for each text, every token, or the tokens at each position."""

from typing import Any, cast

import numpy as np

from probekit.activations.activations import Activations, RowsOf, SelectedPositions
from probekit.errors import UsageError
from probekit.evaluation.fits.sequences import all_tokens
from probekit.options import CurveOptions, CurvesArguments
from probekit.options.task import OnBadRow
from probekit.selections import ALL, Selection, check_kept


def checked_activations(acts: Any, what: str = "") -> Activations:
    """The activations; raises UsageError if they are something else, with `what` ("random_init=") in the message."""
    if not isinstance(acts, Activations):
        kind = type(acts).__name__
        raise UsageError(
            f"{what}{what and ' '}expected activations, as extract and load_activations return them; got {kind}"
        )
    return acts


def positions_read(acts: Activations, options: CurvesArguments) -> Activations:
    """The activations whose positions have a curve each: all that were kept, or those that the options name.

    Raises:
        UsageError: a selection of one token; one that was not extracted.
    """
    acts, position = checked_activations(acts), cast("Selection | list[Selection] | None", options.position)
    if position is None or (position == ALL and acts.layout.is_ragged):
        return acts
    if isinstance(position, list):
        return SelectedPositions(acts, position)
    found = acts.at(position, options.on_bad_row) if acts.layout.is_ragged else acts
    if not found.layout.is_ragged:
        raise UsageError(
            f"by={options.by!r} (--by) reads several positions, and position {position!r:.80} is one; leave position "
            "(--position) out, or give several (first,last@assistant), or a selection of several tokens (:20)"
        )
    return found


def acts_read(acts: Activations, options: CurvesArguments) -> Activations:
    """What the options read: `positions_read` for a curve of each position, else `rows_read`."""
    return positions_read(acts, options) if options.by_position else rows_read(acts, options)


def rows_read(acts: Activations, options: CurvesArguments) -> Activations:
    """One row for each example or, for a probe over a sequence, the tokens of each text.

    Raises:
        UsageError: as `one_position`; a probe over a sequence where one token of each text was kept.
    """
    read = all_tokens if options.of_sequences else one_position
    return read(acts, position_of(options), options.on_bad_row)


def one_position(acts: Activations, position: Selection | None, on_bad_row: OnBadRow = "error") -> Activations:
    """One row for each example; with position "all", tokens are examples; `on_bad_row` as for `Activations.at`.

    Raises:
        UsageError: several positions and none is named.
    """
    kept = acts.layout.positions
    check_kept(kept, position)
    if position is not None:
        found = acts.at(position, on_bad_row)
        return found.at(ALL) if found.layout.is_ragged else found
    return acts.at(kept[0]) if acts.task.token_labels else acts  # `at` finds the labels of the tokens that were read


def position_of(options: CurveOptions) -> Selection | None:
    """The position of a curve that reads one selection; the options refuse several without `by`."""
    return cast("Selection | None", options.position)


def of_rows(acts: Activations, rows: np.ndarray | None) -> Activations:
    """The activations of these examples; None is all of them."""
    return acts if rows is None else RowsOf(acts, rows)

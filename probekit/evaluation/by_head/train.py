"""Train a probe for each attention head at every layer, on one token of each text.

A head is a part of each row of z, q, k, v or result: [N, H * K] holds K numbers for each of H heads. With grouped
queries, k and v have fewer heads than z and q. All heads share their rows, splits, resamples and permutations.

Axes: N examples, H heads, K numbers of one head.
"""

from dataclasses import replace

import numpy as np

from probekit.activations.activations import selected_from
from probekit.errors import UsageError
from probekit.evaluation.by_position.columns import Column, fold_names
from probekit.evaluation.by_position.train import GridColumns, GridRows, planned_column
from probekit.evaluation.fits.protocol import Protocol
from probekit.evaluation.request import Request
from probekit.options import CurvesArguments
from probekit.points import HEAD_POINTS, KEY_POINTS, base_name


def expand_heads(
    request: Request, protocol: Protocol, headline: str, options: CurvesArguments
) -> tuple[GridRows, GridColumns]:
    """A column for each head, of the examples that the protocol uses.

    Raises:
        UsageError: a point without heads; activations that do not record how many there are.
    """
    n_heads, used = heads_of(request), np.zeros(len(request.labels), dtype=bool)
    used[np.concatenate(list(protocol.rows.values()))] = True
    splits = request.acts.task.splits if protocol.folds is None else fold_names(protocol.parts, len(used))
    rows, own = GridRows(request.acts, request, request.labels, used, splits), np.flatnonzero(used)
    every = [Column(str(head), own, own, head=(head, n_heads)) for head in range(n_heads)]
    first, majority = planned_column(every[0], rows, headline, options)
    planned = [(replace(first, column=column), majority) for column in every]
    kept = selected_from(request.features, own)[0].layout.positions
    origin = {"kept": list(kept), "few_texts": {}, "key_value": _is_key(request)}
    return rows, GridColumns(planned, [None] * n_heads, origin)


def heads_of(request: Request) -> int:
    """How many heads the point of a request has.

    Raises:
        UsageError: none, or a number that the activations do not record.
    """
    point, config = base_name(request.point), request.acts.meta.get("config") or {}
    if point not in HEAD_POINTS:
        raise UsageError(
            f"{request.point} has no heads, and --by head (by='head') probes each of them; name one of "
            f"{', '.join(HEAD_POINTS)} (--point), and extract it first (--points z)"
        )
    n_heads = config.get("n_kv_heads") if _is_key(request) else None
    if base_name(request.point) in KEY_POINTS and config.get("n_global_kv_heads") not in (None, n_heads):
        raise UsageError(
            f"the layers of this model differ in how many heads {request.point} has, so --by head (by='head') cannot "
            "tell them apart; take q or z"
        )
    n_heads = n_heads or config.get("n_heads")
    if not isinstance(n_heads, int) or n_heads < 1:
        raise UsageError(
            "these activations do not record how many heads the model has, so --by head (by='head') cannot tell them "
            "apart; make them with extract from one of probekit's own models"
        )
    return n_heads


def _is_key(request: Request) -> bool:
    """Whether the heads are those of keys and values, of which there may be fewer."""
    config = request.acts.meta.get("config") or {}
    return base_name(request.point) in KEY_POINTS and config.get("n_kv_heads") not in (None, config.get("n_heads"))

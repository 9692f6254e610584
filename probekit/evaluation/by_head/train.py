"""Train a probe for each attention head at every layer, on one token of each text.

A head is a part of each row of z, q, k, v or result: [N, H * K] holds K numbers for each of H heads. With grouped
queries, k and v have fewer heads than z and q. All heads share their rows, splits, resamples and permutations.

Axes: N examples, H heads, K numbers of one head.
"""

from dataclasses import replace

import numpy as np

from probekit.activations.activations import Activations
from probekit.errors import UsageError
from probekit.evaluation.by_head.results import HeadResults
from probekit.evaluation.by_position.columns import Column, fold_names
from probekit.evaluation.by_position.train import GridColumns, GridPlan, GridRows, plan_rows, planned_column
from probekit.evaluation.fits.protocol import Protocol
from probekit.evaluation.reading import checked_activations, of_rows, rows_read
from probekit.evaluation.request import Request, check_requests, random_init_activations
from probekit.evaluation.rows import Comparisons
from probekit.options import CurvesArguments
from probekit.points import HEAD_POINTS, KEY_POINTS, base_name


def plan_by_head(acts: Activations, options: CurvesArguments, texts: Comparisons) -> GridPlan:
    """The plan of a curve for each head; arguments and errors as in `plan_by_position`.

    Raises:
        UsageError: a point without heads; activations that do not record how many there are.
    """
    acts = checked_activations(acts)
    if options.point is None and (with_heads := [point for point in acts.points if base_name(point) in HEAD_POINTS]):
        options = replace(options, point=with_heads[0])
    ((request,),) = check_requests(acts, options)
    n_heads = heads_of(request)

    def columns(rows: GridRows, headline: str) -> GridColumns:
        used = np.flatnonzero(rows.used)
        every = [Column(str(head), used, used, head=(head, n_heads)) for head in range(n_heads)]
        first, majority = planned_column(every[0], rows, headline, options)
        planned = [(replace(first, column=column), majority) for column in every]
        origin = {"kept": list(acts.layout.positions), "few_texts": {}}
        return GridColumns(every, planned, [None] * n_heads, origin | {"key_value": _is_key(request)})

    noise = options.random_init
    if noise is not None:
        noise = random_init_activations(
            noise, acts.task, request, request.places, lambda other: rows_read(other, options)
        )
        noise = of_rows(noise, request.rows)
    rows, meta = plan_rows(request.acts, request, _all_rows, options, texts)
    grid = columns(rows, meta["headline"])
    return GridPlan(HeadResults, request.features, noise, request, rows, grid, meta | grid.origin)


def _all_rows(acts: Activations, request: Request, protocol: Protocol) -> GridRows:
    """One row for each example that the protocol uses."""
    used = np.zeros(len(request.labels), dtype=bool)
    used[np.concatenate(list(protocol.rows.values()))] = True
    splits = request.acts.task.splits if protocol.folds is None else fold_names(protocol.parts, len(used))
    return GridRows(acts, request, request.labels, used, splits)


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

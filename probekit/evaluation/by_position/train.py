"""Train a probe for each place in the text at every layer; what it shares with a probe for each head.

A position is probed on the texts that have it. Splits or folds, leaks and the headline are those of all texts; C is
chosen in each column and layer on validation. With nested folds a text is in one fold at all its positions, so that the
complete procedure, which selects position, layer and C inside each fold, has a score of its own.

The rows of a layer are read once for all positions, or heads.

Axes: N texts, R rows of a point's tensor, n texts of one position, D width.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probekit.activations.activations import Activations, ActivationSet, selected_from
from probekit.activations.layout import Layout
from probekit.errors import UsageError
from probekit.evaluation.by_head.results import HeadResults
from probekit.evaluation.by_position.chance import ABOVE_CHANCE, compare_with_chance
from probekit.evaluation.by_position.columns import (
    FOLD,
    Column,
    fold_names,
    labelled,
    position_columns,
    token_of,
    usable,
    with_common_classes,
)
from probekit.evaluation.by_position.data import SAME_TOKEN, PositionCurve, PositionData
from probekit.evaluation.by_position.results import PositionResults
from probekit.evaluation.compare.baselines import Baseline, LabelledInputs, model_free_baselines
from probekit.evaluation.compare.controls import draw_controls
from probekit.evaluation.compare.layers import NO_P_VALUES, NOT_REQUESTED
from probekit.evaluation.compare.lead import paired_difference
from probekit.evaluation.curve import FittedPlace, announcer, places_at_once, scored_place, wanted_fits
from probekit.evaluation.fits.layer import checked_features, fit_layers
from probekit.evaluation.fits.predict import part_of, pooled
from probekit.evaluation.fits.protocol import Protocol, nested_protocol, split_protocol
from probekit.evaluation.plan import CurvePlan, numbers_only, plan_curve
from probekit.evaluation.quick import NO_P_VALUES as LEFT_OUT
from probekit.evaluation.request import Request
from probekit.evaluation.results.provenance import origin_of, random_origin
from probekit.evaluation.rows import Comparisons, audited_protocol, resampling_units, task_fingerprint
from probekit.evaluation.scores.bootstrap import MOST_KEPT, Bootstrap, fewest_groups
from probekit.evaluation.scores.metrics import Predictions, check_metric, default_metric
from probekit.evaluation.scores.score import score, score_intervals, value_of
from probekit.evaluation.scores.selection import selection_key
from probekit.machine.devices import free_bytes
from probekit.machine.threads import in_threads, one_thread
from probekit.options import CurvesArguments
from probekit.options.probe import BY_HEAD, FROM_END
from probekit.points import Place
from probekit.selections import ALL, Selection
from probekit.tasks.base import Task
from probekit.tasks.token_labels import no_label

MOST_SHARE = 0.5  # of the free memory, for the rows of one layer


@dataclass(frozen=True, eq=False)
class PlannedColumn:
    """One position and its fits, which are the same at every layer.

    Attributes:
        column: the texts and rows.
        ids: names of the texts.
        plan: the fits and scores, over the rows of the column.
    """

    column: Column
    ids: list[str]
    plan: CurvePlan


def _without_checks(planned: Sequence[PlannedColumn]) -> list[PlannedColumn]:
    """The columns without control tasks and code; those that share a plan share the new one."""
    plans = {id(one.plan): numbers_only(one.plan) for one in planned}
    return [replace(one, plan=plans[id(one.plan)]) for one in planned]


def fit_columns(
    acts: Activations,
    columns: Sequence[tuple[PlannedColumn, np.ndarray]],
    places: Sequence[Place],
    done: Callable[[], None],
) -> list[list[FittedPlace]]:
    """The fits of every column at every place: [columns][places].

    Rows of a place are read in one pass, or in as many as memory needs. Columns are fitted at once, one in each
    thread, where the probe allows it.

    Args:
        acts: where the rows are read.
        columns: positions or heads, and their rows in `acts`.
        places: of the curve.
        done: for progress; called after each column of each place.
    """
    found: list[list[FittedPlace]] = [[] for _ in columns]
    every = {id(one.plan): one.plan.bootstrap for one, _ in columns}  # heads share one plan
    bootstraps = [each for each in every.values() if each is not None]
    too_many = sum(each.n_units * each.resamples for each in bootstraps) > MOST_KEPT
    for place in places:
        for numbers in _passes(acts, place, columns):
            fitted = _fit_pass(acts, place, [columns[number] for number in numbers], done)
            for number, each in zip(numbers, fitted, strict=True):
                found[number].append(each)
        for each in bootstraps:  # thousands of cells would hold gigabytes
            each.forget(counts=too_many)
    return found


def _fit_pass(
    acts: Activations, place: Place, columns: Sequence[tuple[PlannedColumn, np.ndarray]], done: Callable[[], None]
) -> list[FittedPlace]:
    """The fits of some columns at one place, whose rows are read together."""
    rows = np.unique(np.concatenate([own for _, own in columns]))  # heads share theirs
    values = _read(acts, place, rows)

    def features(one: PlannedColumn, wanted: np.ndarray) -> Tensor:
        own = values[torch.from_numpy(np.searchsorted(rows, wanted)).to(values.device)]
        return own if one.column.head is None else head_of(own, *one.column.head)

    def fitted(column: tuple[PlannedColumn, np.ndarray]) -> FittedPlace:
        one = column[0]
        (fits,) = fit_layers(checked_features(features(*column), place, one.ids.__getitem__), [wanted_fits(one.plan)])
        return scored_place(place, fits, one.plan)

    largest = max(columns, key=lambda column: len(column[1]))
    plans = list({id(one.plan): one.plan for one, _ in columns}.values())
    return in_threads(fitted, columns, places_at_once(features(*largest).float(), plans), done)


def head_of(rows: Tensor, head: int, n_heads: int) -> Tensor:
    """One head's part of rows [n, H * K]: [n, K]. Raises a UsageError if the rows cannot be divided."""
    if rows.shape[1] % n_heads:
        raise UsageError(f"rows of {rows.shape[1]} numbers are not those of {n_heads} heads; extract them again")
    return rows.unflatten(1, (n_heads, -1))[:, head]


def _passes(acts: Activations, place: Place, columns: Sequence[tuple[PlannedColumn, np.ndarray]]) -> list[list[int]]:
    """Numbers of the columns that are read together: all, or as many as `MOST_SHARE` of the free memory holds."""
    free = free_bytes(torch.device("cpu"))
    if free is None or not acts.in_shards or columns[0][0].column.head is not None:
        return [[*range(len(columns))]]  # all heads are in the same rows
    width = acts.width(place)
    by_name: dict[str, list[int]] = {}  # a position of several label sets and probes has its rows in memory once
    for number, (one, _) in enumerate(columns):
        by_name.setdefault(one.column.name, []).append(number)
    passes: list[list[int]] = []
    held = 0.0
    for numbers in by_name.values():
        size = len(np.unique(np.concatenate([columns[number][1] for number in numbers]))) * width * 4
        if not passes or held + size > free * MOST_SHARE:
            passes.append([])
            held = 0.0
        passes[-1] += numbers
        held += size
    return passes


def _read(acts: Activations, place: Place, rows: np.ndarray) -> Tensor:
    """These rows of a place, [len(rows), D]; `rows` rise. Where there are shards, only they are held."""
    if not acts.in_shards:
        whole = acts._rows(place)
        return whole[torch.from_numpy(rows).to(whole.device)]
    values: Tensor | None = None
    for examples, shard in acts.shards(place):
        own = acts.layout.index(place, examples)
        at = np.minimum(np.searchsorted(rows, own), len(rows) - 1)
        wanted = np.flatnonzero(rows[at] == own)
        if values is None:
            values = shard.new_empty((len(rows), shard.shape[1]))
        values[torch.from_numpy(at[wanted])] = shard[torch.from_numpy(wanted)]
    assert values is not None  # a complete store has a shard
    return values


@dataclass(frozen=True, eq=False)
class GridRows:
    """The rows that all columns of a grid are taken from.

    Attributes:
        acts: with all rows.
        request: for one row of each text, or, where tokens have labels, for every row.
        labels: of every row, [R].
        used: bool [R]; rows without a label, and leaks, are not.
        splits: of every text, [N]: its split or, with folds, the name of its fold.
    """

    acts: Activations
    request: Request
    labels: np.ndarray
    used: np.ndarray
    splits: np.ndarray


@dataclass(frozen=True, eq=False)
class GridColumns:
    """The columns of a grid.

    Attributes:
        planned: positions or heads with their fits, and the majority class of each as a baseline; None where baselines
            are left out.
        tokens: the text of the token of each, where nearly all texts have the same.
        origin: what `meta` holds of them.
    """

    planned: list[tuple[PlannedColumn, Baseline | None]]
    tokens: list[str | None]
    origin: dict[str, Any]


@dataclass(frozen=True, eq=False)
class GridPlan:
    """A grid before its fits.

    Attributes:
        noise: the rows of the request's features of a model with random weights, for a second grid; None for none.
        request: the labels, splits and places.
        rows: all rows that columns are taken from.
        grid: the columns and their fits.
        meta: of the results, without what depends on the fits.
    """

    noise: Activations | None
    request: Request
    rows: GridRows
    grid: GridColumns
    meta: dict[str, Any]

    @property
    def n_fits(self) -> int:
        """How many columns are fitted at how many places: the steps of a progress bar."""
        return len(self.grid.planned) * len(self.request.places) * (1 if self.noise is None else 2)


def plan_grid(
    request: Request,
    noise: Activations | None,
    options: CurvesArguments,
    texts: Comparisons,
    expand: Callable[[Request, Protocol, str, CurvesArguments], tuple[GridRows, GridColumns]],
) -> GridPlan:
    """The plan of one grid.

    Args:
        request: the labels, splits and places.
        noise: activations of random weights; None for none.
        options: of the curves.
        texts: what is known of the texts.
        expand: gives the columns, for the rows of a protocol and a headline.

    Raises:
        DataError: as `audited_protocol`; no column has enough texts.
    """
    begin = announcer(options.on_part)
    begin("comparing texts")
    audit, protocol = audited_protocol(request, options, texts)
    headline = _headline(request, protocol.train, options)
    begin(f"planning {'positions' if options.by_position else 'heads'}")
    plan = plan_curve(request, protocol, options.seed, headline, intervals=options.intervals)
    rows, grid = expand(request, protocol, headline, options)
    meta = origin_of(request, plan, audit, options.seed, options.drop_leaks, task_fingerprint(rows.acts))
    meta |= {"metric": options.metric, "by": options.by, "least_texts": options.least_texts, "left_out": []}
    meta |= {"random_init": random_origin(options.random_init), **grid.origin}
    return GridPlan(noise, request, rows, grid, meta)


def expand_positions(
    request: Request, protocol: Protocol, headline: str, options: CurvesArguments
) -> tuple[GridRows, GridColumns]:
    """A column for each place in the text.

    Raises:
        DataError: no position has enough texts of each class in each split or fold.
    """
    acts, rows = request.features, _all_rows(request, protocol)
    names = request.acts.label_names[request.label]
    every = [labelled(column, rows.used) for column in position_columns(acts.layout, options.by == FROM_END)]
    least = options.least_texts
    # the procedure of folds pools predictions of several positions, which therefore need the same classes
    if names and request.label in acts.task.token_labels and options.folds is None:
        every = [with_common_classes(one, rows.labels, rows.splits, len(names), least) for one in every]
    kept, few = usable(every, rows.labels, rows.splits, names, least)
    inputs = acts.task.targets if acts.points[0].startswith("decoder.") else acts.inputs
    tokens = [token_of(column, acts.layout, inputs or [], SAME_TOKEN) for column in kept]
    origin = {"kept": list(acts.layout.positions), "few_texts": few}
    planned = [planned_column(column, rows, headline, options) for column in kept]
    return rows, GridColumns(planned, tokens, origin)


Fits = list[list[FittedPlace]]
"""[columns][places]."""


def fit_grids(plans: Sequence[GridPlan], done: Callable[[], None]) -> list[tuple[Fits, Fits | None]]:
    """The fits of each grid, and those of random weights; a place is read once for all grids of the same places.

    `done` is called `plan.n_fits` times for each plan.
    """
    every = [[one for one, _ in plan.grid.planned] for plan in plans]
    own = _fit_together(plans, [plan.request.features for plan in plans], every, done)
    noises = [plan.noise for plan in plans if plan.noise is not None]
    if not noises:
        return [(fitted, None) for fitted in own]
    return list(zip(own, _fit_together(plans, noises, map(_without_checks, every), done), strict=True))


def _fit_together(
    plans: Sequence[GridPlan],
    sources: Sequence[Activations],
    planned: Iterable[Sequence[PlannedColumn]],
    done: Callable[[], None],
) -> list[Fits]:
    """The fits of each grid's columns, from activations of its own."""
    found: dict[int, Fits] = {}
    together: dict[tuple[Any, ...], list[tuple[int, Activations, list[tuple[PlannedColumn, np.ndarray]]]]] = {}
    for number, (plan, source, own) in enumerate(zip(plans, sources, planned, strict=True)):
        acts, _ = selected_from(source, own[0].column.rows)
        columns = [(one, selected_from(source, one.column.rows)[1]) for one in own]
        together.setdefault((id(acts), *plan.request.places), []).append((number, acts, columns))
    for grids in together.values():
        number, acts, _ = grids[0]
        columns = [column for _, _, own in grids for column in own]
        fitted = iter(fit_columns(acts, columns, plans[number].request.places, done))
        found |= {number: list(itertools.islice(fitted, len(own))) for number, _, own in grids}
    return [found[number] for number in range(len(plans))]


def grid_results(plan: GridPlan, options: CurvesArguments, fitted: Fits, noisy: Fits | None) -> PositionResults:
    """The curves of every column, compared with chance and with random weights.

    Args:
        plan: of the grid.
        options: of the curves.
        fitted: its fits.
        noisy: those of random weights; None for none.
    """
    begin, grid, request, headline = announcer(options.on_part), plan.grid, plan.request, plan.meta["headline"]
    begin("comparing with chance")
    curves, chance = _curves(grid, fitted, noisy, request.acts.label_names[request.label], headline, options)
    meta = {**plan.meta, **chance}
    cells = _quoted_cells(PositionData(curves, meta), grid, fitted)
    if options.folds is not None:
        tested, texts = _tested(cells, fitted, grid)
        intervals = score_intervals(_resamples(texts, plan, options), tested)
        guesses = [[baseline] * len(request.places) for _, baseline in grid.planned]
        chance_there = None
        if options.baselines is not False:
            chance_there = value_of(_tested(cells, guesses, grid)[0], headline)
        meta["procedure"] = {
            "metrics": score(tested),
            "intervals": {name: list(ends) for name, ends in intervals.items()},
            "cells": [[curves[i].position, curves[i].layers[j].place] for i, j in cells],
            "n": len(texts),
            "chance": chance_there,
        }
    if noisy is not None and cells:
        meta["over_random"] = _over_random(cells, curves, fitted, noisy, plan, options)
    return (HeadResults if options.by == BY_HEAD else PositionResults)(curves, meta)


def _headline(request: Request, train: np.ndarray, options: CurvesArguments) -> str:
    """The metric of all positions: the one requested, or what the labels of all of train decide."""
    if options.metric is not None:
        return check_metric(options.metric, request.n_classes)
    labels = request.labels[train]
    return default_metric(np.bincount(labels, minlength=request.n_classes) if request.n_classes else [])


def _all_rows(request: Request, protocol: Protocol) -> GridRows:
    """Labels and splits, or folds, of every row; the protocol is of the rows of the request."""
    acts, label = request.features, request.label
    counts = acts.layout.counts(request.places[0])
    text = np.repeat(np.arange(len(counts)), counts)
    by_token = label in acts.task.token_labels and acts.layout.is_ragged
    own = text if by_token else np.arange(len(counts))  # the text of each row that a request may have
    asked = np.arange(len(own)) if request.rows is None else request.rows
    is_kept = np.isin(np.arange(len(asked)), np.concatenate(list(protocol.rows.values())))
    dropped = np.zeros(len(own), dtype=bool)
    dropped[asked[~is_kept]] = True  # leaks
    splits = acts.task.splits.astype("<U10")
    splits[own[asked]] = request.acts.task.splits  # validation rows may have been carved
    if request.group is not None:
        dropped |= ~request.group.rows
        splits[~np.isin(np.arange(len(splits)), own[request.group.rows])] = ""
    if protocol.folds is not None:
        splits = fold_names([own[asked[part]] for part in protocol.parts], len(counts))
    if by_token:
        labels, used = np.asarray(acts.at(ALL).labels[label]), ~dropped
    elif label in acts.task.token_labels:
        each = [np.asarray(acts.at(name).labels[label]) for name in acts.layout.positions]
        labels, used = np.stack(each, axis=1).reshape(len(text), *each[0].shape[1:]), ~dropped[text]
    else:
        labels, used = np.asarray(acts.labels[label])[text], ~dropped[text]
    return GridRows(acts, request, labels, used & ~no_label(labels), splits)


@one_thread()
def planned_column(
    column: Column, rows: GridRows, headline: str, options: CurvesArguments
) -> tuple[PlannedColumn, Baseline | None]:
    """The fits of one column, and its majority class as a baseline."""
    request, layout = rows.request, rows.acts.layout
    labels, n_classes = rows.labels[column.rows], request.n_classes
    if column.classes is not None:
        labels, n_classes = np.searchsorted(column.classes, labels), len(column.classes)
    task = _task_of(rows, column, labels)
    tokens = None if layout.tokens is None else layout.tokens[column.rows]
    own = Layout([Selection.named(column.name)], layout.lengths[column.texts], layout.n_bos, tokens, layout.n_end)
    acts = ActivationSet({}, task, rows.acts.meta, own)
    request = replace(request, acts=acts, features=acts, labels=labels, n_classes=n_classes)
    if options.folds is None:
        protocol = split_protocol(task.splits, np.ones(len(labels), dtype=bool))
    else:
        fold = rows.splits[column.texts]
        protocol = nested_protocol([np.flatnonzero(fold == f"{FOLD}{i}") for i in range(options.folds)], len(labels))
    controls = draw_controls(request, protocol, options)
    plan = plan_curve(request, protocol, options.seed, headline, controls, bool(options.codelength), options.intervals)
    examples = LabelledInputs(None, None, None, labels, n_classes)
    baselines = [] if options.baselines is False else model_free_baselines(examples, protocol, headline, None)
    return PlannedColumn(column, task.ids, plan), baselines[0] if baselines else None


def _task_of(rows: GridRows, column: Column, labels: np.ndarray) -> Task:
    """The texts of a position as examples, with the labels and splits that are used there; folds leave the splits."""
    task = rows.acts.task.subset(column.texts)
    name = rows.request.label
    every = rows.request.acts.label_names[name]
    names = {name: every if column.classes is None else [every[k] for k in column.classes]}
    task = replace(task, labels={name: labels}, label_names=names, token_labels={}, target=name)
    splits = rows.splits[column.texts]
    return task if splits[0].startswith(FOLD) else replace(task, splits=splits)


def _curves(
    grid: GridColumns,
    fitted: Sequence[Sequence[FittedPlace]],
    noisy: Sequence[Sequence[FittedPlace]] | None,
    names: Sequence[str],
    headline: str,
    options: CurvesArguments,
) -> tuple[list[PositionCurve], dict[str, Any]]:
    """The curves, and what `meta` holds of their comparison with chance."""
    tests = [[each.fit.test for each in own] for own in fitted]
    nothing: list[list[float | None]] = [[None] * len(own) for own in tests]
    p_values, corrected = nothing, nothing
    chance: dict[str, Any] = {"permutations": None, "no_p_values": None if options.intervals else NOT_REQUESTED}
    if options.quick or options.folds:
        chance["no_p_values"] = NO_P_VALUES if options.folds else LEFT_OUT
    if chance["no_p_values"] is None:
        units = [one.plan.bootstrap.groups for one, _ in grid.planned if one.plan.bootstrap is not None]
        found = compare_with_chance(tests, headline, options.seed, units)
        p_values, corrected = found.p_values.tolist(), found.corrected.tolist()
        chance |= {"permutations": found.permutations, "above_chance": ABOVE_CHANCE}
    chance["test_groups"] = fewest_groups(one.plan.bootstrap for one, _ in grid.planned)
    cells = zip(grid.planned, fitted, p_values, corrected, grid.tokens, strict=True)
    curves = [
        PositionCurve(
            position=one.column.name,
            n={split: len(which) for split, which in one.plan.grid.protocol.rows.items()},
            chance=None if majority is None else majority.result.metrics["test"].get(headline),
            layers=[replace(each.result, p_value=p) for each, p in zip(own, ps, strict=True)],
            corrected=list(after),
            token=token,
            left_out=_left_out(one.column, names),
            random_init=[] if noisy is None else [replace(each.result, probe=None) for each in noisy[i]],
        )
        for i, ((one, majority), own, ps, after, token) in enumerate(cells)
    ]
    return curves, chance


Cells = list[tuple[int, int]]
"""For each round, the numbers of the column and of the layer that predict its test texts."""


def _quoted_cells(data: PositionData, grid: GridColumns, fitted: Sequence[Sequence[FittedPlace]]) -> Cells:
    """The cells whose test predictions are quoted: the selected one or, with folds, each round's own choice."""
    protocols = [one.plan.grid.protocol for one, _ in grid.planned]
    if protocols[0].folds is None:
        best = None if data.selected is None else data.selected[1]
        return [(i, j) for i, one in enumerate(data.positions) for j, each in enumerate(one.layers) if each is best]
    every = [(i, j) for i, own in enumerate(fitted) for j in range(len(own))]

    def key(number: int, i: int, j: int) -> tuple[Any, ...]:
        n_choose = len(grid.planned[i][0].column.texts) - len(protocols[i].rounds[number].test)
        return selection_key(*fitted[i][j].fit.by_round[number], n_choose)

    return [max(every, key=lambda cell, number=number: key(number, *cell)) for number in range(protocols[0].folds)]


def _tested(cells: Cells, fits: Sequence[Sequence[Any]], grid: GridColumns) -> tuple[Predictions, np.ndarray]:
    """The test predictions of each round's cell, pooled, and their texts; `fits` are fitted places or baselines.

    With folds a text is tested in one round only, at all its positions, so it is there at most once.
    """
    parts, texts = [], []
    for number, (i, j) in enumerate(cells):
        one, each = grid.planned[i][0], fits[i][j]
        rounds = one.plan.grid.protocol.rounds
        start = sum(len(other.test) for other in rounds[:number])
        test = each.fit.test if isinstance(each, FittedPlace) else each.test
        parts.append(part_of(test, slice(start, start + len(rounds[number].test))))
        texts.append(one.column.texts[rounds[number].test])
    return pooled(parts), np.concatenate(texts)


def _resamples(texts: np.ndarray, plan: GridPlan, options: CurvesArguments) -> Bootstrap | None:
    """Resamples of these texts; None for no intervals."""
    if not options.intervals:
        return None
    task, group = plan.rows.acts.task, plan.request.group
    if group is not None and options.by_position:
        every = np.flatnonzero(plan.rows.splits)  # the texts of the group
        task, texts = task.subset(every), np.searchsorted(every, texts)
    units = resampling_units(task)
    return Bootstrap(len(texts), options.seed, None if units is None else np.asarray(units)[texts])


def _over_random(
    cells: Cells,
    curves: Sequence[PositionCurve],
    fitted: Sequence[Sequence[FittedPlace]],
    noisy: Sequence[Sequence[FittedPlace]],
    plan: GridPlan,
    options: CurvesArguments,
) -> dict[str, Any]:
    """How far the quoted cells are ahead of those that validation selects among random weights.

    The two may be at different positions, so they are compared on the test texts that have both; at positions with
    other classes there is no comparison.
    """
    grid, headline = plan.grid, plan.meta["headline"]
    random = PositionData([replace(one, layers=one.random_init) for one in curves], {**plan.meta})
    theirs = _quoted_cells(random, grid, noisy)
    (test, texts), (other, own) = _tested(cells, fitted, grid), _tested(theirs, noisy, grid)
    record: dict[str, Any] = {"value": value_of(other, headline), "over": None, "interval": None, "n": 0}
    if options.folds is None:
        record["cell"] = [curves[theirs[0][0]].position, curves[theirs[0][0]].layers[theirs[0][1]].place]
    common, mine, others = np.intersect1d(texts, own, return_indices=True)
    if len(common) and all(
        curves[i].left_out == curves[k].left_out for (i, _), (k, _) in zip(cells, theirs, strict=True)
    ):
        pair = part_of(test, mine), part_of(other, others)
        over, interval = paired_difference(*pair, headline, _resamples(common, plan, options))
        if np.isfinite(over):
            record |= {"over": over, "interval": interval, "n": len(common)}
    return record


def _left_out(column: Column, names: Sequence[str]) -> tuple[str, ...]:
    """The names of the classes that are not probed at a position."""
    return () if column.classes is None else tuple(np.delete(names, column.classes).tolist())

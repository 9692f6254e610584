"""Train a probe at every place of a curve: fitted on train, chosen on validation, tested once, and checked.

The checks are the audit of the data, control tasks, baselines, code lengths, and the comparison of the places. Of
several curves, a place is read once for all label sets, and what belongs to a label set alone (audit, control tasks,
model-free baselines) is made once for all points. With the results of a curve are kept the rows that chose and tested,
with their scores, and the mean and shrunk covariance of each place's training rows.

Axes: N rows, D width, K directions.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from scipy.linalg import eigh

from probekit.activations.activations import Activations
from probekit.activations.labelled import label, with_label_columns, with_task
from probekit.errors import DataError
from probekit.evaluation.by_head.train import expand_heads
from probekit.evaluation.by_position.train import GridPlan, expand_positions, fit_grids, grid_results, plan_grid
from probekit.evaluation.compare.baselines import Baseline, embedding_baseline
from probekit.evaluation.compare.best_latents import best_latents
from probekit.evaluation.compare.black_boxes import BoxFit, black_box_records, check_boxes, opened
from probekit.evaluation.compare.ensembles import layer_ensemble
from probekit.evaluation.compare.layers import compare_layers
from probekit.evaluation.compare.lead import lead, optimism, paired_difference
from probekit.evaluation.compare.same_rows import against_pooled, pooled_results
from probekit.evaluation.curve import Fitted, FittedPlace, announcer, ticker
from probekit.evaluation.fits.choose import layers_by_round
from probekit.evaluation.fits.protocol import Protocol
from probekit.evaluation.fits.sequences import tokens_of_texts
from probekit.evaluation.fits.stream import features_to_fit, rows_held
from probekit.evaluation.label_sets import LabelSetPlan, of_each_group, plan_label_sets
from probekit.evaluation.plan import CurvePlan
from probekit.evaluation.quick import NO_P_VALUES, searches_near_duplicates
from probekit.evaluation.reading import checked_activations, of_rows
from probekit.evaluation.request import Request, check_requests, random_init_activations
from probekit.evaluation.results.curves import ProbeCurves
from probekit.evaluation.results.data import EMBEDDING, LayerResult, ProbeData
from probekit.evaluation.results.grids import Grid, ProbeGrids
from probekit.evaluation.results.results import ProbeResults
from probekit.evaluation.results.row_scores import RowScores, digests_of
from probekit.evaluation.results.spread import TrainingSpread, distances
from probekit.evaluation.rows import Comparisons, resampling_units
from probekit.evaluation.scores.metrics import Predictions
from probekit.evaluation.scores.rates import rates_at, threshold_for
from probekit.evaluation.scores.score import score, score_intervals
from probekit.evaluation.set_fits import FITTING, FitPlaces, SetFits, fit_sets
from probekit.evaluation.surface.nuisance import nuisance_record
from probekit.evaluation.surface.shift import fit_shifts, plan_shift
from probekit.machine.devices import at_most
from probekit.machine.progress import shown_parts
from probekit.machine.threads import one_thread
from probekit.options import CurvesArguments
from probekit.options.probe import BY_HEAD
from probekit.points import LATENTS, Place, base_name
from probekit.probes.base import as_numpy
from probekit.probes.sequence.ragged import pooled_rows

DIRECTIONS = 256  # 0.8 MB at D = 768
WIDE = 2048  # the smaller side of the rows is at most this, whose eigenvectors take two seconds of one core
MOST_ROWS = 8192
SMALLEST = 1e-12  # of the mean variance: rows without any variance have a distance all the same


def training_spread(acts: Activations, place: Place, protocol: Protocol, seed: int) -> TrainingSpread:
    """The spread of a place's training rows; of a probe over a sequence, of the mean token of each text.

    At most `MOST_ROWS` training rows take part, drawn with the seed (`WIDE` of them for wider places), and as many
    validation rows. With nested folds all rows are training rows, and none are held out.
    """
    is_ragged = acts.layout.is_ragged
    X = pooled_rows(tokens_of_texts(acts, place), "mean") if is_ragged else features_to_fit(acts, place)
    rng = np.random.default_rng(seed)
    parts = []
    for rows in (protocol.train, protocol.rows.get("validation", np.empty(0, dtype=np.int64))):
        most = MOST_ROWS if X.shape[1] <= WIDE else WIDE
        some = rows if len(rows) <= most else np.sort(rng.choice(rows, most, replace=False))
        parts.append(np.asarray(as_numpy(rows_held(X, some)), dtype=np.float64))
    made = spread_of(parts[0], str(place))
    return replace(made, held_out=np.sort(distances(made, parts[1])))


def spread_of(X: np.ndarray, place: str) -> TrainingSpread:
    """The spread of rows [N, D], with no held-out distances."""
    N, D = X.shape
    mean = X.mean(axis=0)
    centred = X - mean
    small = centred @ centred.T if N < D else centred.T @ centred
    K = min(DIRECTIONS, len(small))
    values, vectors = eigh(small, subset_by_index=(len(small) - K, len(small) - 1))
    values, vectors = np.maximum(values[::-1] / N, 0), vectors[:, ::-1]
    if N < D:  # the vectors of the rows' products give those of the covariance, but for directions without variance
        varied = values > SMALLEST * max(values[0], np.finfo(float).tiny)
        values = values[varied]
        vectors = centred.T @ (vectors[:, : len(values)] / np.sqrt(N * values))
    variances, rest = _shrunk(values, small / N, centred)
    return TrainingSpread(place, N, mean, vectors.T.astype(np.float32), variances, rest, np.empty(0))


def _shrunk(values: np.ndarray, small: np.ndarray, centred: np.ndarray) -> tuple[np.ndarray, float]:
    """The largest eigenvalues [K] of the covariance, shrunk towards the mean of all, and the mean of the others.

    `small` has the covariance's eigenvalues, but for zeros: its trace is their sum, and its squares sum to theirs.

    The weight of the mean is that of Ledoit and Wolf (2004, lemma 3.2 ff.): the squared error of the covariance over
    its squared distance from a multiple of the identity.
    """
    (N, D), K = centred.shape, len(values)
    total, squares = float(np.trace(small)), float(np.einsum("ij,ij->", small, small))
    average = total / D
    off_identity = squares - D * average**2
    error = (float((np.einsum("nd,nd->n", centred, centred) ** 2).sum()) / N - squares) / N
    weight = 1.0 if off_identity <= 0 else min(1.0, max(0.0, error) / off_identity)
    least = max(SMALLEST * average, np.finfo(float).tiny)
    shrunk = np.maximum((1 - weight) * values + weight * average, least)
    others = D - K
    rest = (1 - weight) * (total - float(values.sum())) / others + weight * average if others else average
    return shrunk, max(rest, least)


def scored_rows(
    acts: Activations, plan: CurvePlan, fitted: Sequence[FittedPlace], boxes: Sequence[BoxFit] = ()
) -> RowScores:
    """The rows of one curve: those of validation, then those of test in the order in which they are pooled.

    Of the baselines, those of black boxes have their scores and their tokens kept.
    """
    protocol, task = plan.grid.protocol, acts.task
    chose = protocol.rows.get("validation", np.empty(0, dtype=np.int64))
    rows = np.concatenate([chose, protocol.test])
    units = resampling_units(task)
    groups = rows if units is None else np.unique(np.asarray(units)[rows], return_inverse=True)[1]
    parts = {place.result.place: _parts(place) for place in fitted}
    return RowScores(
        ids=np.array([task.ids[i] for i in rows], dtype=object),
        digests=digests_of([task.inputs[i] for i in rows], task.has_texts),
        splits=np.array(["validation"] * len(chose) + ["test"] * len(protocol.test), dtype=object),
        labels=plan.grid.label_sets[0][rows],
        groups=groups.astype(np.int64),
        scores={name: np.concatenate([part.scores for part in own]) for name, own in parts.items()},
        predicted={name: np.concatenate([part.predicted for part in own]) for name, own in parts.items()}
        if plan.grid.n_classes
        else {},
        baselines={
            box.name: np.concatenate(
                [part.scores for part in (box.baseline.validation, box.baseline.test) if part is not None]
            )
            for box in boxes
        },
        rises={place.result.place: place.rises for place in fitted if place.rises is not None},
        tokens={box.name: box.row_tokens[rows] for box in boxes if box.row_tokens is not None},
    )


def rates_of(rows: RowScores, place: str) -> dict[str, float] | None:
    """The rates of a threshold that validation chose at a place, as `LayerResult.rates`; None without two classes."""
    chosen, scores = rows.splits == "validation", rows.scores[place]
    if place not in rows.predicted or scores.ndim != 1 or not chosen.any():
        return None
    found = threshold_for(scores[chosen], rows.labels[chosen])
    about: dict[str, float] = {"fpr": found.fpr, "negatives": found.negatives, "least": found.least}
    if found.value is None:
        return about
    tested = ~chosen
    rates = rates_at(found.value, scores[tested], rows.labels[tested], rows.groups[tested])
    both = zip(("tpr", "test_fpr"), rates, strict=True)
    parts = [{name: rate.value, f"{name}_low": rate.low, f"{name}_high": rate.high} for name, rate in both if rate]
    return about | {"threshold": found.value} | {key: value for part in parts for key, value in part.items()}


def _parts(place: FittedPlace) -> list[Predictions]:
    """The predictions of a place for the validation rows, where there are any, and for the test rows."""
    return [place.fit.test] if place.validation is None else [place.validation, place.fit.test]


@one_thread()
def curve_results(
    label_set: LabelSetPlan, request: Request, fits: SetFits, options: CurvesArguments, known: dict[Any, dict[str, Any]]
) -> ProbeResults:
    """The results of one point: its layers compared with one another, with chance and with the baselines.

    `known` has the best latents of the curves before: those of other probes of the same rows are the same.
    """
    plan, fitted = label_set.plan, [fits.own[place] for place in request.places]
    layers, chance = _compared(fitted, plan, None if options.folds or options.quick else options.seed)
    baselines = [*label_set.baselines, *([] if options.baselines is False else _embedding(fitted))]
    meta = {**label_set.origin, "point": request.point, **chance}
    drawn = plan.bootstrap
    meta["test_groups"] = None if drawn is None else drawn.n_groups
    meta["test_rarest"] = None if drawn is None else drawn.rarest_of(fitted[0].fit.test)
    if options.quick and options.intervals and not options.folds:
        meta["no_p_values"] = NO_P_VALUES
    noisy = [fits.random[place] for place in request.places if place in fits.random]
    left = [fits.residual[place] for place in request.places if place in fits.residual]
    if left:
        meta["nuisance"] = nuisance_record(label_set, fitted, left)
    scored = scored_rows(request.acts, plan, fitted, label_set.boxes)
    layers = [replace(layer, rates=rates_of(scored, layer.place)) for layer in layers]
    results = ProbeResults(
        layers=layers,
        baselines=[baseline.result for baseline in baselines],
        meta=meta,
        random_init=_numbers(noisy),
        pooled=pooled_results(fits.pooled, request.places),
        rows=scored,
        spread=_spread(layers, request, plan, options),
        residual=_numbers(left),
    )
    if (best := _latents_to_name(results, request, plan)) is not None:
        key = id(request.features), request.rows_key, best
        known[key] = known.get(key) or best_latents(request.features, best, plan)
        meta["best_latents"] = known[key]
    quoted, meta["procedure"] = _quoted(results, fitted, plan)
    if left and quoted is not None and results.procedure is not None:  # no place of the curve may be quoted
        residual = ProbeResults([place.result for place in left], [], {"headline": plan.headline})
        without = _quoted(residual, left, plan)[0]
        assert without is not None
        change, interval = paired_difference(without, quoted, plan.headline, plan.bootstrap)
        meta["nuisance"]["procedure"] = {"change": change, "interval": interval}
    meta |= {"lead": None, "optimism": None}
    if quoted is not None:
        others = [*_rivals(results, baselines), *_random_baseline(noisy, plan)]
        meta["lead"] = lead(quoted, others, plan.headline, plan.bootstrap)
        if fits.pooled:
            meta["pooled"] = against_pooled(quoted, _chosen(fits.pooled, request.places, plan), plan)
        meta["optimism"] = optimism(results.layers, results.best, plan.headline, results.estimate[0])
    if options.ensemble:
        mixed, meta["ensemble"] = layer_ensemble(results, quoted, plan.bootstrap)
        results.baselines.append(mixed.result)
    if label_set.boxes:
        meta["black_boxes"] = black_box_records(label_set.boxes, quoted, plan)
    return results


def _latents_to_name(results: ProbeResults, request: Request, plan: CurvePlan) -> Place | None:
    """The selected place, if it is of latents that can be ranked: of classes, a row for each example, without folds."""
    best = results.selected
    ranked = plan.grid.n_classes and plan.grid.protocol.folds is None and not request.probe.of_sequences
    return Place(best.point, best.layer) if best is not None and base_name(best.point) == LATENTS and ranked else None


def _numbers(places: Sequence[FittedPlace]) -> list[LayerResult]:
    """The results without the fitted probes."""
    return [replace(place.result, probe=None) for place in places]


def _spread(
    layers: list[LayerResult], request: Request, plan: CurvePlan, options: CurvesArguments
) -> TrainingSpread | None:
    """The spread of the selected place's training activations, if one was selected; latents have none.

    Most latents are 0 on almost every row, so that a covariance says nothing of which rows are unusual.
    """
    best = ProbeData(layers, [], {"headline": plan.headline}).selected
    if best is None or base_name(best.point) == LATENTS:
        return None
    return training_spread(request.features, Place(best.point, best.layer), plan.grid.protocol, options.seed)


def _embedding(fitted: list[FittedPlace]) -> list[Baseline]:
    """The first place as a baseline of the others, if it is the embedding."""
    found = embedding_baseline(fitted[0].result, fitted[0].fit.test) if len(fitted) > 1 else None
    return [] if found is None else [found]


def _compared(fitted: list[FittedPlace], plan: CurvePlan, seed: int | None) -> tuple[list[LayerResult], dict[str, Any]]:
    """The results with bands, best set and p-values, and the record of the permutation test."""
    found = compare_layers([place.fit.test for place in fitted], plan.headline, plan.bootstrap, seed)
    layers = [
        replace(place.result, band=band, in_best_set=tied, p_value=p)
        for place, band, tied, p in zip(fitted, found.bands, found.in_best_set, found.p_values, strict=True)
    ]
    return layers, found.chance


def _quoted(
    results: ProbeResults, fitted: list[FittedPlace], plan: CurvePlan
) -> tuple[Predictions | None, dict[str, Any] | None]:
    """The test predictions that are quoted, if any are; with folds, also the record of how well the procedure does."""
    protocol = plan.grid.protocol
    if protocol.folds is None:
        selected = results.selected
        chosen = [each for each in fitted if selected is not None and each.result.place == selected.place]
        return chosen[0].fit.test if chosen else None, None
    quoted, chosen = layers_by_round([place.fit for place in fitted], protocol.rounds)
    intervals = {name: list(ends) for name, ends in score_intervals(plan.bootstrap, quoted).items()}
    layers = [fitted[i].result.place for i in chosen]
    return quoted, {"metrics": score(quoted), "intervals": intervals, "layers": layers}


def _chosen(
    pooled: dict[str, Fitted], places: Sequence[Place], plan: CurvePlan
) -> dict[str, tuple[ProbeResults, Predictions | None]]:
    """The curve of each kind of row, and its test predictions that would be quoted."""
    found = {}
    for how, fitted in pooled.items():
        own = [fitted[place] for place in places]
        results = ProbeResults([each.result for each in own], [], {"headline": plan.headline})
        test, results.meta["procedure"] = _quoted(results, own, plan)
        found[how] = results, test
    return found


def _random_baseline(random: list[FittedPlace], plan: CurvePlan) -> list[tuple[str, Predictions]]:
    """The test predictions from random weights, if there are any, at the layer that validation chooses among theirs."""
    if not random:
        return []
    results = ProbeResults([place.result for place in random], [], {"headline": plan.headline})
    quoted = _quoted(results, random, plan)[0]
    return [] if quoted is None else [("random init", quoted)]


def _rivals(results: ProbeResults, baselines: list[Baseline]) -> list[tuple[str, Predictions]]:
    """Name and test predictions of each baseline; where the embedding itself is quoted, it is no rival."""
    is_quoted = results.quoted is not None and results.quoted.layer is results.layers[0]
    return [
        (baseline.result.name, baseline.test)
        for baseline in baselines
        if not (is_quoted and baseline.result.name == EMBEDDING)
    ]


def train_curves(
    acts: Activations, options: CurvesArguments, fit_elsewhere: FitPlaces | None = None
) -> ProbeResults | ProbeCurves | Grid | ProbeGrids:
    """`train_probes`, with its options as an object, and no tracker; a cluster fits the places if one is given."""
    acts, options = with_labels(acts, options)
    options = replace(options, black_boxes=opened(options.black_boxes, acts.task.ids) or None)
    with shown_parts(options) as options, at_most(cast("int | None", options.memory)):
        if options.makes_grids:
            return _grids(acts, options)
        requests = check_requests(acts, options)
        check_boxes(options.black_boxes or [], list(dict.fromkeys(own[0].label for own in requests)))
        begin = announcer(options.on_part)
        sets = plan_label_sets(requests, options, begin)
        begin(FITTING)
        fits = fit_sets(acts, sets, options, fit_elsewhere)
        begin("comparing layers")
        order = _in_order([each.requests for each in sets])
        known: dict[Any, dict[str, Any]] = {}
        curves = [curve_results(sets[i], sets[i].requests[point], fits[i], options, known) for i, point in order]
    return ProbeCurves(curves) if options.several else curves[0]


def _grids(acts: Activations, options: CurvesArguments) -> Grid | ProbeGrids:
    """A grid for each request; texts are compared once for all, and all are planned before fits."""
    made, texts = check_requests(acts, options), Comparisons(near=searches_near_duplicates(options))
    requests = [[made[number][point]] for number, point in _in_order(made)]
    several = len({request.label for (request,) in requests}) > 1
    grids: Sequence[Grid]
    if options.shift_column is not None:
        shifts = of_each_group(requests, lambda request: plan_shift(request, options, texts))
        grids = fit_shifts(shifts, options)
    else:
        noise, expand = options.random_init, expand_heads if options.by == BY_HEAD else expand_positions
        if noise is not None:
            places = list(dict.fromkeys(place for (request,) in requests for place in request.places))
            noise = random_init_activations(noise, acts.task, requests[0][0], places, options)

        def planned(request: Request) -> GridPlan:
            own = noise if noise is None or options.by_position else of_rows(noise, request.rows)
            try:
                return plan_grid(request, own, options, texts, expand)
            except DataError as error:
                raise DataError(f"{request.label!a}: {error}") if several else error from None

        plans = of_each_group(requests, planned)
        done = ticker(options.on_progress, sum(each.n_fits for each in plans))
        announcer(options.on_part)(FITTING)
        fits = fit_grids(plans, done)
        grids = [grid_results(each, options, *own) for each, own in zip(plans, fits, strict=True)]
    return ProbeGrids(grids) if options.several else grids[0]


def _in_order(sets: Sequence[Sequence[Request]]) -> list[tuple[int, int]]:
    """The numbers of set and point of each curve: label by label, in it point by point, then group and probe."""
    labels = [own[0].label for own in sets]
    every = [(number, point) for number, own in enumerate(sets) for point in range(len(own))]
    return sorted(every, key=lambda pair: (labels.index(labels[pair[0]]), pair[1], pair[0]))


def with_labels(acts: Activations, options: CurvesArguments) -> tuple[Activations, CurvesArguments]:
    """The activations with the labels that the options hold or name, those of random weights too; and the options."""
    if options.joined is not None:
        made = label(acts, options.joined)
        options = replace(options, labels=None)
    else:
        made = with_label_columns(
            checked_activations(acts),
            options.label,
            *(options.labels if isinstance(options.labels, list | tuple) else ()),
        )
    noise = None if options.random_init is None else checked_activations(options.random_init, "random_init=")
    if made is acts or noise is None:
        return made, options
    if noise.task.fingerprint() == acts.task.fingerprint():
        noise = with_task(noise, made.task)
    return made, replace(options, random_init=noise)

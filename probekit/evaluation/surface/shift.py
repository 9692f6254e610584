"""Train on the rows with one value of a column, and test on the rows with each: a matrix as `transfer` makes it.

A probe that has found the label, and not something that goes with it in one source, keeps working on the others. The
rows of each split are those of the task; C and layer are chosen on validation rows of the values that are trained on.
Values are categories, or numbers cut at the quartiles of train.

Axes: N examples, T values.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import stdtrit

from probekit.activations.activations import Activations
from probekit.errors import DataError
from probekit.evaluation.curve import Fitted, announcer, fit_places, ticker
from probekit.evaluation.fits.protocol import Protocol, split_protocol
from probekit.evaluation.plan import CurvePlan, plan_curve
from probekit.evaluation.request import Request
from probekit.evaluation.results.provenance import origin_of
from probekit.evaluation.results.results import ProbeResults
from probekit.evaluation.results.surface_note import shift_text
from probekit.evaluation.results.transfer_results import TransferResults
from probekit.evaluation.results.verdict import chance_level
from probekit.evaluation.rows import Comparisons, audited_protocol
from probekit.evaluation.scores.bootstrap import LEVEL, Bootstrap, fewest_groups, groups_note
from probekit.evaluation.scores.metrics import Predictions, check_metric
from probekit.evaluation.scores.score import for_metric, value_of
from probekit.evaluation.surface.values import MOST_VALUES, has_rows, rows_by_value
from probekit.evaluation.transfer import Chosen, TestRows, TrainedProbes, resampled_rows, tested_cells
from probekit.options import CurvesArguments
from probekit.points import Place
from probekit.tasks.quality.audit import Audit
from probekit.text import counted, listed

LEAST_CHOOSE = 1  # rows of each class in validation; of a regression, this and one more


@dataclass(frozen=True, eq=False)
class ShiftValues:
    """The values of a column, and which of them can be trained on and tested.

    Attributes:
        of: the value of each example, [N]; None where it is missing.
        trained: those with enough rows in train and validation, the most frequent first, or parts of a range in order.
        tested: those with enough rows in test.
        left_out: value -> why it is neither.
    """

    of: np.ndarray
    trained: list[str]
    tested: list[str]
    left_out: dict[str, str]


def shift_values(
    acts: Activations, name: str, label: str, labels: np.ndarray, rows: dict[str, np.ndarray], least: int
) -> ShiftValues:
    """The values of a column that have enough rows of each class.

    Args:
        acts: one row for each example.
        name: a kept column, another label set, "length" (in words) or "tokens".
        label: the label set that is predicted.
        labels: int64 [N], or float64 [N] of a regression.
        rows: split -> rows in use.
        least: rows of each class that a value needs in train, and in test; of a regression, in all.

    Raises:
        UsageError: no such column.
        DataError: fewer than two values have enough rows.
    """
    values, known, counts = rows_by_value(acts, name, label, rows["train"])
    n_classes = len(acts.label_names[label])

    def has(value: str, split: str, needed: int) -> bool:
        own = rows.get(split, np.empty(0, dtype=np.int64))
        return has_rows(labels[own[values[own] == value]], n_classes, needed)

    chooses = bool(len(rows.get("validation", ())))
    few = LEAST_CHOOSE if n_classes else LEAST_CHOOSE + 1
    trained = [one for one in known if has(one, "train", least) and (not chooses or has(one, "validation", few))]
    tested = [one for one in known if has(one, "test", least)]
    left_out = {
        one: f"fewer than {least} rows of each class in train and in test" if n_classes else f"fewer than {least} rows"
        for one in known
        if one not in trained and one not in tested
    }
    for one in [one for one in known if one not in left_out][MOST_VALUES:]:
        left_out[one] = f"not among the {MOST_VALUES} largest"
    trained, tested = ([one for one in own if one not in left_out] for own in (trained, tested))
    if not trained or not tested or len({*trained, *tested}) < 2:
        found = listed([f"{one!a:.40} {counts[one]:,}" for one in known], most=6) or "none"
        raise DataError(
            f"a shift needs two values of {name!a:.80} with {least} rows of each class in train and in test, and one "
            f"in validation; it has {found}; take fewer (--least-texts), add rows, or name another column"
        )
    return ShiftValues(values, trained, tested, left_out)


ALL_OTHERS = "all others"


@dataclass(frozen=True, eq=False)
class ShiftPlan:
    """A shift before its fits.

    Attributes:
        request: the labels, splits and places.
        values: of the column.
        protocol: all rows in use.
        whole: fits and scores of all rows, whose headline is that of every value.
        trained: for each set of probes the value that is trained on, or `ALL_OTHERS`, and the only one that it is
            tested on, or None.
        plans: the fits of each set of probes.
        meta: of the results, without what depends on the fits.
    """

    request: Request
    values: ShiftValues
    protocol: Protocol
    whole: CurvePlan
    trained: list[tuple[str, str | None]]
    plans: list[CurvePlan]
    meta: dict[str, Any]


def plan_shift(request: Request, options: CurvesArguments, texts: Comparisons) -> ShiftPlan:
    """The probes of each value and, of three or more, those of all but each tested one; errors as in `train_probes`.

    Raises:
        DataError: fewer than two values with enough rows of each class.
    """
    column = options.shift_column
    assert column is not None
    metric = None if options.metric is None else check_metric(options.metric, request.n_classes)
    announcer(options.on_part)("comparing texts")
    audit, protocol = audited_protocol(request, options, texts)
    values = shift_values(request.acts, column, request.label, request.labels, protocol.rows, options.least_texts)
    whole = plan_curve(request, protocol, options.seed, metric, intervals=False)
    wanted: list[tuple[str, str | None, np.ndarray]] = [(one, None, values.of == one) for one in values.trained]
    known = np.array([value is not None for value in values.of.tolist()])
    if len({*values.trained, *values.tested}) > 2 and all({*values.trained} - {one} for one in values.tested):
        wanted += [(ALL_OTHERS, one, known & (values.of != one)) for one in values.tested]
    used = np.zeros(len(values.of), dtype=bool)
    used[np.concatenate(list(protocol.rows.values()))] = True
    own = [split_protocol(request.acts.task.splits, rows & used) for _, _, rows in wanted]
    plans = [plan_curve(request, each, options.seed, whole.headline, intervals=False) for each in own]
    meta = _meta(request, whole, audit, options)
    return ShiftPlan(request, values, protocol, whole, [(name, on) for name, on, _ in wanted], plans, meta)


def fit_shifts(shifts: Sequence[ShiftPlan], options: CurvesArguments) -> list[TransferResults]:
    """The matrix of each, whose rows were trained on; a place is read once for all shifts of the same places."""
    begin = announcer(options.on_part)
    begin("fitting probes")
    together: dict[tuple[Place, ...], list[int]] = {}
    for number, shift in enumerate(shifts):
        together.setdefault(tuple(shift.request.places), []).append(number)
    done = ticker(options.on_progress, sum(len(places) for places in together))
    fits: dict[int, list[Fitted]] = {}
    for places, numbers in together.items():
        sources = [shifts[i].request.features for i in numbers for _ in shifts[i].plans]
        fitted = iter(fit_places(sources, [plan for i in numbers for plan in shifts[i].plans], places, done))
        fits |= {i: [next(fitted) for _ in shifts[i].plans] for i in numbers}
    begin("testing on all values")
    return [_results(shift, fits[number], options) for number, shift in enumerate(shifts)]


def _results(shift: ShiftPlan, fits: Sequence[Fitted], options: CurvesArguments) -> TransferResults:
    """The matrix of one shift; its last row is trained on all values but the tested one, if there are three or more."""
    request, values, headline = shift.request, shift.values, shift.whole.headline
    trained = []
    for (name, on), own in zip(shift.trained, fits, strict=True):
        places = [own[place] for place in request.places]
        results = ProbeResults([place.result for place in places], [], {"headline": headline})
        trained.append(TrainedProbes(name, request, places, results, tested_on=on))
    rows = shift.protocol.test
    tests = [resampled_rows(one, request, rows[values.of[rows] == one], options.seed) for one in values.tested]
    cells, chosen = tested_cells(trained, tests)
    compared, names = _pairs(chosen, tests), list(dict.fromkeys(one.name for one in trained))
    column = options.shift_column
    meta = {**shift.meta, "tasks": values.tested, "rows": names}
    meta |= {"majority": _majority(request, values, shift.protocol) if request.n_classes else None}
    change = _change(compared, headline)
    record = {"column": column, "left_out": values.left_out, "several": ALL_OTHERS in names, **change}
    record["n"] = {test.name: len(test.rows) for test in tests}
    notes = []
    if record["change"] is not None:
        notes.append(f"Mean over the tested values: {shift_text(record)}, paired on test.")
    notes += _values_notes(str(column), values, options.least_texts)
    if unknown := sum(values.of[row] is None for own in shift.protocol.rows.values() for row in own):
        notes.append(f"Left out: {counted(unknown, 'row')} without a value of {column!a:.40}.")
    notes += [few] if (few := groups_note(fewest_groups(drawn for _, _, drawn in compared))) else []
    notes += [f"Audit: {'; '.join(findings[:3])}."] if (findings := meta["audit"].get("findings")) else []
    return TransferResults(cells, {**meta, "shift": record, "notes": notes})


Compared = list[tuple[Predictions, Predictions, Bootstrap]]


def _pairs(chosen: Chosen, tests: Sequence[TestRows]) -> Compared:
    """For each value that has both, the predictions of its own probe and of the others'."""
    others = any(name == ALL_OTHERS for name, _ in chosen)
    found = []
    for value, bootstrap in ((test.name, test.bootstrap) for test in tests):
        rival = [
            one
            for (name, on), one in chosen.items()
            if on == value and name != value and others == (name == ALL_OTHERS)
        ]
        if (value, value) in chosen and rival:
            found.append((chosen[value, value], rival[0], bootstrap))
    return found


def _change(compared: Compared, metric: str) -> dict[str, Any]:
    """The mean over values of the score when trained on the same value, and on the others, and their paired change.

    Values have different test rows, so the variance of the mean is that of its independent terms.
    """
    compared = [each for each in compared if all(np.isfinite(value_of(one, metric)) for one in each[:2])]
    scores = np.array([[value_of(same, metric), value_of(other, metric)] for same, other, _ in compared])
    if not len(scores):
        return {"same": None, "others": None, "change": None, "interval": None}
    same, others = scores.mean(axis=0).tolist()
    variance, units = 0.0, 0
    for one, other, bootstrap in compared:
        drawn = [bootstrap.resampled(for_metric(each, metric), metric) for each in (one, other)]
        difference = (drawn[1] - drawn[0])[np.isfinite(drawn[1] - drawn[0])]
        n = bootstrap.n_units
        variance += difference.var() * n / max(1, n - 1) if len(difference) else np.nan
        units += n - 1
    half = float(stdtrit(max(1, units), (1 + LEVEL) / 2) * np.sqrt(variance)) / len(compared)
    is_known = np.isfinite(half) and all(bootstrap.has_intervals for _, _, bootstrap in compared)
    interval = [others - same - half, others - same + half] if is_known else None
    return {"same": same, "others": others, "change": others - same, "interval": interval}


def _values_notes(column: str, values: ShiftValues, least: int) -> list[str]:
    """The values that are not in the matrix, or only on one of its sides, and why."""
    few = {
        "Tested but not trained on": [one for one in values.tested if one not in values.trained],
        "Trained on but not tested": [one for one in values.trained if one not in values.tested],
    }
    notes = [
        f"{what}, because of too few rows: {listed([f'{one!a:.40}' for one in names], most=4)}."
        for what, names in few.items()
        if names
    ]
    if values.left_out:
        names = listed([f"{name!a:.40} ({why})" for name, why in values.left_out.items()], most=4)
        notes.append(f"Values of {column!a:.40} left out: {names}.")
    return [f"{' '.join(notes)} Set --least-texts (now {least}) to change how many it takes."] if notes else []


def _majority(request: Request, values: ShiftValues, protocol: Protocol) -> list[float]:
    """The accuracy on the test rows of each value of always predicting the largest class of train."""
    largest = np.bincount(request.labels[protocol.train]).argmax()
    tested = request.labels[protocol.test]
    return [float((tested[values.of[protocol.test] == one] == largest).mean()) for one in values.tested]


def _meta(request: Request, whole: CurvePlan, audit: Audit, options: CurvesArguments) -> dict[str, Any]:
    meta = origin_of(request, replace(whole, metric=options.metric), audit, options.seed, options.drop_leaks)
    chance = chance_level(whole.headline, 1 / max(1, request.n_classes))
    return {**meta, "chance": chance, "labels": [request.label], "shared_texts": [], "shared_groups": []}

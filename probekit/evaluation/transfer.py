"""Transfer: a probe that is trained on one task, tested on the test split of every task of the same model.

A direction that represents truth, and not the topic, negation or length of the sentences that it was found on, keeps
working on other tasks (Marks and Tegmark 2023, arXiv 2310.06824). C and layer are chosen on the validation split of the
task that is trained on; no other task takes part.

Axes: N examples, T tasks.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from probekit.activations.activations import Activations
from probekit.errors import DataError, UsageError
from probekit.evaluation.curve import FittedPlace, announcer, fit_places, ticker
from probekit.evaluation.fits.predict import decisions, predictions_of
from probekit.evaluation.fits.protocol import split_protocol
from probekit.evaluation.fits.stream import features_held
from probekit.evaluation.plan import plan_curve
from probekit.evaluation.request import Request, check_request
from probekit.evaluation.results.data import FPRS, RATE_NAMES, TransferCell
from probekit.evaluation.results.provenance import origin_of
from probekit.evaluation.results.results import ProbeResults
from probekit.evaluation.results.transfer_results import TransferResults
from probekit.evaluation.results.verdict import chance_level
from probekit.evaluation.results.wording import position_name
from probekit.evaluation.rows import resampling_units, task_fingerprint
from probekit.evaluation.scores.bootstrap import Bootstrap, fewest_groups, groups_note
from probekit.evaluation.scores.metrics import Predictions, metrics_of
from probekit.evaluation.scores.rates import Rate, rates_at, threshold_for
from probekit.machine.progress import shown_parts
from probekit.machine.threads import one_thread
from probekit.options import TransferArguments
from probekit.options.option import keywords
from probekit.tasks.chats.messages import compared_inputs
from probekit.tasks.quality.audit import Audit
from probekit.tasks.quality.duplicates import duplicates_in
from probekit.text import counted, listed, printable

# What must be equal, where both sets record it, for a probe of one to mean anything on the other.
SAME = {
    "model_fingerprint": "another model",
    "model": "another model",
    "n_layers": "a model with other layers",
    "bos": "another use of the BOS token",
    "compute_dtype": "another type to compute in",
}


NO_NUMBERS = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class TrainedProbes:
    """The probes of every place that were trained on a task, or on the rows with some values of a column.

    Attributes:
        name: of what they were trained on.
        request: what was fitted.
        fitted: its places.
        results: their numbers.
        numbers: those of the classes in the first task; empty where all have the same.
        tested_on: the only set of test rows that they are tested on; None for all.
    """

    name: str
    request: Request
    fitted: list[FittedPlace]
    results: ProbeResults
    numbers: np.ndarray = field(default_factory=lambda: NO_NUMBERS)
    tested_on: str | None = None


@dataclass(frozen=True, eq=False)
class TestRows:
    """Rows that every probe is tested on.

    Attributes:
        name: of the task, or of the value that they have.
        request: whose rows they are.
        rows: int64.
        bootstrap: their resamples.
        numbers: as in `TrainedProbes`.
    """

    name: str
    request: Request
    rows: np.ndarray
    bootstrap: Bootstrap
    numbers: np.ndarray = field(default_factory=lambda: NO_NUMBERS)


def resampled_rows(
    name: str, request: Request, rows: np.ndarray, seed: int, numbers: np.ndarray = NO_NUMBERS
) -> TestRows:
    """These rows, and their resamples."""
    units = resampling_units(request.acts.task)
    drawn = Bootstrap(len(rows), seed, None if units is None else np.asarray(units)[rows])
    return TestRows(name, request, rows, drawn, numbers)


@keywords(TransferArguments)
def transfer(activations: Sequence[Activations], options: TransferArguments) -> TransferResults:
    """Train on the train split of each task, and test on the test split of every task, its own included.

    One layer of `layers` fixes it; among several, the validation split of the task that is trained on chooses.

    Args:
        activations: two or more, of one model, each of another task.
        options: as keyword arguments.

    Raises:
        UsageError: fewer than two sets, the same one twice, other models, points, layers or numbers of classes.
        DataError: as in `train_probes`; places of other widths.
    """
    with shown_parts(options) as shown:
        return _transfer(activations, shown)


def _transfer(activations: Sequence[Activations], options: TransferArguments) -> TransferResults:
    given = _checked(activations)
    first = check_request(given[0], options)
    options = options if options.concatenate else replace(options, point=first.point)
    requests = [first, *[check_request(acts, options) for acts in given[1:]]]
    names = _names(requests)
    _check_same(requests, names)
    numbers, notes = _classes(requests, names)
    begin = announcer(options.on_part)
    begin("fitting probes")
    done = ticker(options.on_progress, sum(len(request.places) for request in requests))
    tasks = [
        _train(name, request, own, options.seed, done)
        for name, request, own in zip(names, requests, numbers, strict=True)
    ]
    _check_widths(tasks)
    begin("testing on all tasks")
    tests = [
        resampled_rows(task.name, task.request, np.flatnonzero(task.request.acts.splits == "test"), options.seed, own)
        for task, own in zip(tasks, numbers, strict=True)
    ]
    if few := groups_note(fewest_groups(each.bootstrap for each in tests)):
        notes.append(few)
    return TransferResults(tested_cells(tasks, tests)[0], _meta(tasks, notes))


def _train(name: str, request: Request, numbers: np.ndarray, seed: int, done: Callable[[], None]) -> TrainedProbes:
    """The curve of `train_probes` on the task's splits, without audit, controls, code, baselines and comparison."""
    task = request.acts.task
    task.check(request.label)
    plan = plan_curve(request, split_protocol(task.splits, np.ones(len(task), dtype=bool)), seed)
    (places,) = fit_places([request.features], [plan], request.places, done)
    fitted = list(places.values())
    meta = origin_of(request, plan, Audit(request.label, {}), seed, fingerprint=task_fingerprint(request.acts))
    return TrainedProbes(name, request, fitted, ProbeResults([place.result for place in fitted], [], meta), numbers)


def _checked(activations: Sequence[Activations]) -> list[Activations]:
    is_list = isinstance(activations, Sequence) and not isinstance(activations, str)
    if not is_list or not all(isinstance(acts, Activations) for acts in activations):
        raise UsageError("transfer takes a list of activations; give those of extract or load_activations in a list")
    if len(activations) < 2:
        raise UsageError(f"transfer needs the activations of two tasks or more; got {len(activations)}")
    return list(activations)


def _names(requests: Sequence[Request]) -> list[str]:
    """A unique name for each task; later ones of equal names get a number."""
    names: list[str] = []
    for request in requests:
        name = str(request.acts.meta.get("task", request.acts.task.name))
        candidates = [name, *[f"{name} ({i})" for i in range(2, len(requests) + 1)]]
        names.append(next(candidate for candidate in candidates if candidate not in names))
    return names


def _check_same(requests: Sequence[Request], names: Sequence[str]) -> None:
    """Raise a UsageError unless a probe of each task has the same meaning on all the others."""
    first = requests[0]
    for other, name in zip(requests[1:], names[1:], strict=True):
        _check_model(first.acts.meta, other.acts.meta, f"{name!a} is of {{}} than {names[0]!a} ({{}})")
        if _latents(first.acts) != _latents(other.acts):
            raise UsageError(
                f"{name!a} has latents of another autoencoder, or of another place, than {names[0]!a}; encode all with "
                "the same one"
            )
        if unshared := set(other.places) ^ set(first.places):
            place = min(str(place) for place in unshared)
            raise UsageError(f"{names[0]!a} and {name!a} do not both hold {place}; name layers that all of them have")
    examples = [(request.acts.task.fingerprint(), request.label) for request in requests]
    for (one, a), (other, b) in itertools.combinations(zip(names, examples, strict=True), 2):
        if a == b:
            raise UsageError(f"{one!a} and {other!a} hold the very same examples; give each task once")
    if len({request.n_classes for request in requests}) > 1:
        counts = [f"{name!a} {request.n_classes or 'numbers'}" for name, request in zip(names, requests, strict=True)]
        raise UsageError(f"transfer needs tasks of equally many classes, got {listed(counts)}; leave the others out")


def _latents(acts: Activations) -> dict[str, tuple[str, str]]:
    """The place of latents -> what they are of, and the fingerprint of the autoencoder."""
    return {place: (one["of"], one["fingerprint"]) for place, one in acts.meta.get("latents", {}).items()}


def _check_model(first: dict[str, Any], other: dict[str, Any], message: str) -> None:
    for key, difference in SAME.items():
        one, two = first.get(key), other.get(key)
        if key == "model" and first.get("model_fingerprint") and other.get("model_fingerprint"):
            continue  # the fingerprint says more than the name
        if one is not None and two is not None and one != two:
            values = f"{key}: {_brief(two)} here, {_brief(one)} there"
            raise UsageError(f"{message.format(difference, values)}; transfer needs activations of one model")


def _brief(value: object) -> str:
    text = printable(value)
    return ascii(text if len(text) <= 40 else f"{text[:12]}...")


def _check_widths(tasks: Sequence[TrainedProbes]) -> None:
    first, *others = [[place.width for place in task.fitted] for task in tasks]
    for task, widths in zip(tasks[1:], others, strict=True):
        if widths != first:
            raise DataError(
                f"{tasks[0].name!a} is {first[0]} wide and {task.name!a} {widths[0]}; transfer needs one model"
            )


def _classes(requests: Sequence[Request], names: Sequence[str]) -> tuple[list[np.ndarray], list[str]]:
    """For each task, the first task's number of each of its classes; and notes on classes that were matched.

    Classes with the same set of names are matched by name, others by number.
    """
    every = [list(request.acts.label_names[request.label]) for request in requests]
    numbers, notes = [], []
    for classes, name in zip(every, names, strict=True):
        like = next(one for one in every if set(one) == set(classes))  # the first task with these names
        numbers.append(np.array([like.index(one) for one in classes], dtype=np.int64))
        if like is classes and classes is not every[0]:
            pairs = ", ".join(f"{b!a:.40} with {a!a:.40}" for a, b in list(zip(every[0], classes, strict=True))[:6])
            notes.append(f"The classes of {name!a} have other names than those of {names[0]!a}; by number, {pairs}.")
    return numbers, notes


Chosen = dict[tuple[str, str], Predictions]
"""(trained on, tested on) -> the test predictions at the place that validation selects."""


@one_thread()
def tested_cells(trained: Sequence[TrainedProbes], tests: Sequence[TestRows]) -> tuple[list[TransferCell], Chosen]:
    """The scores of every probe on all rows that it is tested on, and the predictions of the selected ones.

    One place of one task is in memory at a time.
    """
    cells: dict[tuple[int, int, int], TransferCell] = {}
    chosen: Chosen = {}
    order = {name: i for i, name in enumerate(dict.fromkeys(one.name for one in trained))}
    for _, same in itertools.groupby(enumerate(tests), lambda each: id(each[1].request)):
        own = list(same)
        request = own[0][1].request
        for k, place in enumerate(request.places):
            X = features_held(request.features, place)
            for j, test in own:
                tried = [one for one in trained if one.tested_on in (None, test.name)]
                probes = [one.fitted[k].fit.probe for one in tried]
                for one, probe, decided in zip(tried, probes, decisions(probes, X, test.rows), strict=True):
                    truth = _renumbered(request.labels[test.rows], test.numbers, one.numbers)
                    predictions = predictions_of(truth, decided, request.n_classes, probe)
                    cell = _cell(one, k, test, predictions)
                    cells[order[one.name], j, k] = cell
                    if cell.chosen:
                        chosen[one.name, test.name] = predictions
    return [cells[at] for at in sorted(cells)], chosen


def _renumbered(labels: np.ndarray, own: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Labels of one task by another task's numbers for these classes; those of a regression stay."""
    return np.argsort(other)[own[labels]] if len(own) else labels


def _cell(one: TrainedProbes, k: int, test: TestRows, predictions: Predictions) -> TransferCell:
    """The scores of the probe of layer number `k`."""
    layer, at_threshold = one.results.layers[k], _at_thresholds(one, k, test, predictions)
    return TransferCell(
        train_task=one.name,
        test_task=test.name,
        point=layer.point,
        layer=layer.layer,
        C=layer.C,
        converged=layer.converged,
        validation=layer.metrics.get("validation", {}).get(one.results.headline),
        chosen=layer is one.results.best,
        metrics=metrics_of(predictions) | {name: rate.value for name, rate in at_threshold.items()},
        intervals=test.bootstrap.intervals(predictions) | {name: (r.low, r.high) for name, r in at_threshold.items()},
    )


def _at_thresholds(one: TrainedProbes, k: int, test: TestRows, predictions: Predictions) -> dict[str, Rate]:
    """The rates on these rows at thresholds that the probe's own validation rows hold at each of `FPRS`.

    Their intervals are of Clopper and Pearson, with rows of a group as dependent; the threshold counts as known.
    """
    chosen, found = one.fitted[k].validation, {}
    if chosen is None or predictions.n_classes != 2:
        return {}
    for rate in FPRS:
        value = threshold_for(chosen.scores, chosen.truth, rate).value
        if value is not None:
            rates = rates_at(value, predictions.scores, predictions.truth, test.bootstrap.groups)
            found |= {name.format(rate): one for name, one in zip(RATE_NAMES, rates, strict=True) if one is not None}
    return found


def _meta(tasks: Sequence[TrainedProbes], notes: list[str]) -> dict[str, Any]:
    first, n_classes = tasks[0].results.meta, tasks[0].request.n_classes
    metas = [task.results.meta for task in tasks]
    headline, more = _headline(tasks)
    texts, groups = _shared(tasks, _shared_texts), _shared(tasks, _shared_groups)
    kept = ("model", "point", "position", "probe", "estimator", "C", "seed", "n_layers", "interval", "versions")
    return {
        **{key: first[key] for key in kept},
        "tasks": [task.name for task in tasks],
        "labels": [task.request.label for task in tasks],
        "headline": headline,
        "chance": chance_level(headline, 1 / max(1, n_classes)),
        "n_classes": n_classes,
        "n": [meta["n"] for meta in metas],
        "classes": [meta["classes"] for meta in metas],
        "negatives": [_negatives(task.request) for task in tasks] if n_classes == 2 else None,
        "majority": [_majority(task.request) for task in tasks] if n_classes else None,
        "validation_carved": [meta["validation_carved"] for meta in metas],
        "shared_texts": texts,
        "shared_groups": groups,
        "activations": [meta["activations"] for meta in metas],
        "notes": [*notes, *more, *_position_notes(tasks), *map(_texts_note, texts), *map(_groups_note, groups)],
    }


def _headline(tasks: Sequence[TrainedProbes]) -> tuple[str, list[str]]:
    """The metric of the matrix: the tasks' own where they agree, else AUROC, with a note that says so."""
    metrics = {task.results.headline for task in tasks}
    if len(metrics) == 1:
        return metrics.pop(), []
    return "auroc", ["Classes are imbalanced in some of the tasks, so AUROC is compared in all of them."]


def _position_notes(tasks: Sequence[TrainedProbes]) -> list[str]:
    positions = {task.name: task.results.meta["position"] for task in tasks}
    first, *others = positions.values()
    if all(position == first for position in others):
        return []
    tokens = ", ".join(f"{name!a} {position_name(position)}" for name, position in positions.items())
    return [f"Different tokens are read: {tokens}."]


def _negatives(request: Request) -> int:
    """Validation rows of the first class."""
    return int((request.labels[request.acts.splits == "validation"] == 0).sum())


def _majority(request: Request) -> float:
    """The test accuracy of the majority class of train."""
    splits = request.acts.splits
    majority = np.bincount(request.labels[splits == "train"]).argmax()
    return float((request.labels[splits == "test"] == majority).mean())


def _shared(
    tasks: Sequence[TrainedProbes], count: Callable[[Activations, Activations], dict[str, int]]
) -> list[dict[str, Any]]:
    """Counts of each train split with each test split, also of one task; pairs that share nothing are left out."""
    pairs = itertools.product(tasks, repeat=2)
    counts = [{"train": a.name, "test": b.name, **count(a.request.acts, b.request.acts)} for a, b in pairs]
    return [each for each in counts if any(each[key] for key in each.keys() - {"train", "test"})]


def _shared_texts(one: Activations, other: Activations) -> dict[str, int]:
    """How many test texts of `other` are in the train split of `one`, and how many more are near-duplicates of it."""
    kinds = {type(acts.inputs[0]) is str for acts in (one, other)}
    if len(kinds) > 1 or not (one.task.has_texts and other.task.has_texts):
        return {"exact": 0, "near": 0}
    exact, near = duplicates_in(_of_split(one, "train"), _of_split(other, "test"))
    return {"exact": int(exact.sum()), "near": int(near.sum())}


def _of_split(acts: Activations, split: str) -> list[Any]:
    inputs = compared_inputs(acts.task)
    return [inputs[row] for row in acts.task.texts()[0] if acts.splits[row] == split]


def _shared_groups(one: Activations, other: Activations) -> dict[str, int]:
    """How many groups of the train split of `one` are in the test split of `other`.

    Groups that are numbers are counted from 0 in each task, so those of two tasks are unrelated.
    """
    if one.groups is None or other.groups is None:
        return {"n": 0}
    groups = [np.asarray(acts.groups)[acts.splits == split] for acts, split in ((one, "train"), (other, "test"))]
    if one is not other and any(each.dtype.kind not in "UO" for each in groups):
        return {"n": 0}
    return {"n": len(set(groups[0].tolist()) & set(groups[1].tolist()))}


def _texts_note(shared: dict[str, Any]) -> str:
    near = f", and near-duplicates of {shared['near']:,} more" if shared["near"] else ""
    texts = counted(shared["exact"], "test text")
    return f"The train split of {shared['train']!a} contains {texts} of {shared['test']!a}{near}."


def _groups_note(shared: dict[str, Any]) -> str:
    return (
        f"{counted(shared['n'], 'group')} of the train split of {shared['train']!a} "
        f"{'is' if shared['n'] == 1 else 'are'} "
        f"also in the test split of {shared['test']!a}."
    )

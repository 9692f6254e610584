"""Transfer: a probe of one task's labels, judged on the test split of every other task of the same model.

A direction that stands for truth, and not for the topic, the negation or the length of the sentences that it was found
on, goes on working elsewhere (Marks and Tegmark 2023, arXiv 2310.06824). C and layer are chosen on the validation split
of the task that is trained on; no other task has a say.

Axes: N examples, T tasks.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from probekit.activations.activations import Activations
from probekit.errors import DataError, UsageError
from probekit.evaluation.fits.choose import decide, predictions_of
from probekit.evaluation.fits.layer import features_of
from probekit.evaluation.fits.protocol import drawn_together
from probekit.evaluation.request import Asked, asked_of
from probekit.evaluation.results.report import where
from probekit.evaluation.results.results import LayerResult, ProbeResults
from probekit.evaluation.results.transfer_results import TransferCell, TransferResults
from probekit.evaluation.scores.bootstrap import Bootstrap
from probekit.evaluation.scores.metrics import Predictions, measure
from probekit.evaluation.train_probes import curve_alone
from probekit.options import TransferArguments
from probekit.options.option import keywords
from probekit.points import place_name
from probekit.tasks.quality.duplicates import met_in
from probekit.text import printable

# what must be equal for a probe of one to mean anything on the other, where both say it
SAME = {
    "model_fingerprint": "another model",
    "model": "another model",
    "n_layers": "a model with other layers",
    "bos": "another use of the BOS token",
    "compute_dtype": "another type to compute in",
}
CHANCE = {"auroc": 0.5, "r2": 0.0}  # and of an accuracy the even share


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
    given = _checked(activations)
    first = asked_of(given[0], options)
    options = replace(options, probe=first.probe, point=first.point)
    asked = [first, *[asked_of(acts, options) for acts in given[1:]]]
    names = _names(asked)
    _check_same(asked, names)
    numbers, notes = _classes(asked, names)
    tick = _ticker(options.progress, sum(len(one.places) for one in asked))
    trained = [curve_alone(one, options.seed, tick) for one in asked]
    _check_widths(trained, names)
    return TransferResults(_cells(asked, trained, names, numbers, options.seed), _meta(asked, trained, names, notes))


def _checked(activations: Sequence[Activations]) -> list[Activations]:
    if isinstance(activations, Activations) or not all(isinstance(acts, Activations) for acts in activations):
        raise UsageError("transfer takes a list of activations, as extract and load_activations give them")
    if len(activations) < 2:
        raise UsageError(f"transfer needs the activations of two tasks or more; got {len(activations)}")
    return list(activations)


def _names(asked: Sequence[Asked]) -> list[str]:
    """What the tasks are called; of equal names, the later ones have a number."""
    names: list[str] = []
    for one in asked:
        name = str(one.acts.meta.get("task", one.acts.task.name))
        tried = [name, *[f"{name} ({i})" for i in range(2, len(asked) + 1)]]
        names.append(next(one for one in tried if one not in names))
    return names


def _check_same(asked: Sequence[Asked], names: Sequence[str]) -> None:
    """Raise a UsageError unless a probe of any of these means the same on all the others."""
    for one, name in zip(asked[1:], names[1:], strict=True):
        _check_model(asked[0].acts.meta, one.acts.meta, f"{name!a} is of {{}} than {names[0]!a} ({{}})")
        if odd := set(one.places) ^ set(asked[0].places):
            place = min(place_name(place) for place in odd)
            raise UsageError(f"{names[0]!a} and {name!a} do not both hold {place}; name layers that all of them have")
    prints = [(one.acts.task.fingerprint(), one.label) for one in asked]
    for (one, a), (other, b) in itertools.combinations(zip(names, prints, strict=True), 2):
        if a == b:
            raise UsageError(f"{one!a} and {other!a} hold the very same examples; give each task once")
    if len({one.n_classes for one in asked}) > 1:
        shown = ", ".join(f"{name!a} {one.n_classes or 'numbers'}" for name, one in zip(names, asked, strict=True))
        raise UsageError(f"a probe goes from task to task where all have as many classes; there are: {shown}")


def _check_model(there: dict[str, Any], here: dict[str, Any], says: str) -> None:
    for key, what in SAME.items():
        one, other = there.get(key), here.get(key)
        if key == "model" and there.get("model_fingerprint") and here.get("model_fingerprint"):
            continue  # which says more than a name
        if one is not None and other is not None and one != other:
            values = f"{key}: {_brief(other)} here, {_brief(one)} there"
            raise UsageError(f"{says.format(what, values)}; transfer needs activations of one model")


def _brief(value: object) -> str:
    text = printable(value)
    return ascii(text if len(text) <= 40 else f"{text[:12]}…")


def _check_widths(trained: Sequence[ProbeResults], names: Sequence[str]) -> None:
    widths = [[layer.probe.n_features_in_ for layer in results.layers] for results in trained]
    for name, there in zip(names[1:], widths[1:], strict=True):
        if there != widths[0]:
            raise DataError(f"{names[0]!a} is {widths[0][0]} wide and {name!a} {there[0]}; transfer needs one model")


def _classes(asked: Sequence[Asked], names: Sequence[str]) -> tuple[list[np.ndarray], list[str]]:
    """The first task's number of each class of each task, and what must be said of that.

    Classes of the same names are the same, whatever their order; others are matched by their number.
    """
    every = [list(one.acts.label_names[one.label]) for one in asked]
    numbers, notes = [], []
    for classes, name in zip(every, names, strict=True):
        like = next(one for one in every if set(one) == set(classes))  # the first task with these names
        numbers.append(np.array([like.index(one) for one in classes], dtype=np.int64))
        if like is classes and classes is not every[0]:
            pairs = ", ".join(f"{b!a:.40} with {a!a:.40}" for a, b in list(zip(every[0], classes, strict=True))[:6])
            notes.append(f"The classes of {name!a} have other names than those of {names[0]!a}; by number, {pairs}.")
    return numbers, notes


def _cells(
    asked: Sequence[Asked],
    trained: Sequence[ProbeResults],
    names: Sequence[str],
    numbers: Sequence[np.ndarray],
    seed: int,
) -> list[TransferCell]:
    """Every probe on every test split; one place of one task is in memory at a time."""
    cells = {}
    for j, one in enumerate(asked):
        rows, groups = np.flatnonzero(one.acts.splits == "test"), drawn_together(one.acts.task)
        bootstrap = Bootstrap(len(rows), seed, None if groups is None else np.asarray(groups)[rows])
        for k, place in enumerate(one.places):
            probes = [results.layers[k].probe for results in trained]
            scores = decide(probes, features_of(one.acts, place), rows)
            for i, results in enumerate(trained):
                truth = _renumbered(one.labels[rows], numbers[j], numbers[i])
                said = predictions_of(truth, scores[i], one.n_classes, probes[i])
                cells[i, j, k] = _cell(names[i], names[j], results, results.layers[k], said, bootstrap)
    return [cells[at] for at in sorted(cells)]


def _renumbered(labels: np.ndarray, own: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Labels of one task by the numbers that another has for these classes; those of a regression stay."""
    return np.argsort(other)[own[labels]] if len(own) else labels


def _cell(
    train: str, test: str, results: ProbeResults, layer: LayerResult, said: Predictions, bootstrap: Bootstrap
) -> TransferCell:
    return TransferCell(
        train_task=train,
        test_task=test,
        point=layer.point,
        layer=layer.layer,
        C=layer.C,
        converged=layer.converged,
        validation=layer.metrics["validation"][results.headline],
        chosen=layer is results.best,
        metrics=measure(said),
        intervals=bootstrap.intervals(said),
    )


def _ticker(progress: Callable[[int, int], None] | None, total: int) -> Callable[[], None]:
    done = itertools.count(1)
    return lambda: None if progress is None else progress(next(done), total)


def _meta(
    asked: Sequence[Asked], trained: Sequence[ProbeResults], names: list[str], notes: list[str]
) -> dict[str, Any]:
    first, n_classes = trained[0].meta, asked[0].n_classes
    heads = {results.headline for results in trained}
    headline = heads.pop() if len(heads) == 1 else "auroc"
    if heads:
        notes = [*notes, "Classes are imbalanced in some of the tasks, so AUROC is compared in all of them."]
    positions = [results.meta["position"] for results in trained]
    if any(one != positions[0] for one in positions):
        read = ", ".join(f"{name!a} {where(one)}" for name, one in zip(names, positions, strict=True))
        notes = [*notes, f"Different tokens are read: {read}."]
    texts, groups = _shared(asked, names, _shared_texts), _shared(asked, names, _shared_groups)
    notes = [*notes, *map(_texts_note, texts), *map(_groups_note, groups)]
    kept = ("model", "point", "position", "probe", "C", "seed", "n_layers", "interval", "versions")
    return {
        **{key: first[key] for key in kept},
        "tasks": names,
        "labels": [one.label for one in asked],
        "headline": headline,
        "chance": CHANCE.get(headline, 1 / max(1, n_classes)),
        "n_classes": n_classes,
        "n": [results.meta["n"] for results in trained],
        "classes": [results.meta["classes"] for results in trained],
        "majority": [_majority(one) for one in asked] if n_classes else None,
        "shared_texts": texts,
        "shared_groups": groups,
        "activations": [results.meta["activations"] for results in trained],
        "notes": notes,
    }


def _majority(asked: Asked) -> float:
    """The test accuracy of the commonest class of train."""
    splits = asked.acts.splits
    commonest = np.bincount(asked.labels[splits == "train"]).argmax()
    return float((asked.labels[splits == "test"] == commonest).mean())


def _shared(
    asked: Sequence[Asked], names: Sequence[str], count: Callable[[Activations, Activations], dict[str, int]]
) -> list[dict[str, Any]]:
    """What train splits share with test splits, those of their own task included, where they share anything."""
    pairs = itertools.product(zip(names, asked, strict=True), repeat=2)
    found = [{"train": a, "test": b, **count(one.acts, other.acts)} for (a, one), (b, other) in pairs]
    return [each for each in found if any(each[key] for key in each.keys() - {"train", "test"})]


def _shared_texts(one: Activations, other: Activations) -> dict[str, int]:
    """How many test texts of `other` stand in the train split of `one`, and how many more nearly do."""
    kinds = {type(acts.inputs[0]) is str for acts in (one, other)}
    if len(kinds) > 1 or any(acts.task.info.get("no_texts") for acts in (one, other)):
        return {"exact": 0, "near": 0}
    exact, near = met_in(_of_split(one, "train"), _of_split(other, "test"))
    return {"exact": int(exact.sum()), "near": int(near.sum())}


def _of_split(acts: Activations, split: str) -> list[Any]:
    return [acts.inputs[row] for row in acts.task.texts()[0] if acts.splits[row] == split]


def _shared_groups(one: Activations, other: Activations) -> dict[str, int]:
    """How many groups of the train split of `one` stand in the test split of `other`.

    Groups that are numbers are counted anew in each task: those of two tasks have nothing to do with each other.
    """
    if one.groups is None or other.groups is None:
        return {"n": 0}
    groups = [np.asarray(acts.groups)[acts.splits == split] for acts, split in ((one, "train"), (other, "test"))]
    if one is not other and any(each.dtype.kind not in "UO" for each in groups):
        return {"n": 0}
    return {"n": len(set(groups[0].tolist()) & set(groups[1].tolist()))}


def _texts_note(shared: dict[str, Any]) -> str:
    exact, near = f"{shared['exact']:,} test texts", f"{shared['near']:,} nearly"
    counts = f"{exact}, and {near}," if shared["near"] else exact
    return f"In the train split of {shared['train']!a} stand {counts} of {shared['test']!a}."


def _groups_note(shared: dict[str, Any]) -> str:
    there = f"the test split of {shared['test']!a}"
    return f"{shared['n']:,} groups of the train split of {shared['train']!a} also stand in {there}."

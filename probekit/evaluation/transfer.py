"""Transfer: a probe of one task's labels, judged on the test split of every other task of the same model.

A direction that stands for truth, and not for the topic, the negation or the length of the sentences that it was found
on, goes on working elsewhere (Marks and Tegmark 2023, arXiv 2310.06824). C and layer are chosen on the validation split
of the task that is trained on; no other task has a say.

Axes: N examples, T tasks.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from probekit.activations.sets import Activations
from probekit.errors import DataError, UsageError
from probekit.evaluation.intervals import Bootstrap
from probekit.evaluation.metrics import Predictions, measure
from probekit.evaluation.results import LayerResult, ProbeResults
from probekit.evaluation.train import train_probes
from probekit.evaluation.transfer_results import TransferCell, TransferResults
from probekit.probes.base import as_numpy, predicted_labels
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


def transfer(
    activations: Sequence[Activations],
    layers: str | int | Iterable[int] = "all",
    probe: str = "logistic",
    C: float | Iterable[float] | None = None,
    seed: int = 0,
    point: str | None = None,
    label: str | None = None,
    position: str | int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> TransferResults:
    """Train on the train split of each task, and test on the test split of every task, its own included.

    Args:
        activations: two sets or stores of one model, or more, each of another task.
        layers: as in `train_probes`; one layer fixes it, of several validation chooses.
        probe: as in `train_probes`, as are C, seed, point and position.
        C: strengths to choose from.
        seed: of the bootstrap.
        point: short name; None is the first set's first that a probe can read.
        label: label set to predict, of each task; None is each task's target.
        position: the token, where several or all of them were kept.
        progress: called with (places done, places) of all tasks.

    Raises:
        UsageError: fewer than two sets, the same one twice, other models, points, layers or numbers of classes.
        DataError: as in `train_probes`; places of other widths.
    """
    sets = [acts if position is None else acts.at(position) for acts in _checked(activations)]
    names = _names(sets)
    labels = [acts.target if label is None else label for acts in sets]
    for acts, of in zip(sets, labels, strict=True):
        acts.task.check(of)
    _check_same(sets, names, labels)
    how: dict[str, Any] = {"probe": probe, "C": C, "seed": seed, "layers": layers}
    trained: list[ProbeResults] = []
    for acts, of in zip(sets, labels, strict=True):
        shown = _shifted(progress, len(trained), len(sets))
        trained.append(train_probes(acts, point=point, label=of, baselines=False, progress=shown, **how))
        point = trained[0].meta["point"]
    _check_places(trained, names)
    numbers, notes = _classes(sets, labels, names)
    cells = _cells(sets, trained, names, numbers, labels, seed)
    meta = _meta(sets, trained, names, labels, notes)
    return TransferResults(cells, meta)


def _checked(activations: Sequence[Activations]) -> list[Activations]:
    if isinstance(activations, Activations) or not all(isinstance(acts, Activations) for acts in activations):
        raise UsageError("transfer takes a list of activations, as extract and load_activations give them")
    if len(activations) < 2:
        raise UsageError(f"transfer needs the activations of two tasks or more; got {len(activations)}")
    return list(activations)


def _names(sets: Sequence[Activations]) -> list[str]:
    """What the tasks are called; of equal names, the later ones have a number."""
    names: list[str] = []
    for acts in sets:
        name = str(acts.meta.get("task", acts.task.name))
        same = [f"{name} ({i})" for i in range(2, len(sets) + 1)]
        names.append(next(one for one in (name, *same) if one not in names))
    return names


def _check_same(sets: Sequence[Activations], names: Sequence[str], labels: Sequence[str]) -> None:
    first, about = sets[0], printable(names[0])
    for acts, name in zip(sets[1:], map(printable, names[1:]), strict=True):
        for key, what in SAME.items():
            one, other = first.meta.get(key), acts.meta.get(key)
            is_known = key == "model" and "model_fingerprint" in {*first.meta} & {*acts.meta}
            if not is_known and one is not None and other is not None and one != other:
                shown = f"{_brief(one)} there, {_brief(other)} here"
                raise UsageError(f"{name!a} is of {what} than {about!a} ({key}: {shown}); transfer needs the same")
    prints = [(acts.task.fingerprint(), label) for acts, label in zip(sets, labels, strict=True)]
    for (one, a), (other, b) in itertools.combinations(zip(names, prints, strict=True), 2):
        if a == b:
            raise UsageError(f"{one!a} and {other!a} hold the very same examples; give each task once")
    counts = [acts.task.n_classes(label) for acts, label in zip(sets, labels, strict=True)]
    if len(set(counts)) > 1:
        shown = ", ".join(f"{name!a} {n}" for name, n in zip(names, counts, strict=True))
        raise UsageError(f"a probe goes from task to task where all have as many classes; there are: {shown}")


def _brief(value: object) -> str:
    text = printable(value)
    return ascii(text if len(text) <= 40 else f"{text[:12]}…")


def _check_places(trained: Sequence[ProbeResults], names: Sequence[str]) -> None:
    places = [[layer.place for layer in results.layers] for results in trained]
    for name, there in zip(names[1:], places[1:], strict=True):
        if odd := [*(set(places[0]) ^ set(there))]:
            raise UsageError(
                f"{names[0]!a} and {name!a} do not both hold {min(odd)}; name layers that all of them have"
            )
    widths = [[layer.probe.n_features_in_ for layer in results.layers] for results in trained]
    for name, there in zip(names[1:], widths[1:], strict=True):
        if there != widths[0]:
            raise DataError(f"{names[0]!a} is {widths[0][0]} wide and {name!a} {there[0]}; transfer needs one model")


def _classes(
    sets: Sequence[Activations], labels: Sequence[str], names: Sequence[str]
) -> tuple[list[np.ndarray], list[str]]:
    """The first task's number of each class of each task, and what must be said of that.

    Classes of the same names are the same, whatever their order; others are matched by their number.
    """
    every = [list(acts.label_names[label]) for acts, label in zip(sets, labels, strict=True)]
    numbers, notes = [], []
    for classes, name in zip(every, names, strict=True):
        like = next(one for one in every if set(one) == set(classes))  # the first task with these names
        numbers.append(np.array([like.index(one) for one in classes], dtype=np.int64))
        if like is classes and classes is not every[0]:
            pairs = ", ".join(f"{b!a:.40} with {a!a:.40}" for a, b in list(zip(every[0], classes, strict=True))[:6])
            notes.append(f"The classes of {name!a} have other names than those of {names[0]!a}; by number, {pairs}.")
    return numbers, notes


def _cells(
    sets: Sequence[Activations],
    trained: Sequence[ProbeResults],
    names: Sequence[str],
    numbers: Sequence[np.ndarray],
    labels: Sequence[str],
    seed: int,
) -> list[TransferCell]:
    """Every probe on every test split; one place of one task is in memory at a time."""
    cells = []
    for j, acts in enumerate(sets):
        test = np.flatnonzero(acts.splits == "test")
        groups = None if acts.groups is None else np.asarray(acts.groups)[test]
        bootstrap = Bootstrap(len(test), seed, groups)
        truth = np.asarray(acts.labels[labels[j]])[test]
        for k, place in enumerate(trained[0].layers):
            X = as_numpy(acts[place.point, place.layer][test.tolist()]).astype(np.float64)
            for i, results in enumerate(trained):
                back = np.argsort(numbers[i])  # the first task's number -> this probe's
                said = _predictions(results.layers[k].probe, X, back[numbers[j][truth]])
                cells.append(_cell(names[i], names[j], results, results.layers[k], said, bootstrap))
    order = {name: i for i, name in enumerate(names)}
    return sorted(cells, key=lambda cell: (order[cell.train_task], order[cell.test_task]))


def _predictions(probe: Any, X: np.ndarray, truth: np.ndarray) -> Predictions:
    scores = probe.decision_function(X)
    return Predictions(truth, predicted_labels(scores), scores, len(probe.classes_))


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


def _shifted(progress: Callable[[int, int], None] | None, i: int, n: int) -> Callable[[int, int], None] | None:
    """The progress of the i-th of n trainings, as that of all."""
    return None if progress is None else lambda done, total: progress(i * total + done, n * total)


def _meta(
    sets: Sequence[Activations],
    trained: Sequence[ProbeResults],
    names: list[str],
    labels: list[str],
    notes: list[str],
) -> dict[str, Any]:
    first = trained[0].meta
    heads = {results.headline for results in trained}
    headline = heads.pop() if len(heads) == 1 else "auroc"
    if heads:
        notes = [*notes, "Classes are imbalanced in some of the tasks, so AUROC is compared in all of them."]
    shared = _shared_texts(sets)
    for (i, j), n in shared.items():
        notes = [*notes, f"{n:,} test texts of {names[j]!a} also stand in the train split of {names[i]!a}."]
    n_classes = sets[0].task.n_classes(labels[0])
    kept = ("model", "point", "position", "probe", "C", "seed", "n_layers", "interval", "versions")
    return {
        **{key: first[key] for key in kept},
        "tasks": names,
        "labels": labels,
        "headline": headline,
        "chance": CHANCE.get(headline, 1 / n_classes),
        "n_classes": n_classes,
        "n": [results.meta["n"] for results in trained],
        "classes": [results.meta["classes"] for results in trained],
        "majority": [_majority(acts, label) for acts, label in zip(sets, labels, strict=True)],
        "shared_texts": [{"train": names[i], "test": names[j], "n": n} for (i, j), n in shared.items()],
        "activations": [results.meta["activations"] for results in trained],
        "notes": notes,
    }


def _majority(acts: Activations, label: str) -> float:
    """The test accuracy of the commonest class of train."""
    values = np.asarray(acts.labels[label])
    commonest = np.bincount(values[acts.splits == "train"]).argmax()
    return float((values[acts.splits == "test"] == commonest).mean())


def _shared_texts(sets: Sequence[Activations]) -> dict[tuple[int, int], int]:
    """How many test texts of task j stand in the train split of task i, where any do: (i, j) -> n.

    Texts are compared without regard to case and white space.
    """
    texts = [None if acts.task.info.get("no_texts") else [_plain(one) for one in acts.inputs] for acts in sets]
    found = {}
    for i, j in itertools.permutations(range(len(sets)), 2):
        there, here = texts[i], texts[j]
        if there is None or here is None:
            continue
        train = {there[row] for row in np.flatnonzero(sets[i].splits == "train")}
        if n := sum(here[row] in train for row in np.flatnonzero(sets[j].splits == "test")):
            found[i, j] = n
    return found


def _plain(text: str | Sequence[int]) -> str:
    return " ".join(text.casefold().split()) if isinstance(text, str) else str(list(text))

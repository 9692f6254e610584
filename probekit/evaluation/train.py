"""A probe at every place of a curve: fitted on train, chosen on validation, scored on test.

Axes: N examples, D width of a place.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probekit.activations.layout import PAIR_POINTS, Place, place_name
from probekit.activations.sets import Activations
from probekit.errors import DataError, UsageError, nearest
from probekit.evaluation.baselines import Guess, bag_of_words, majority
from probekit.evaluation.intervals import LEVEL, RESAMPLES, Bootstrap
from probekit.evaluation.metrics import Predictions, measure
from probekit.evaluation.results import SPLITS, BaselineResult, LayerResult, ProbeResults
from probekit.hooks import parse_layers, split_point
from probekit.probes import PROBES, LinearProbe
from probekit.probes.base import as_numpy, check_positive, predicted_labels
from probekit.versions import versions_of

DEFAULT_C = tuple(10.0**k for k in range(-4, 5))
# what of the activations' own record goes into that of the results
ORIGIN = ("model_fingerprint", "tokenizer_fingerprint", "task_fingerprint", "dtype", "compute_dtype", "bos", "cut")
ORIGIN += ("kind", "source_fingerprint")  # of imports


def train_probes(
    acts: Activations,
    layers: str | int | Iterable[int] = "all",
    probe: str = "logistic",
    C: float | Iterable[float] | None = None,
    seed: int = 0,
    point: str | None = None,
    label: str | None = None,
    position: str | int | None = None,
    baselines: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> ProbeResults:
    """Train and judge a probe at every layer of one point.

    C and the best layer are chosen on validation accuracy (of equals the smaller C and the earlier layer); test decides
    nothing. One layer's activations are in memory at a time.

    Args:
        acts: what `extract` or `load_activations` gave.
        layers: "all", 3, [0, 4], "0,4,8" or "2-6". Only "all" takes the output of the last block along.
        probe: "logistic", "ridge" or "mean-diff".
        C: inverse strengths of regularisation to choose from; None is `DEFAULT_C`. mean-diff has none.
        seed: of the bootstrap.
        point: short name; None means the first point of `acts` that a probe can read (attention's it cannot).
        label: label set to predict; None means the task's target.
        position: which token's activations, where several or all of them were kept; None where there is one.
        baselines: whether to add the majority class and the bag of words.
        progress: called with (places done, places) after each.

    Raises:
        UsageError: an unknown probe, point or label, a layer that is not there, a C that is not positive and finite.
        DataError: NaN or infinity in the activations; labels out of range; a class missing from a split.
    """
    if seed < 0:
        raise UsageError(f"seed must be 0 or more; got {seed}")
    candidates = _candidates(probe, C)
    acts = _one_position(acts, position)
    point, places = _places(acts, point, layers)
    examples = _examples(acts, label, seed)
    results = []
    for place in places:
        results.append(_train_place(place, _finite(acts, place), examples, candidates))
        if progress is not None:
            progress(len(results), len(places))
    grid = [candidate.get_params().get("C") for candidate in candidates]
    meta = _meta(acts, examples, point=point, probe=probe, C=None if grid == [None] else grid, seed=seed)
    return ProbeResults(results, _baselines(acts, examples) if baselines else [], meta)


@dataclass(frozen=True)
class Examples:
    """The labels [N] of one label set, the rows of each split, and the resamples of the test split."""

    label: str
    names: list[str]
    labels: np.ndarray
    rows: dict[str, np.ndarray]
    bootstrap: Bootstrap


def _candidates(probe: str, C: float | Iterable[float] | None) -> list[LinearProbe]:
    if probe not in PROBES:
        raise UsageError(f"unknown probe {probe!a}; {nearest(str(probe), PROBES)}")
    if "C" not in PROBES[probe]().get_params():
        if C is not None:
            raise UsageError(f"the probe {probe} has no C; leave it out")
        return [PROBES[probe]()]
    C = DEFAULT_C if C is None else C
    grid = list(C) if isinstance(C, Iterable) and not isinstance(C, str) else [C]
    if not grid:
        raise UsageError("no C to choose from; give one positive number or more")
    grid = sorted({check_positive("C", value) for value in grid})
    return [PROBES[probe]().set_params(C=value) for value in grid]


def _one_position(acts: Activations, position: str | int | None) -> Activations:
    kept = acts.layout.positions
    if position is not None:
        return acts.at(position)
    if len(kept) > 1 or acts.layout.is_ragged:
        choice = "last, first, mean or a token's index" if acts.layout.is_ragged else ", ".join(kept)
        raise UsageError(f"a probe reads one position of each text; say which, position= (--position): {choice}")
    return acts


def _places(acts: Activations, point: str | None, layers: str | int | Iterable[int]) -> tuple[str, list[Place]]:
    first = next((name for name in acts.points if name not in PAIR_POINTS), acts.points[0])
    short, layer = split_point(first if point is None else point)
    if layer is not None:
        raise UsageError(f"a point without its layer, and the layer beside it: point={short!r}, layers={layer}")
    curve = acts.curve(short)
    if isinstance(layers, str) and layers.strip() == "all":
        return short, curve
    there = [layer for name, layer in curve if name == short and layer is not None]
    if not there:
        raise UsageError(f"{short} belongs to no layer; use layers='all'")
    wanted = parse_layers(layers, acts.n_layers)
    if missing := [layer for layer in wanted if layer not in there]:
        known = ", ".join(str(layer) for layer in there)
        raise UsageError(f"layer {missing[0]} of {short} was not extracted; there are {known}")
    return short, [(short, layer) for layer in wanted]


def _examples(acts: Activations, label: str | None, seed: int) -> Examples:
    label = acts.target if label is None else label
    acts.task.check(label)
    labels = np.asarray(acts.labels[label])
    rows = {split: np.flatnonzero(acts.splits == split) for split in SPLITS}
    test = rows["test"]
    groups = None if acts.groups is None else np.asarray(acts.groups)[test]
    return Examples(label, list(acts.label_names[label]), labels, rows, Bootstrap(len(test), seed, groups))


def _finite(acts: Activations, place: Place) -> Tensor:
    X = acts[place]
    bad = ~torch.isfinite(X).all(dim=1)
    if bad.any():
        row = int(bad.nonzero()[0])
        values = X[row]
        what = "NaN" if bool(values.isnan().any()) else "infinity"
        raise DataError(
            f"activations of {place_name(place)} hold {what}, first in row {row} (example {acts.ids[row]!a}; "
            f"{int(bad.sum())} rows in all); extract again, in float32 if they were kept in less"
        )
    return X


def _train_place(place: Place, X: Tensor, examples: Examples, candidates: list[LinearProbe]) -> LayerResult:
    features = {split: _rows_of(X, rows) for split, rows in examples.rows.items()}
    truth = {split: examples.labels[rows] for split, rows in examples.rows.items()}
    tried: list[tuple[float | None, float]] = []
    chosen = candidates[0]
    for candidate in candidates:
        fitted = type(candidate)(**candidate.get_params()).fit(features["train"], truth["train"])
        right = float((fitted.predict(features["validation"]) == truth["validation"]).mean())
        if not tried or right > max(score for _, score in tried):  # so that of equals the smaller C stays
            chosen = fitted
        tried.append((fitted.get_params().get("C"), right))
    scores = {split: chosen.decision_function(x) for split, x in features.items()}
    predictions = {
        split: Predictions(truth[split], predicted_labels(scores[split]), scores[split], len(examples.names))
        for split in SPLITS
    }
    return LayerResult(
        point=place[0],
        layer=place[1],
        C=chosen.get_params().get("C"),
        converged=bool(chosen.converged_),
        tried=tried,
        probe=chosen,
        **_judge(predictions, examples),
    )


def _rows_of(X: Tensor, rows: np.ndarray) -> np.ndarray:
    return as_numpy(X[torch.from_numpy(rows).to(X.device)]).astype(np.float64)


def _judge(predictions: dict[str, Predictions], examples: Examples) -> dict[str, Any]:
    return {
        "metrics": {split: measure(predictions[split]) for split in SPLITS},
        "intervals": examples.bootstrap.intervals(predictions["test"]),
    }


def _baselines(acts: Activations, examples: Examples) -> list[BaselineResult]:
    labels, rows, n_classes = examples.labels, examples.rows, len(examples.names)
    guesses = [majority(labels, rows["train"], n_classes)]
    if not acts.task.info.get("no_texts"):
        guesses.append(bag_of_words(acts.inputs, labels, rows["train"], rows["validation"], n_classes))
    return [_baseline(guess, examples) for guess in guesses]


def _baseline(guess: Guess, examples: Examples) -> BaselineResult:
    predictions = {
        split: Predictions(examples.labels[rows], guess.predicted[rows], guess.scores[rows], len(examples.names))
        for split, rows in examples.rows.items()
    }
    return BaselineResult(guess.name, guess.C, guess.converged, **_judge(predictions, examples))


def _meta(acts: Activations, examples: Examples, **asked: Any) -> dict[str, Any]:
    packages, task = ("torch", "numpy", "scikit-learn", "scipy"), acts.task
    return {
        "model": acts.meta.get("model", "unnamed"),
        "task": acts.meta.get("task", "unnamed"),
        "label": examples.label,
        "classes": examples.names,
        **asked,
        "position": acts.meta.get("position", task.position if isinstance(task.position, str) else "per example"),
        "n_layers": acts.n_layers,
        "n": {split: len(rows) for split, rows in examples.rows.items()},
        "counts": task.counts(examples.label),
        "headline": "accuracy",
        "n_classes": len(examples.names),
        "chosen_on": "validation accuracy",
        "interval": {
            "kind": "percentile bootstrap; exact for an accuracy of 0 or 1",
            "level": LEVEL,
            "resamples": RESAMPLES,
            "unit": "example" if examples.bootstrap.groups is None else "group",
        },
        "no_texts": bool(task.info.get("no_texts")),
        "activations": {name: acts.meta[name] for name in ORIGIN if name in acts.meta},
        "versions": versions_of(*packages),
    }

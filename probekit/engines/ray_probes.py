"""`train-probe --engine ray`: the fits of each place of a store are a task of a Ray cluster.

A task gets the path of the store, the options and a place. It opens the store itself, plans the same fits as the driver
(splits, control tasks and code are drawn with the seed), and answers with the numbers and the fitted probes, as JSON
and safetensors: no pickle, and numbers come back with the same bits. The driver does the rest: audit, baselines, random
weights, and the comparison of the places.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

import numpy as np
import safetensors.numpy

from probekit.activations.activations import Activations
from probekit.activations.store.reader import Store, load_activations
from probekit.engines.tasks import Payload, as_json, raise_error, run_tasks
from probekit.errors import StorageError, UsageError
from probekit.evaluation.curve import Fitted, FittedPlace, fit_places
from probekit.evaluation.fits.choose import ChosenFit
from probekit.evaluation.label_sets import LabelSetPlan, plan_label_sets
from probekit.evaluation.request import check_requests
from probekit.evaluation.results.data import LayerResult
from probekit.evaluation.results.files import as_entry
from probekit.evaluation.scores.alarms import Rises
from probekit.evaluation.scores.predictions import Predictions
from probekit.files.records import read_as
from probekit.options import ClusterOptions, CurvesArguments
from probekit.points import Place
from probekit.probes.base import Probe
from probekit.probes.files import probe_bytes, probe_from
from probekit.probes.find import SAVED

ARRAYS = ("truth", "predicted", "scores", "probabilities")
NOT_SENT = {
    "progress",
    "on_progress",
    "on_part",
    "random_init",
    "black_boxes",
    "log_to",
    "memory",
    *(field.name for field in fields(ClusterOptions)),
}


def fit_places_on_ray(
    acts: Activations,
    options: CurvesArguments,
    sets: Sequence[LabelSetPlan],
    places: Sequence[Place],
    done: Callable[[], None],
) -> list[Fitted]:
    """What `fit_places` gives for these label sets, each place fitted by a worker; calls `done` after each place.

    Raises:
        UsageError: activations that are not a store's, probes that only exist in this process; Ray is not there.
        ProbekitError: what a worker raised, in one line.
    """
    shared = _shared_payload(acts, options, sets)
    found: dict[Place, list[Any]] = {}
    with closing(run_tasks(fit_place_task, [{**shared, "place": list(place)} for place in places], options)) as answers:
        for number, answer in answers:
            raise_error(answer, f"the fits of {places[number]}")
            found[places[number]] = [from_bytes(each) for each in answer["found"]]
            done()
    return [{place: found[place][number] for place in places} for number in range(len(sets))]


def check_engine(acts: Activations, options: CurvesArguments) -> None:
    """Refuse what workers cannot read or send back, before anything is computed.

    Raises:
        UsageError: as `fit_places_on_ray`.
    """
    if not isinstance(acts, Store):
        raise UsageError(
            "engine='ray' (--engine ray) reads activations on the workers: give a store, as load_activations returns "
            "it, and keep labels in it (probekit label STORE --labels FILE)"
        )
    for probe in options.each_probe:
        _as_plain(probe)
    stored = load_activations(acts.path, "size").task
    if stored.fingerprint() != acts.task.fingerprint():
        raise UsageError(
            "engine='ray' (--engine ray): the labels or splits here are not those of the store on disk, which the "
            "workers read; keep labels in it (probekit label STORE --labels FILE)"
        )


def _shared_payload(acts: Activations, options: CurvesArguments, sets: Sequence[LabelSetPlan]) -> Payload:
    """What all tasks get."""
    assert isinstance(acts, Store)
    for each in sets:
        _as_plain(each.plan.probe)
    own = {field.name: getattr(options, field.name) for field in fields(options) if field.name not in NOT_SENT}
    own["probe"] = _as_plain(own["probe"])
    own["probes"] = None if own["probes"] is None else [_as_plain(each) for each in own["probes"]]
    path = str(acts.path.absolute())
    check = "size" if acts.meta.get("check") == "size" else "hash"
    text = json.dumps(own, default=as_json)
    fingerprint = acts.task.fingerprint()
    own = {"store": path, "check": check, "task": fingerprint, "options": text, "memory": options.memory}
    return own | {"sees": [path, "plan.json"]}


def _as_plain(probe: Any) -> Any:
    """A probe by its name, or by its class and parameters.

    Raises:
        UsageError: a probe that cannot be saved.
    """
    if probe is None or isinstance(probe, str):
        return probe
    kind = probe if isinstance(probe, type) else type(probe)
    if kind not in SAVED:
        raise UsageError(
            f"--engine ray (engine='ray') takes the probes of this package, which are sent as plain values; got "
            f"{kind.__name__}: leave the engine out, or name a probe"
        )
    return {"class": kind.__name__, "parameters": probe.get_params() if isinstance(probe, Probe) else {}}


def _from_plain(given: Any) -> Any:
    if not isinstance(given, dict):
        return given
    return next(kind for kind in SAVED if kind.__name__ == given["class"])(**given["parameters"])


def fit_place_task(payload: Payload) -> Payload:
    """A task: the fits of one place, for each label set and probe."""
    point, layer = payload["place"]
    sets = _planned(*(payload[name] for name in ("run", "store", "check", "task", "options")))
    features, plans = [each.requests[0].features for each in sets], [each.plan for each in sets]
    place = Place(point, layer)
    found = fit_places(features, plans, [place], lambda: None)
    return {"found": [as_bytes(each[place]) for each in found]}


@lru_cache(maxsize=1)  # a worker fits many places of one run; in the next, the store may have other labels
def _planned(run: str, store: str, check: str, task: str, text: str) -> list[LabelSetPlan]:
    """The plan of the fits alone: what only the driver reports is left out.

    Raises:
        StorageError: the texts, labels or splits of the store are not the driver's.
    """
    acts = load_activations(store, check)
    if acts.task.fingerprint() != task:
        raise StorageError(f"the labels or splits of {store!a} changed after the command began; run it again")
    own = json.loads(text)
    own["probe"] = _from_plain(own["probe"])
    own["probes"] = None if own["probes"] is None else [_from_plain(each) for each in own["probes"]]
    options = CurvesArguments(**own)
    requests = check_requests(acts, options)
    return plan_label_sets(requests, replace(options, quick=True, baselines=False, nuisance=None), lambda _: None)


def as_bytes(found: FittedPlace) -> dict[str, Any]:
    """The place as texts and bytes."""
    about, weights = probe_bytes(found.fit.probe)
    parts = {"test": found.fit.test, "validation": found.validation}
    arrays = {
        f"{part}.{name}": np.ascontiguousarray(value)
        for part, predictions in parts.items()
        if predictions is not None
        for name in ARRAYS
        if (value := getattr(predictions, name)) is not None
    }
    if found.rises is not None:
        arrays |= {f"rises.{name}": np.ascontiguousarray(value) for name, value in vars(found.rises).items()}
    fit = {name: value for name, value in vars(found.fit).items() if name not in ("probe", "test")}
    body = {"result": as_entry(found.result), "fit": fit, "width": found.width, "n_classes": found.fit.test.n_classes}
    return {
        "body": json.dumps(body, default=as_json),
        "arrays": safetensors.numpy.save(arrays),
        "probe": about.decode(),
        "weights": weights,
    }


def from_bytes(given: dict[str, Any]) -> FittedPlace:
    """The place that `as_bytes` was given."""
    body, arrays = json.loads(given["body"]), safetensors.numpy.load(given["arrays"])
    known = {kind.__name__: kind for kind in SAVED}
    probe = probe_from(json.loads(given["probe"]), given["weights"], "a probe of a worker", known)
    result = replace(read_as(LayerResult, body["result"]), probe=probe)
    fit, n_classes = body["fit"], body["n_classes"]
    fit |= {name: [tuple(pair) for pair in fit[name]] for name in ("tried", "by_round")}
    test, validation = (_predictions(arrays, part, n_classes) for part in ("test", "validation"))
    assert test is not None
    own = {name.removeprefix("rises."): value for name, value in arrays.items() if name.startswith("rises.")}
    rises = Rises(**own) if own else None
    return FittedPlace(result, ChosenFit(**fit, probe=probe, test=test), body["width"], validation, rises)


def _predictions(arrays: dict[str, np.ndarray], part: str, n_classes: int) -> Predictions | None:
    own = {name: arrays.get(f"{part}.{name}") for name in ARRAYS}
    if own["truth"] is None:
        return None
    return Predictions(own["truth"], own["predicted"], own["scores"], n_classes, own["probabilities"])  # pyright: ignore

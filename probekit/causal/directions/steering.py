"""Steering vectors of every layer, from activations or from the sums that `extract --stats` keeps.

Axes: N rows, D width of a place.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from probekit.activations import Activations, SplitMoments, Statistics
from probekit.activations.latents import before_encoding, latents_under
from probekit.causal.directions.directions import (
    Classes,
    Direction,
    lda_direction,
    mean_difference_direction,
    moments_of_rows,
    probe_direction,
    unit_direction,
)
from probekit.causal.directions.export import export_directions
from probekit.errors import DataError, UsageError, nearest
from probekit.evaluation.fits.stream import features_to_fit
from probekit.evaluation.reading import one_position
from probekit.evaluation.results.data import ProbeData
from probekit.interventions import Edits
from probekit.options.check import check_among, is_whole
from probekit.points import NamedPlaces, Place, PointSpec, as_extracted, places_of, spans_of
from probekit.probes.sparse import feature_columns, rank_neurons
from probekit.probes.stream import take_some
from probekit.selections import Selection
from probekit.tasks.token_labels import unlabelled_rows
from probekit.text import kind_of, listed

METHODS = ("mean-difference", "lda", "probe", "latent")


class SteeringVectors(NamedPlaces, Mapping[Place, Direction]):
    """Place -> the direction from one class to another.

    Attributes:
        label: the label set.
        classes: names of the two classes, from and to.
        method: how they were found.
    """

    def __init__(
        self, found: Mapping[Place, Direction], label: str, classes: tuple[str, str], method: str, meta: dict[str, Any]
    ):
        super().__init__(found, meta)
        self._found = {Place(*place): one for place, one in found.items()}
        self.label, self.classes, self.method = label, classes, method

    def __getitem__(self, key: PointSpec) -> Direction:
        place = self.point_of(key)
        if place not in self._found:
            raise UsageError(f"no steering vector of {place}; there are {spans_of(self._found)}")
        return self._found[place]

    def __iter__(self) -> Iterator[Place]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __contains__(self, key: object) -> bool:
        try:
            return bool(self[key])  # pyright: ignore[reportArgumentType]
        except UsageError:
            return False

    def edits(self, scale: float, layers: str | int | Iterable[int]) -> Edits:
        """Edits for `model.edited(...)` that add `scale` standard deviations at these layers.

        Args:
            scale: positive towards the second class, negative towards the first.
            layers: 5, [4, 5], "4-6" or "all"; at several layers the vectors add up.

        Raises:
            UsageError: a layer that has no vector.
        """
        if not isinstance(layers, Iterable) and not is_whole(layers):
            raise UsageError(f'layers are 5, [4, 5], "4-6" or "all"; got {layers!a:.60}')
        try:
            places = places_of(self, self.points[0], layers)[1]
        except UsageError as error:
            last = str([*self._found][-1])
            raise UsageError(
                f'{error}; the last place is {last}: edit it with {{"{last}": vectors["{last}"].steering(scale)}}'
            ) from None
        return {place: self[place].steering(scale) for place in places}

    def export(self, path: str | Path) -> Path:
        """Write them to a .safetensors or .gguf file; see `probekit.causal.directions.export.export_directions`.

        In a .gguf file the places before llama.cpp's first one, resid_pre.0 and resid_pre.1, are left out.
        """
        first = {"resid_pre": 2, "resid_post": 1} if str(path).endswith(".gguf") else {}
        kept = {place: one for place, one in self._found.items() if (place[1] or 0) >= first.get(place[0], 0)}
        return export_directions(path, kept, model=str(self.meta.get("model", "")))

    def __repr__(self) -> str:
        way = " -> ".join(ascii(name) for name in self.classes)
        return f"SteeringVectors({self.label!a}, {way}, {self.method}; {spans_of(self._found)})"


def steering_vectors(
    acts: Activations | Statistics,
    label: str | None = None,
    method: str = "mean-difference",
    classes: tuple[Any, Any] | None = None,
    results: ProbeData | None = None,
    point: str | None = None,
    position: str | int | None = None,
    latent: int | None = None,
) -> SteeringVectors:
    """The direction from one class to another at every layer, fitted to the training rows.

    Args:
        acts: activations, or the sums of `extract(stats=True)`.
        label: label set; by default the task's target.
        method: "mean-difference" (Marks and Tegmark 2023), "lda", "probe", which needs `results`, or "latent", for
            latents, `acts.encode(sae)`: the decoder's direction of one latent, at the place that the autoencoder
            writes to. It has the sign that goes from the first class to the second: that of the difference of the
            latent's means on train.
        classes: two classes, from and to, by name or number; may be left out if there are two.
        results: trained probes of the same activations, for method "probe".
        point: short name; by default the first that was extracted.
        position: the token that is read, where several were extracted.
        latent: number of the latent, for method "latent"; by default the one whose class means differ most.

    Raises:
        UsageError: an unknown label, class, method or point; a label of numbers.
        DataError: a class without training rows, or classes that do not differ.
    """
    check_among("method", method, METHODS)
    if (method == "probe") != isinstance(results, ProbeData):
        raise UsageError(
            "method 'probe' takes the directions of trained probes: give results=train_probes(acts) with it"
        )
    if (method == "latent") != (isinstance(acts, Activations) and before_encoding(acts) is not None) or (
        latent is not None and method != "latent"
    ):
        raise UsageError("method 'latent' is for latents, and they have no other: give acts.encode(sae) with it")
    named = _named(acts)
    label = _label(acts, label)
    names = acts.label_names[label]
    pair = _pair(names, classes, label)
    read = None if position is None else Selection.of(position)
    source = one_position(acts, read) if isinstance(acts, Activations) else acts
    if isinstance(acts, Statistics) and position is not None:
        raise UsageError(f"statistics are of one position; leave position={position!a:.40} out")
    places = places_of(named, point, "all")[1]
    if method == "latent":
        assert isinstance(source, Activations)
        if latent is not None and len(places) > 1:
            raise UsageError(f"latent {latent} of several autoencoders is another one in each; encode one of them")
        found = dict(_latent_direction(source, place, label, pair, latent) for place in places)
        about = {**named.meta, "points": list(dict.fromkeys(place.point for place in found))}
        return SteeringVectors(found, label, (names[pair[0]], names[pair[1]]), method, about)
    if results is not None:
        places = [place for place in places if place in _probes(results, label)]
    found = {place: _direction(method, _moments(source, place, label), label, pair, results, place) for place in places}
    if not found:
        raise UsageError("the results hold no probe of these places; train them at the same point")
    short = places[0][0]
    return SteeringVectors(found, label, (names[pair[0]], names[pair[1]]), method, {**named.meta, "points": [short]})


def _latent_direction(
    acts: Activations, place: Place, label: str, pair: Classes, latent: int | None
) -> tuple[Place, Direction]:
    """Where the decoder writes a latent, and its direction there."""
    under = latents_under(acts)
    assert under is not None
    sae, written = under.sae(place), under.reads(place)
    if sae.cfg.is_transcoder:
        if sae.cfg.place_out is None:
            raise UsageError(
                f"the files of {sae.name!a:.200} do not name the point that it writes to; steer with W_dec"
            )
        written = Place(as_extracted(sae.cfg.place_out.point, [written]), sae.cfg.place_out.layer)
    at_written = before_encoding(acts, {place: written})
    assert at_written is not None
    labels = np.asarray(acts.labels[label])
    own = np.flatnonzero((acts.splits == "train") & ~unlabelled_rows(acts.task, label) & np.isin(labels, pair))
    X = take_some(features_to_fit(acts, place, sparse=True), own)
    is_second = (labels[own] == pair[1]).astype(np.int64)
    number = int(rank_neurons(X, is_second).neurons[0]) if latent is None else latent
    if not is_whole(number) or not 0 <= number < sae.cfg.d_latents:
        raise UsageError(f"latent is one of 0 to {sae.cfg.d_latents - 1:,}, got {latent!a:.60}")
    values = feature_columns(X, np.array([number]))[:, 0].numpy()
    sign = 1 if values[is_second == 1].mean() >= values[is_second == 0].mean() else -1
    moments = _moments(at_written, place, label)
    return written, unit_direction(f"latent {number}", sign * sae.W_dec[number].double(), moments)


def _direction(
    method: str, moments: SplitMoments, label: str, pair: Classes, results: ProbeData | None, place: Place
) -> Direction:
    if results is not None:
        return probe_direction(_probes(results, label)[place], moments, pair)
    return {"lda": lda_direction, "mean-difference": mean_difference_direction}[method](moments, label, pair)


def _probes(results: ProbeData, label: str) -> dict[Place, Any]:
    if results.meta["label"] != label:
        raise UsageError(f"the results are of {results.meta['label']!a}, expected {label!a}; give those of one label")
    return {Place(one.point, one.layer): one.probe for one in results.layers if one.probe is not None}


def _named(acts: Any) -> NamedPlaces:
    if isinstance(acts, Activations):
        return acts
    if isinstance(acts, Statistics):
        return NamedPlaces(acts.places, acts.meta)
    raise UsageError(f"expected activations or statistics, got {kind_of(acts)}; see extract and load_statistics")


def _label(acts: Activations | Statistics, label: str | None) -> str:
    if isinstance(acts, Activations):
        label = acts.task.label_set(label)
    label = acts.meta.get("target") if label is None else label
    if label not in acts.label_names:
        raise UsageError(f"no label set {label!a}; {ascii(nearest(str(label), acts.label_names))[1:-1]}")
    if not acts.label_names[label]:
        raise UsageError(f"{label!a} holds numbers, and steering goes from class to class; take a label set of classes")
    return label


def _pair(names: list[str], classes: tuple[Any, Any] | None, label: str) -> Classes:
    given = (0, 1) if classes is None and len(names) == 2 else classes
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise UsageError(f"{label!a} has the classes {listed(names)!a}; name two, classes=(from, to)")
    numbers = [names.index(one) if one in names else one for one in given]
    if not all(is_whole(one) and 0 <= one < len(names) for one in numbers):
        raise UsageError(f"classes of {label!a} are {listed(names)!a}; got {given!a:.80}")
    return int(numbers[0]), int(numbers[1])


def _moments(acts: Activations | Statistics, place: Place, label: str) -> SplitMoments:
    """The sums of the training rows."""
    if isinstance(acts, Statistics):
        return acts[place, "train"]
    train = np.flatnonzero((acts.splits == "train") & ~unlabelled_rows(acts.task, label))
    if not len(train):
        raise DataError("no training rows to fit directions to; give the task a split 'train'")
    x = acts[place]
    rows_ND = x[torch.from_numpy(train).to(x.device)]
    return moments_of_rows(rows_ND, {label: acts.labels[label][train]}, {label: len(acts.label_names[label])})

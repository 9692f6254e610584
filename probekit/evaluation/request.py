"""The options of a curve, checked against the activations: label set, probe and its grid of C, point and places.

Axes: N examples.
"""

import copy
import inspect
import itertools
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from probekit.activations.activations import Activations, RowsOf, SideBySide
from probekit.activations.labelled import with_label_columns
from probekit.errors import DataError, UsageError
from probekit.evaluation.fits.sequences import labels_of_texts
from probekit.evaluation.fits.stream import check_room
from probekit.evaluation.reading import acts_read, checked_activations, one_position, position_of
from probekit.evaluation.surface.columns import OF_TOKENS, is_computed
from probekit.evaluation.surface.within import RowGroup, row_groups
from probekit.options import CurveOptions, CurvesArguments
from probekit.options.curve import SEQUENCE_NAMES
from probekit.options.probe import BY_HEAD
from probekit.points import HEAD_POINTS, LATENTS, PAIR_POINTS, Place, base_name, has_layers, places_of, short_name
from probekit.probes import Probe
from probekit.probes.find import find_probe, probe_name
from probekit.selections import ALL
from probekit.tasks.base import Task
from probekit.tasks.fields import VALIDATION_CARVED
from probekit.tasks.splitting.splits import CARVED_SHARE, carve_missing
from probekit.tasks.token_labels import unlabelled_rows

Curves = list[tuple[str, list[Place]]]  # the short name of a point, and its places
DEFAULT_C = tuple(10.0**k for k in range(-4, 5))


@dataclass(frozen=True, eq=False)
class Request:
    """One curve: what is fitted to which labels, and where.

    Attributes:
        acts: one row for each example (with position "all" these are tokens); its task may have a validation split that
            was carved.
        features: where the places are read: one object for all requests that read the same rows.
        label: name of the label set.
        labels: its int64 [N], or float64 [N] or [N, K] for a regression.
        n_classes: 0 for a regression.
        probe: unfitted; copied for each fit.
        strengths: values of C to choose from, rising; [None] for a probe without C.
        point: short name.
        places: in the order of the curve.
        rows: the examples of the activations that have a label and are in the group, int64; None is all.
        group: whose rows they are, where values of a column have a curve each.
        unlabelled: how many rows have no label.
    """

    acts: Activations
    features: Activations
    label: str
    labels: np.ndarray
    n_classes: int
    probe: Probe
    strengths: list[float | None]
    point: str
    places: list[Place]
    rows: np.ndarray | None = None
    group: RowGroup | None = None
    unlabelled: int = 0

    @property
    def rows_key(self) -> tuple[str, str]:
        """Label set and group: requests with the same have the same rows, audit and baselines."""
        return self.label, "" if self.group is None else self.group.value


def check_request(acts: Activations, options: CurveOptions) -> Request:
    """The request for one curve whose layer must be chosen too: without validation rows, some of train become it.

    Args:
        acts: activations of one task.
        options: of the curve.

    Raises:
        UsageError: no activations, an unknown probe, point or label, a layer that is not there, a C for a probe
            without one.
    """
    acts = with_label_columns(checked_activations(acts), options.label)
    label = acts.task.label_set(options.label)
    if options.probe in SEQUENCE_NAMES or getattr(options.probe, "of_sequences", False):
        raise UsageError(
            "this reads one row for each text, and a probe over a sequence takes all of its tokens; take a linear probe"
        )
    acts = one_position(acts, position_of(options))
    curves = [places_of(acts, options.point, options.layers)]
    if options.concatenate:
        acts, curves = _side_by_side(acts, curves)
    ((point, places),) = curves
    request = _of_label(acts, options, label)
    chooses = len(places) > 1 or len(request.strengths) > 1
    return replace(_carved(request, options.seed) if chooses else request, point=point, places=places)


def check_requests(acts: Activations, options: CurvesArguments) -> list[list[Request]]:
    """For each label set, in it for each group of rows and then for each probe, a request for each point.

    Where C is chosen, without folds and without validation rows, some of train become validation; the probes of a label
    set have the same rows, so that they can be compared. A grid is chosen from alone: each of several is what it would
    be without the others.

    Args:
        acts: activations of one task.
        options: of the curves.

    Raises:
        UsageError: as `check_request`; by position, attention.
    """
    acts = checked_activations(acts)
    acts = labels_of_texts(acts) if options.of_sequences else acts
    labels = _labels_of(acts, options)
    acts = acts_read(acts, options)
    curves = curves_of(acts, options)
    if options.concatenate:
        acts, curves = _side_by_side(acts, curves)
    rows = dict.fromkeys(labels, acts)
    if options.by_position:
        if pairs := [point for point, _ in curves if point in PAIR_POINTS]:
            raise UsageError(f"{pairs[0]} has a row for each pair of tokens, not for each position; name another point")
        rows = _rows_of_labels(acts, labels, options.within)
    groups = _groups(rows, options)
    sets = [_of_probes(rows[label], options, label, group) for label, own in groups.items() for group in own]
    requests = [each for own in sets for each in own]
    if options.by_position:  # whose rows are those of no request
        requests = [replace(each, features=acts) for each in requests]
    else:
        requests = _with_the_same_rows(requests)
    made = [[replace(each, point=point, places=places) for point, places in curves] for each in requests]
    made = _with_validation(made, options)
    if not options.by_position:
        _check_rooms([each for own in made for each in own])
    return made


def _check_rooms(requests: Sequence[Request]) -> None:
    """Refuse places that memory cannot hold for probes that must hold them, before anything is read."""
    wanted = {(id(each.features), place): each for each in requests if not each.probe.streams for place in each.places}
    for (_, place), each in wanted.items():
        if not each.probe.of_sequences:
            check_room(each.features, place)


def _groups(rows: Mapping[str, Activations], options: CurvesArguments) -> dict[str, Sequence[RowGroup | None]]:
    """Label set -> the groups of its rows that have curves of their own; None is all rows.

    Of several label sets those without any such group have no curve, which is warned of.
    """
    if options.within is None:
        return {label: [None] for label in rows}
    found: dict[str, Sequence[RowGroup | None]] = {}
    failed: list[DataError] = []
    for label, acts in rows.items():
        try:
            found[label] = row_groups(acts, options, label)
        except DataError as error:
            failed.append(error)
    if not found:
        raise failed[0]
    for error in failed:
        warnings.warn(f"no curve: {error}", stacklevel=6)
    return found


def _of_probes(acts: Activations, options: CurvesArguments, label: str, group: RowGroup | None) -> list[Request]:
    """The request of each probe for one label set and group of rows, without its places.

    Raises:
        UsageError: as `_of_label`; two probes of one name.
    """
    several = options.each_probe
    known = _labelled_rows(acts, label, group)
    made = [replace(_of_probe(*known, label, options, probe), group=group) for probe in several]
    names = [probe_name(request.probe) for request in made]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"two of the probes for {label!a} are {twice[0]}; give each once")
    return made


def _with_validation(made: list[list[Request]], options: CurvesArguments) -> list[list[Request]]:
    """The requests with validation rows where C is chosen, of curves for all probes of the same rows.

    A shift needs them to choose its layer too.
    """
    if options.folds is not None:
        return made
    of_curves = {own[0].rows_key for own in made if len(own[0].strengths) > 1}
    known: dict[tuple[str, str], Activations] = {}

    def chooses(each: Request) -> bool:
        if not options.makes_grids:
            return each.rows_key in of_curves
        return len(each.strengths) > 1 or (options.shift_column is not None and len(each.places) > 1)

    for each in itertools.chain(*made):
        if chooses(each) and each.rows_key not in known:
            known[each.rows_key] = _carved(each, options.seed).acts
    return [[replace(each, acts=known[each.rows_key]) if chooses(each) else each for each in own] for own in made]


def _rows_of_labels(acts: Activations, labels: Sequence[str], within: str | None) -> dict[str, Activations]:
    """For each label set the rows that have its labels: texts, every token, or the tokens of one position.

    Raises:
        UsageError: values of the token that is read, where each text has several.
    """
    if not acts.layout.is_ragged and within in OF_TOKENS and is_computed(acts, within):
        raise UsageError(
            f"{within} (--within) is of the token that is read, and several of each text are; name a column of texts, "
            "or leave --by out"
        )
    every = acts.at(ALL) if acts.layout.is_ragged and acts.task.token_labels else acts
    of_tokens = [label for label in labels if label in acts.task.token_labels]
    found = {label: every if acts.layout.is_ragged else _most_varied(acts, label) for label in of_tokens}
    return {label: found.get(label, acts) for label in labels}


def _most_varied(acts: Activations, label: str) -> Activations:
    """The kept position at whose tokens the label has the most values."""
    return max((acts.at(name) for name in acts.layout.positions), key=lambda one: len(np.unique(one.labels[label])))


def _side_by_side(acts: Activations, curves: Curves) -> tuple[Activations, Curves]:
    """Activations in which the places of each curve are one, and their curves of that one place.

    Raises:
        UsageError: latents, whose probes could not say what they read.
    """
    if any(base_name(point) == LATENTS for point, _ in curves):
        raise UsageError("latents of several layers are not put side by side (--concatenate); probe each layer")
    joined = SideBySide(acts, [places for _, places in curves])
    return joined, [(place.point, [place]) for place in joined]


def _of_label(acts: Activations, options: CurveOptions, label: str) -> Request:
    """The request for one label set, without its places; of the examples that have a label in it."""
    return _of_probe(*_labelled_rows(acts, label), label, options, options.probe)


_Rows = tuple[Activations, np.ndarray | None, int]


def _labelled_rows(acts: Activations, label: str, group: RowGroup | None = None) -> _Rows:
    """The activations of the examples of a group that have a label, these examples (None is all), how many lack it."""
    missing = unlabelled_rows(acts.task, label)
    own = np.ones(len(missing), dtype=bool) if group is None else group.rows
    kept = own & ~missing
    if kept.all():
        return acts, None, 0
    rows = np.flatnonzero(kept)
    _check_labelled(acts.task, label, rows)
    return RowsOf(acts, rows), rows, int((own & missing).sum())


def _of_probe(
    acts: Activations, rows: np.ndarray | None, unlabelled: int, label: str, options: CurveOptions, given: Any
) -> Request:
    """The request for one label set and probe, without its places; what is first is from `_labelled_rows`."""
    n_classes = len(acts.label_names[label])
    probe = find_probe(given, n_classes, label, getattr(options, "aggregate", None))
    labels = np.asarray(acts.labels[label])
    if labels.ndim == 2 and not probe.several_outputs:
        raise UsageError(
            f"the probe {probe_name(probe)} predicts one number, and {label!a} holds {labels.shape[1]} for each "
            "example; take ridge (--probe ridge)"
        )
    is_one = given is options.probe  # of several probes, those that have a C take it
    strengths = probe_strengths(probe, options.C if is_one or probe.has_C else None)
    return Request(acts, acts, label, labels, n_classes, probe, strengths, "", [], rows, unlabelled=unlabelled)


def _check_labelled(task: Task, label: str, rows: np.ndarray) -> None:
    if not len(rows):
        raise DataError(f"no example of {task.name!a} that is read has a label of {label!a}; name another label")


def _with_the_same_rows(requests: list[Request]) -> list[Request]:
    """The requests; those whose labelled examples are the same read one object, so that a place is read once."""
    known: dict[bytes, Activations] = {}
    keys = [b"" if each.rows is None else each.rows.tobytes() for each in requests]
    return [replace(each, features=known.setdefault(key, each.acts)) for each, key in zip(requests, keys, strict=True)]


def _labels_of(acts: Activations, options: CurvesArguments) -> list[str]:
    """The names of the label sets, each once; raises if one of them, or every one, is not there."""
    names = [options.label] if options.labels is None else options.labels
    every = [*acts.labels, *acts.task.token_labels] or [None]
    if options.labels == "all":
        names = [name for name in every if name not in (options.within, options.shift_column)]
    return list(dict.fromkeys(acts.task.label_set(name) for name in names))


def probe_strengths(probe: Any, C: Any) -> list[float | None]:
    """The values of C to choose from, rising.

    They are `C`; if that is None, the probe's own C where it is not the default, or else its `strengths`, or
    `DEFAULT_C`.

    Raises:
        UsageError: a C for a probe without one, or infinity for one that needs a penalty.
    """
    if not probe.has_C:
        if C is not None:
            raise UsageError(f"the probe {probe_name(probe)} has no C; leave it out")
        return [None]
    if C is not None:
        if math.inf in C and not probe.without_penalty:
            raise UsageError(
                f"the probe {probe_name(probe)} needs a finite C (--C), got inf; only ridge may go without a penalty"
            )
        return [*C]
    default = inspect.signature(type(probe)).parameters["C"].default
    return [*(probe.strengths or DEFAULT_C)] if default == probe.C else [probe.C]


def _carved(request: Request, seed: int) -> Request:
    """The request itself or, if it has no validation rows, one with a tenth of train as validation.

    These are the rows that `load_task` would carve. `acts.task.info["validation_carved"]` says how.
    """
    acts, task = request.acts, request.acts.task
    n_train = int((acts.splits == "train").sum())
    if (task.splits == "validation").any() or not n_train:
        return request
    given, keys = task.splits.tolist(), task.split_keys().tolist()
    splits = carve_missing(request.labels, given, keys, ["validation"], seed)
    warnings.warn(
        f"{task.name!a} has no validation split: {int((splits == 'validation').sum()):,} of its {n_train:,} training "
        f"rows choose for {request.label!a} (seed {seed}); with one C and one layer nothing is chosen",
        stacklevel=6,  # the caller of train_probes or transfer
    )
    view = copy.copy(acts)
    view.task = replace(
        task, splits=splits, info={**task.info, VALIDATION_CARVED: {"fraction": CARVED_SHARE, "seed": seed}}
    )
    return replace(request, acts=view)


def curves_of(acts: Activations, options: CurvesArguments) -> list[tuple[str, list[Place]]]:
    """Each point's short name and its places, at the layers of the options; those of several curves share no place.

    By head the points are by default those with heads.

    Raises:
        UsageError: a point or layer that was not extracted.
    """
    every = [point for point in acts.points if point not in PAIR_POINTS]
    if options.by == BY_HEAD:
        every = [point for point in every if base_name(point) in HEAD_POINTS] or every
    if options.points is None:
        is_default = options.point is None and options.by == BY_HEAD and every
        return [places_of(acts, every[0] if is_default else options.point, options.layers)]
    points = every if options.points == "all" else [short_name(acts, point) for point in options.points]
    layers = {point: options.layers if has_layers(acts, point) else "all" for point in dict.fromkeys(points)}
    curves = [places_of(acts, *each) for each in layers.items()]
    if options.makes_grids:
        return curves
    taken: set[Place] = set()  # the output ends one curve only, or is on that of its own point
    kept = []
    for short, places in curves:
        own = [place for place in places if place[0] == short or not (place[0] in layers or place in taken)]
        taken |= set(own)
        kept.append((short, own))
    return kept


def random_init_activations(
    other: Activations, task: Task, request: Request, places: Sequence[Place], options: CurvesArguments
) -> Activations:
    """The activations of a model with random weights, read as those of the trained model, checked.

    Args:
        other: of the model with random weights.
        task: of the trained model's activations, before a validation split is carved.
        request: one of the requests.
        places: of all curves.
        options: which say what rows are read.

    Raises:
        UsageError: other examples, or a place that is not there.
    """
    checked_activations(other, "random_init=")
    if other.task.fingerprint() != task.fingerprint():
        raise UsageError(
            "the activations of random_init= have other examples, labels or splits; make them from the same task "
            "(activations.random_init_of)"
        )
    other = acts_read(other, options)
    source = request.features.source if isinstance(request.features, RowsOf) else request.features
    joined = source if isinstance(source, SideBySide) else None
    wanted = places if joined is None else joined.joined
    if missing := [place for place in wanted if place not in other]:
        of_latents = base_name(missing[0].point) == LATENTS
        how = "encode it with the same autoencoder" if of_latents else "make it with the same points"
        raise UsageError(f"random_init= has no activations of {missing[0]}; {how}")
    return other if joined is None else joined.same_of(other)

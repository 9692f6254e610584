"""A place as a problem: its activations, and the directions that edits go along, fitted to train rows.

A *direction* has a vector for each class. Steering from one class to another goes along the difference of their
vectors; interchange and erasure take the subspace of all such differences, a line for two classes.

Axes: N rows, D width of the place, C classes, k dimensions of the subspace (at most C - 1).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probekit.activations.sums.moments import SplitMoments
from probekit.causal.curve.prepared import AnsweredRows, PreparedQuestion
from probekit.causal.curve.question import CausalQuestion
from probekit.causal.directions.directions import class_vectors, fit_lda, moments_of_rows
from probekit.causal.directions.placebos import covariance_directions, fitted_to_shuffled, random_directions
from probekit.causal.erasure.erase import Eraser, fit_leace, tol_of_few_rows
from probekit.causal.interchange.das import Search, find_das
from probekit.causal.interchange.interchange import Interchange
from probekit.errors import DataError
from probekit.evaluation.results.data import LayerResult
from probekit.points import Place
from probekit.probes.base import Probe
from probekit.tasks.base import Task

MOST_SHUFFLED = 4000  # rows that the probe of shuffled labels is fitted to
# At every place of `agreement` 150 steps recover at most 0.004 more than 100; 50 steps lose up to 0.06 and find nothing
# at the first place. A step costs the same at any number.
STEPS, RESTARTS = 100, 2


@dataclass(frozen=True, eq=False)
class EditDirection:
    """One direction, or subspace.

    Attributes:
        name: as `Effect.direction`.
        vectors_CD: a vector for each class, float64; only their differences matter.
        basis_Dk: orthonormal basis of the differences, float64; no column where the classes do not differ, so that its
            edits change nothing.
        is_placebo: whether it knows nothing of the label.
        label: the label set that it is of, where that is another one; else "".
    """

    name: str
    vectors_CD: Tensor
    basis_Dk: Tensor
    is_placebo: bool = False
    label: str = ""

    def steps(self, start_N: np.ndarray, end_N: np.ndarray) -> Tensor:
        """The unit vector from each row's class to another, float64 [N, D]."""
        step_ND = self.vectors_CD[torch.from_numpy(end_N)] - self.vectors_CD[torch.from_numpy(start_N)]
        return step_ND / step_ND.norm(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)


@dataclass(frozen=True, eq=False)
class PlaceDirections:
    """What was fitted to the train rows of one place.

    Attributes:
        moments: of the train rows, with every label set of classes.
        fitted: the label's own first ("probe", "mean-difference", "lda"), then placebos.
        learned: the direction that a search found best, for interchange alone.
    """

    moments: SplitMoments
    fitted: list[EditDirection]
    learned: EditDirection | None = None

    @property
    def probe(self) -> EditDirection:
        """The probe's own."""
        return self.fitted[0]

    @property
    def mean_difference(self) -> EditDirection:
        """The differences of the class means."""
        return self.fitted[1]


@dataclass(frozen=True, eq=False)
class PlaceRows:
    """Rows at one place, as its edits need them.

    Attributes:
        x_ND: their activations.
        labels: class of each, int64 [N].
        other: the class that an edit is to give each, int64 [N].
        counterpart: the row of that class whose activations it gets, among these rows, int64 [N].
        same: another row of each row's own class, among these rows, int64 [N].
    """

    x_ND: Tensor
    labels: np.ndarray
    other: np.ndarray
    counterpart: np.ndarray
    same: np.ndarray


@dataclass(frozen=True, eq=False)
class PlaceProblem:
    """One place of the curve, with all that edits of it need.

    Attributes:
        place: point and layer.
        label: the label set in question.
        rows: "validation" and "test" -> the rows that effects are measured on.
        directions: of the label, and placebos.
        erasers: label set -> its LEACE: of the label, and of the label sets that are placebos; empty without erasure.
        search: how the search for the best direction went; empty without one.
    """

    place: Place
    label: str
    rows: dict[str, PlaceRows]
    directions: PlaceDirections
    erasers: dict[str, Eraser]
    search: dict[str, Any] = field(default_factory=dict)


def fit_problem(prepared: PreparedQuestion, layer: LayerResult) -> PlaceProblem:
    """Fit the directions of a place to train rows.

    Raises:
        DataError: NaN or infinity.
    """
    question, options = prepared.question, prepared.question.options
    label, others, place = question.label, prepared.placebo_labels, Place(layer.point, layer.layer)
    x_ND = question.acts[place][torch.from_numpy(question.train)]
    directions = fit_place(x_ND, prepared.train, label, others, layer.probe, options.placebos, options.seed)
    learned = learn_direction(prepared, place)
    erased = [label, *(others if options.placebos else [])] if "erase" in options.method_names else []
    tol = tol_of_few_rows(directions.moments)
    return PlaceProblem(
        place,
        label,
        {split: _rows_at(question, place, rows) for split, rows in prepared.rows.items()},
        directions if learned is None else replace(directions, learned=learned[0]),
        {name: fit_leace(directions.moments, name, tol) for name in erased},
        {} if learned is None else learned[1],
    )


def _rows_at(question: CausalQuestion, place: Place, rows: AnsweredRows) -> PlaceRows:
    x_ND = activations_at(question, place, rows.index)
    return PlaceRows(x_ND, rows.labels, rows.other, rows.counterpart, rows.same)


def activations_at(question: CausalQuestion, place: Place, index: np.ndarray) -> Tensor:
    """Activations of some rows of the task, on the model's device, in float32 at least: [N, D]."""
    x_ND = question.acts[place][torch.from_numpy(index)]
    return x_ND.to(question.model.device, torch.promote_types(x_ND.dtype, torch.float32))


def learn_direction(
    prepared: PreparedQuestion, place: Place, steps: int | None = None
) -> tuple[EditDirection, dict[str, Any]] | None:
    """The best single direction at a place (distributed alignment search), and how the search for it went.

    Args:
        prepared: with the texts of the search.
        place: point and layer.
        steps: of the search; None is `STEPS`.

    Returns:
        None without a search, and where no swap changes the behaviour.
    """
    question, texts = prepared.question, prepared.search
    if texts is None:
        return None
    x_ND = activations_at(question, place, texts.index)
    swap = Interchange(place, texts.trunk, texts.behaviour, x_ND, texts.token_N, texts.counterpart_N)
    train, choosing = np.flatnonzero(texts.is_train), np.flatnonzero(~texts.is_train)
    search = Search(steps=STEPS if steps is None else steps, restarts=RESTARTS, seed=question.options.seed)
    try:
        found = find_das(question.model, swap, train, choosing, search)
    except DataError:
        return None
    vectors = torch.stack([torch.zeros_like(found.vector_D), found.vector_D])
    told = ("loss", "train_loss", "recovery", "control_recovery", "cosines")
    return EditDirection("das", vectors, found.vector_D[:, None]), {name: getattr(found, name) for name in told}


def fit_place(
    x_ND: Tensor, task: Task, label: str, others: Sequence[str], probe: Probe, k: int, seed: int
) -> PlaceDirections:
    """Fit the directions of a place.

    Args:
        x_ND: activations of the train rows.
        task: the train rows.
        label: the label set in question.
        others: label sets whose directions are placebos.
        probe: trained for it on these rows.
        k: random directions, and as many from the covariance.
        seed: of the placebos.

    Raises:
        DataError: NaN or infinity.
    """
    labels = {name: np.asarray(task.labels[name]) for name in [label, *others]}
    moments = moments_of_rows(x_ND, labels, {name: len(task.label_names[name]) for name in labels})
    own = _own(probe, moments, label)
    n_classes = len(own[0].vectors_CD)
    placebos = [*_random(k, n_classes, moments, label, seed)]
    placebos += [*_shuffled(probe, x_ND, labels[label], seed)] if k else []
    placebos += [_of_label(name, x_ND, labels[label], labels[name], _rounding(moments)) for name in others] if k else []
    return PlaceDirections(moments, [*own, *placebos])


def _own(probe: Probe, moments: SplitMoments, label: str) -> list[EditDirection]:
    """The label's directions; all are empty where the class means do not differ, the optimum of a linear probe."""
    means_CD = _differences(moments, label)
    found = {"probe": class_vectors(probe), "mean-difference": means_CD, "lda": torch.zeros_like(means_CD)}
    if not bool(means_CD.any()):
        return [_direction(name, torch.zeros_like(vectors_CD)) for name, vectors_CD in found.items()]
    found["lda"] = class_vectors(fit_lda(moments, label))
    return [_direction(name, vectors_CD) for name, vectors_CD in found.items()]


def _differences(moments: SplitMoments, label: str) -> Tensor:
    """The class means around their mean, float64 [C, D]; zeros if they are equal up to the rounding of float32."""
    means_CD = moments.class_means(label).nan_to_num()
    centred_CD = means_CD - means_CD.mean(dim=0)
    return centred_CD if float(centred_CD.norm(dim=1).max()) > _rounding(moments) else torch.zeros_like(centred_CD)


def _rounding(moments: SplitMoments) -> float:
    """The rounding of float32 at the root mean square length of the activations."""
    length = float((moments.mean.square().sum() + moments.covariance.trace()).sqrt())
    return torch.finfo(torch.float32).eps * length


def _direction(name: str, vectors_CD: Tensor, is_placebo: bool = False, label: str = "") -> EditDirection:
    centred_CD = vectors_CD - vectors_CD.mean(dim=0)
    _, values, Vt = torch.linalg.svd(centred_CD, full_matrices=False)
    kept = values > values[0] * max(centred_CD.shape) * torch.finfo(torch.float64).eps
    return EditDirection(name, vectors_CD, Vt[kept].T.contiguous(), is_placebo, label)


def _random(k: int, n_classes: int, moments: SplitMoments, label: str, seed: int) -> Iterator[EditDirection]:
    """Uniform directions, and directions in which activations of one class vary.

    The complete covariance would not do: where the classes lie far apart, its directions are the label's. Where
    activations of one class do not vary, both are uniform.
    """
    if not k:
        return
    within_DD = moments.within_class_covariance(label)
    each, D = n_classes - 1, len(within_DD)
    varies = float(within_DD.diagonal().max()) > _rounding(moments) ** 2
    drawn = {
        "random": random_directions(k * each, D, seed),
        "covariance": covariance_directions(k * each, within_DD if varies else torch.eye(D), seed + 1),
    }
    for name, vectors in drawn.items():
        for some_D in vectors.view(k, each, D):
            yield _direction(name, torch.cat([torch.zeros(1, D, dtype=torch.float64), some_D]), True)


def _shuffled(probe: Probe, x_ND: Tensor, labels_N: np.ndarray, seed: int) -> Iterator[EditDirection]:
    """The probe with its parameters, fitted to shuffled labels."""
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(x_ND))[:MOST_SHUFFLED]
    if len(np.unique(labels_N[rows])) == len(np.unique(labels_N)):
        shuffled = fitted_to_shuffled(probe, x_ND[torch.from_numpy(rows)], labels_N[rows], rng)
        yield _direction("shuffled labels", class_vectors(shuffled), True)


def _of_label(name: str, x_ND: Tensor, labels_N: np.ndarray, other_N: np.ndarray, rounding: float) -> EditDirection:
    """The directions in which the classes of another label set differ most, as many as the label has.

    The differences are those among rows of one class of the label, averaged over its classes. Differences among all
    rows would carry the label wherever the two label sets are correlated, if only by chance.
    """
    parts = []
    for label in np.unique(labels_N):
        means_CD = [
            x_ND[torch.from_numpy(np.flatnonzero((labels_N == label) & (other_N == other)))].double().mean(dim=0)
            for other in range(int(other_N.max()) + 1)
        ]
        found_CD = torch.stack(means_CD).cpu()
        parts.append(found_CD - found_CD.nanmean(dim=0))  # nan where no row has both classes
    centred_CD = torch.stack(parts).nanmean(dim=0).nan_to_num()
    _, values, Vt = torch.linalg.svd(centred_CD, full_matrices=False)
    n_axes = len(np.unique(labels_N)) - 1
    top = (values[:, None] * Vt)[:n_axes] * (values[:n_axes, None] > rounding)
    return _direction(f"label {name}", torch.cat([torch.zeros_like(top[:1]), top]), True, name)

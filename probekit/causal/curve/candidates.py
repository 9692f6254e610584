"""The directions of a place: those of the label, and placebos.

A *candidate* has a vector for each class. Steering from one class to another goes along the difference of their
vectors; interchange and erasure take the subspace of all such differences, a line for two classes.

Axes: N train rows, D width of the place, C classes, k dimensions of the subspace (at most C - 1).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from probekit.activations.sums.moments import SplitMoments
from probekit.causal.directions.directions import class_vectors, fit_lda, moments_of_rows
from probekit.causal.directions.placebos import covariance_directions, fitted_to_shuffled, random_directions
from probekit.probes.base import Probe
from probekit.tasks.base import Task

MOST_SHUFFLED = 4000  # rows that the probe of shuffled labels is fitted to
LEAST_CLASS = 2  # train rows of each class of another label set


@dataclass(frozen=True, eq=False)
class Candidate:
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
        candidates: the label's own first ("probe", "mean-difference", "lda"), then placebos.
        other_labels: names of the other label sets.
        learned: the direction that a search found best, for interchange alone.
    """

    moments: SplitMoments
    candidates: list[Candidate]
    other_labels: list[str]
    learned: Candidate | None = None

    @property
    def probe(self) -> Candidate:
        """The probe's own."""
        return self.candidates[0]

    @property
    def mean_difference(self) -> Candidate:
        """The differences of the class means."""
        return self.candidates[1]


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
    placebos += [_of_label(name, moments, n_classes) for name in others] if k else []
    return PlaceDirections(moments, [*own, *placebos], list(others))


def _own(probe: Probe, moments: SplitMoments, label: str) -> list[Candidate]:
    """The label's directions; all are empty where the class means do not differ, the optimum of a linear probe."""
    means_CD = _differences(moments, label)
    found = {"probe": class_vectors(probe), "mean-difference": means_CD, "lda": torch.zeros_like(means_CD)}
    if not bool(means_CD.any()):
        return [_candidate(name, torch.zeros_like(vectors_CD)) for name, vectors_CD in found.items()]
    found["lda"] = class_vectors(fit_lda(moments, label))
    return [_candidate(name, vectors_CD) for name, vectors_CD in found.items()]


def _differences(moments: SplitMoments, label: str) -> Tensor:
    """The class means around their mean, float64 [C, D]; zeros if they are equal up to the rounding of float32."""
    means_CD = moments.class_means(label).nan_to_num()
    centred_CD = means_CD - means_CD.mean(dim=0)
    return centred_CD if float(centred_CD.norm(dim=1).max()) > _rounding(moments) else torch.zeros_like(centred_CD)


def _rounding(moments: SplitMoments) -> float:
    """The rounding of float32 at the root mean square length of the activations."""
    length = float((moments.mean.square().sum() + moments.covariance.trace()).sqrt())
    return torch.finfo(torch.float32).eps * length


def other_label_sets(task: Task, label: str) -> list[str]:
    """The names of other label sets of classes, all of which have rows; one that is the label renamed is left out."""
    found = []
    for name, classes in task.label_names.items():
        values = np.asarray(task.labels[name]) if name in task.labels else None
        if name == label or len(classes) < 2 or values is None or values.ndim != 1 or values.dtype.kind not in "iu":
            continue
        counts = np.bincount(values[values >= 0], minlength=len(classes))
        if (values < 0).any() or counts.min() < LEAST_CLASS:
            continue
        pairs = len({*zip(values.tolist(), np.asarray(task.labels[label]).tolist(), strict=True)})
        if pairs > max(len(classes), len(task.label_names[label])):
            found.append(name)
    return found


def _candidate(name: str, vectors_CD: Tensor, is_placebo: bool = False, label: str = "") -> Candidate:
    centred_CD = vectors_CD - vectors_CD.mean(dim=0)
    _, values, Vt = torch.linalg.svd(centred_CD, full_matrices=False)
    kept = values > values[0] * max(centred_CD.shape) * torch.finfo(torch.float64).eps
    return Candidate(name, vectors_CD, Vt[kept].T.contiguous(), is_placebo, label)


def _random(k: int, n_classes: int, moments: SplitMoments, label: str, seed: int) -> Iterator[Candidate]:
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
            yield _candidate(name, torch.cat([torch.zeros(1, D, dtype=torch.float64), some_D]), True)


def _shuffled(probe: Probe, x_ND: Tensor, labels_N: np.ndarray, seed: int) -> Iterator[Candidate]:
    """The probe with its parameters, fitted to shuffled labels."""
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(x_ND))[:MOST_SHUFFLED]
    if len(np.unique(labels_N[rows])) == len(np.unique(labels_N)):
        shuffled = fitted_to_shuffled(probe, x_ND[torch.from_numpy(rows)], labels_N[rows], rng)
        yield _candidate("shuffled labels", class_vectors(shuffled), True)


def _of_label(name: str, moments: SplitMoments, n_classes: int) -> Candidate:
    """The directions in which the class means of another label set differ most, as many as the label has."""
    _, values, Vt = torch.linalg.svd(_differences(moments, name), full_matrices=False)
    top = (values[:, None] * Vt)[: n_classes - 1]
    return _candidate(f"label {name}", torch.cat([torch.zeros_like(top[:1]), top]), True, name)

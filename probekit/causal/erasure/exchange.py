"""What can be read after an edit that is to turn each row's class into another: interchange, or steering.

Completeness, selectivity and reliability of counterfactual interventions follow Canby et al. 2024 (arXiv 2408.15510):
the probes are those of the unedited activations, trained on other rows. Probes trained after the edit would not do: if
two classes are exchanged, they learn the exchanged names.

Axes: N rows, P places.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from probekit.causal.erasure.completeness import FreshReading, FreshScores, harmonic_mean, mean_of_known
from probekit.errors import UsageError
from probekit.points import Place, place_name
from probekit.tasks.tokens.stretches import no_label
from probekit.text import listed


@dataclass(frozen=True)
class ExchangeReading:
    """What the probes of the unedited activations read with an edit.

    Attributes:
        label: the edited label set.
        places: the edited one first, [P].
        completeness: how well the wanted classes are read with the edit, above chance, as a share of how well the own
            ones are read without it, [P]: 1 if every row reads as its wanted class, below 0 if it still reads as its
            own; nan where nothing was read.
        selectivity: how well the other label sets are still read, as a share of before: [P], their mean; nan without
            any.
    """

    label: str
    places: list[Place]
    completeness: list[float]
    selectivity: list[float]

    @property
    def reliability(self) -> list[float]:
        """The harmonic mean of completeness and selectivity, each limited to 0..1: [P]."""
        return [harmonic_mean(*both) for both in zip(self.completeness, self.selectivity, strict=True)]


def read_exchange(
    reading: FreshReading,
    before: Mapping[Place, torch.Tensor],
    after: Mapping[Place, torch.Tensor],
    labels: Mapping[str, np.ndarray],
    wanted_N: np.ndarray,
    label: str,
) -> ExchangeReading:
    """Read rows with and without an edit, by the probes of `read_afresh`.

    Args:
        reading: of the unedited activations; its probes were trained on rows of validation, so give rows of test.
        before: place -> activations of the rows without the edit, [N, D].
        after: with it, at the edited place first, then at later ones.
        labels: label set -> the rows' own classes or numbers, [N].
        wanted_N: the class that the edit is to give each row, [N].
        label: the edited label set, of classes.

    Raises:
        UsageError: a label set without probes, or a place without activations or probes.
    """
    if label not in reading.scores:
        raise UsageError(reading.left_out.get(label, f"no fresh probes of {label!a}; read them first: read_afresh"))
    places = list(after)
    if missing := [
        place_name(place) for place in places if place not in before or place not in reading.scores[label].probes
    ]:
        raise UsageError(
            f"no unedited activations or probes of {listed(missing)}; read the same places without the edit"
        )
    rows = {name: np.asarray(labels[name]) for name in reading.scores}

    def share(name: str, place: Place, wanted: np.ndarray) -> float:
        scores, there = reading.scores[name], ~no_label(rows[name])  # labels that came later may be of some rows
        if scores.intervals[place][0] <= scores.chance or not there.any():
            return math.nan
        own = _score(scores, place, before[place][there], rows[name][there]) - scores.chance
        found = _score(scores, place, after[place][there], wanted[there]) - scores.chance
        return found / own if own > 0 else math.nan

    others = [name for name in rows if name != label]
    complete = [share(label, place, np.asarray(wanted_N)) for place in places]
    selective = [mean_of_known(share(name, place, rows[name]) for name in others) for place in places]
    return ExchangeReading(label, places, complete, selective)


def _score(scores: FreshScores, place: Place, x_ND: torch.Tensor, wanted_N: np.ndarray) -> float:
    """Balanced accuracy, or R2 of numbers, of the place's probe."""
    predicted_N = scores.probes[place].predict(x_ND)
    if scores.metric == "r2":
        return 1 - float(np.square(wanted_N - predicted_N).sum() / np.square(wanted_N - wanted_N.mean()).sum())
    return float(np.mean([(predicted_N[wanted_N == c] == c).mean() for c in np.unique(wanted_N)]))

"""The rules of the verdict that no single effect decides: what the full vector shows, and what is read."""

from dataclasses import replace

import numpy as np
import pytest
from made_up_effects import effect
from planted_runs import planted, trained

from probekit.causal.curve.causal_curve import baseline_of, with_placebos
from probekit.causal.curve.places import PlaceRecord
from probekit.causal.results.view import CONTROL, FULL


def full_vector(full: tuple[float, float], control: tuple[float, float]) -> bool | None:
    """`Effect.full_vector` of exchanges with these 95% intervals, around their middles."""
    made = [
        effect("interchange", name, 1, float(np.mean(x)), interval=x) for name, x in ((FULL, full), (CONTROL, control))
    ]
    (found, _) = with_placebos([PlaceRecord(made, {}, {}, {}, {}, True)])
    return found.full_vector


@pytest.mark.parametrize(
    ("full", "control", "shows"),
    [
        ((0.4, 0.56), (0.3, 0.5), False),  # above the control's effect, within its noise
        ((0.4, 0.56), (0.2, 0.3), True),
        ((0.02, 0.08), (-0.01, 0.01), False),  # above it, and too small to matter
        ((-0.1, 0.6), (-0.5, -0.4), False),  # not above 0
    ],
)
def test_the_full_vector_shows_use_above_the_noise_of_its_control(full, control, shows):
    assert full_vector(full, control) is shows


def test_a_full_vector_without_a_control_shows_nothing():
    (found,) = with_placebos([PlaceRecord([effect("interchange", FULL, 1, 0.9)], {}, {}, {}, {}, True)])
    assert found.full_vector is None


def test_an_accuracy_is_compared_with_the_most_frequent_class_of_test():
    """The majority class of train may be the rarer one of test."""
    found = trained(planted(), quick=False)
    counts = list(found.meta["counts"]["test"].values())
    low = [replace(one, metrics={**one.metrics, "test": {"accuracy": 0.4}}) for one in found.baselines]
    assert baseline_of(replace(found, baselines=low)) == {"name": "majority", "value": max(counts) / sum(counts)}
    high = [replace(one, metrics={**one.metrics, "test": {"accuracy": 0.9}}) for one in found.baselines]
    assert baseline_of(replace(found, baselines=high))["value"] == 0.9

"""A set of activations as a mapping: keys, curve order, labels and splits."""

import numpy as np
import pytest
import torch

from probekit.activations.activations import ActivationSet
from probekit.errors import DataError, UsageError
from probekit.points import Place
from probekit.tasks.base import Task

N = 6


def task() -> Task:
    return Task(
        name="toy",
        inputs=[f"text {i}" for i in range(N)],
        labels={"number": np.arange(N) % 2, "depth": np.arange(N) % 3},
        label_names={"number": ["singular", "plural"], "depth": ["0", "1", "2"]},
        splits=np.array(["train", "validation", "test"] * 2),
        target="number",
    )


def acts() -> ActivationSet:
    places = [("resid_pre", 0), ("resid_pre", 1), ("resid_post", 1), ("embed", None)]
    return ActivationSet({place: torch.full((N, 3), float(i)) for i, place in enumerate(places)}, task())


@pytest.mark.parametrize("key", [("resid_pre", 1), "resid_pre.1", "blocks.1.hook_resid_pre", "embed", ("embed", None)])
def test_every_spelling_of_a_point_is_a_key(key):
    assert key in acts()
    assert torch.equal(acts()[key], torch.full((N, 3), 3.0 if "embed" in key else 1.0))


def test_it_is_a_mapping_in_curve_order():
    assert list(acts()) == [("resid_pre", 0), ("resid_pre", 1), ("resid_post", 1), ("embed", None)]
    assert len(acts()) == 4
    assert acts().get(Place("q", 0)) is None
    assert {place: int(x[0, 0]) for place, x in acts().items()} == dict(zip(acts(), range(4), strict=True))


def test_the_curve_of_a_residual_point_ends_with_the_output():
    assert acts().curve("resid_pre") == [("resid_pre", 0), ("resid_pre", 1), ("resid_post", 1)]
    assert acts().curve("resid_post") == [("resid_post", 1)]
    assert acts().curve("embed") == [("embed", None)]
    assert acts().points == ["resid_pre", "embed"]
    assert acts().n_layers == 2


@pytest.mark.parametrize("key", [("resid_pre", 2), "resid_pre", "q.0"])
def test_a_missing_place_says_what_there_is(key):
    assert key not in acts()
    with pytest.raises(UsageError, match="there are resid_pre 0-1, resid_post 1, embed"):
        acts()[key]


def test_a_missing_curve_says_what_there_is():
    with pytest.raises(UsageError, match="no activations of z here; there are resid_pre 0-1, resid_post 1, embed"):
        acts().curve("z")


def test_repr_says_what_it_is():
    assert repr(acts()) == (
        "ActivationSet(unnamed on toy: 6 texts x 4 places, 0.0 MB; resid_pre 0-1, resid_post 1, embed)"
    )


def test_names_from_data_are_escaped_in_the_repr():
    hostile = ActivationSet({("embed", None): torch.zeros(N, 1)}, task(), {"model": "\x1b[31m", "points": ["embed"]})
    assert "\x1b" not in repr(hostile)


@pytest.mark.parametrize("shape", [(N,), (N + 1, 3), (N, 3, 1)])
def test_only_matrices_with_a_row_for_each_example(shape):
    with pytest.raises(DataError, match=r"embed must be \[6, width\]"):
        ActivationSet({("embed", None): torch.zeros(shape)}, task())

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from probekit.activations.activations import ActivationSet
from probekit.tasks.base import Task

N_LAYERS, D = 4, 8


def make_world(n=300, n_classes=2, seed=0, strength=(0.0, 0.6, 1.5, 1.5, 1.5), **changes: Any) -> ActivationSet:
    """Activations in which the class is written along planted directions, more strongly from layer to layer.

    `strength` is that of each place: the inputs of the blocks, then the output.
    """
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(n) % n_classes)
    other = rng.integers(2, size=n)
    planted = np.linalg.qr(rng.normal(size=(D, D)))[0] * 2
    places = [("resid_pre", i) for i in range(N_LAYERS)] + [("resid_post", N_LAYERS - 1)]
    task = Task(
        name="planted",
        inputs=changes.pop("inputs", [f"text number {i}" for i in range(n)]),
        labels=changes.pop("labels", {"kind": labels, "other": other}),
        label_names={"kind": [f"class {k}" for k in range(n_classes)], "other": ["no", "yes"]},
        splits=changes.pop("splits", np.array(["train", "train", "validation", "test"])[np.arange(n) % 4]),
        target="kind",
        groups=changes.pop("groups", None),
    )
    tensors = {
        place: torch.from_numpy((rng.normal(size=(n, D)) + s * planted[labels % D]).astype(np.float32))
        for place, s in zip(places, strength, strict=True)
    }
    tensors |= changes.pop("extra", {})
    assert not changes
    return ActivationSet(tensors, task)


@pytest.fixture(scope="session")
def world() -> Callable[..., ActivationSet]:
    return make_world

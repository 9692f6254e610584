"""Texts made of random tokens, in which one token carries the label."""

import numpy as np
import torch

from probekit.activations.activations import ActivationSet
from probekit.activations.layout import Layout
from probekit.points import Place
from probekit.selections import ALL
from probekit.tasks.base import Task

Sequences = tuple[list[np.ndarray], np.ndarray]


def marked(n: int, seed: int, marked_class: int = 1, d: int = 12) -> Sequences:
    """Every text of one class has a token, never the last, that stands out along feature 0."""
    rng = np.random.default_rng(seed)
    y, texts = rng.integers(2, size=n), []
    for label in y:
        x = rng.normal(size=(rng.integers(20, 60), d))
        x[rng.integers(len(x) - 1), 0] += 7.0 * (label == marked_class)
        texts.append(x.astype(np.float32))
    return texts, y


def keyed(n: int, seed: int, d: int = 12) -> Sequences:
    """Feature 0 marks one token of every text, never the last, and only that token's feature 1 carries the label.

    Feature 1 of the other tokens is as large and random, so the label drowns in the mean, and no linear score of tokens
    has its highest value where the label is.
    """
    rng = np.random.default_rng(seed)
    y, texts = rng.integers(2, size=n), []
    for label in y:
        x = rng.normal(size=(rng.integers(20, 60), d))
        x[:, 1] += 2 * rng.choice([-1, 1], size=len(x))
        at = rng.integers(len(x) - 1)
        x[at, :2] += 5, 0
        x[at, 1] = rng.normal() + 2 * (2 * label - 1)
        texts.append(x.astype(np.float32))
    return texts, y


def two_cues(n: int, seed: int, marked_class: int = 1, d: int = 12) -> Sequences:
    """Every text of one class has a token that stands out along feature 0, half of them upwards, half downwards.

    No linear score has its highest value at both, so one head finds half of them.
    """
    rng = np.random.default_rng(seed)
    y, texts = rng.integers(2, size=n), []
    for label in y:
        x = rng.normal(size=(rng.integers(20, 60), d))
        x[rng.integers(len(x) - 1), 0] += 7.0 * (label == marked_class) * rng.choice([-1, 1])
        texts.append(x.astype(np.float32))
    return texts, y


def activations_of(layers: list[list[np.ndarray]], y: np.ndarray, **changes) -> ActivationSet:
    """Activations of all tokens; half of the texts train, a quarter chooses, a quarter tests."""
    n = len(y)
    task = Task(
        **{
            "name": "planted",
            "inputs": [f"text number {i}" for i in range(n)],
            "labels": {"kind": y},
            "label_names": {"kind": [f"class {k}" for k in range(int(y.max()) + 1)]},
            "splits": np.array(["train", "train", "validation", "test"])[np.arange(n) % 4],
        }
        | changes
    )
    lengths = np.array([len(x) for x in layers[0]])
    tensors: dict[Place, torch.Tensor] = {
        Place("resid_pre", i): torch.from_numpy(np.concatenate(texts)) for i, texts in enumerate(layers)
    }
    return ActivationSet(tensors, task, None, Layout([ALL], lengths, 0))

"""Planted activations with known signal, and results of hand-made predictions."""

from typing import Any

import numpy as np
import torch

import probekit as pk
from probekit.activations.activations import Activations, ActivationSet
from probekit.evaluation import LayerResult, ProbeResults
from probekit.evaluation.results.row_scores import RowScores
from probekit.evaluation.scores.metrics import Predictions, metrics_of
from probekit.points import Place
from probekit.tasks.base import Task

D = 6


def planted(
    n: int = 240,
    strength: tuple[float, ...] = (0.0, 0.8, 1.6),
    seed: int = 0,
    *,
    classes: tuple[str, ...] = ("no", "yes"),
    splits_seed: int = 0,
    **meta: Any,
) -> ActivationSet:
    """Activations of the same texts and labels whatever the seed, which draws the noise; the signal rises by layer."""
    labels = np.random.default_rng(99).permutation(np.arange(n) % len(classes))
    rng = np.random.default_rng(seed)
    directions = np.eye(D)[: len(classes)]
    last = len(strength) - 1
    places: list[Place] = [*(Place("resid_pre", i) for i in range(last)), Place("resid_post", last - 1)]
    splits = np.array(["train", "train", "validation", "test"])[np.arange(n) % 4]
    splits = splits[np.random.default_rng(splits_seed).permutation(n)] if splits_seed else splits
    task = Task(
        name="planted",
        inputs=[f"text number {i}" for i in range(n)],
        labels={"kind": labels},
        label_names={"kind": list(classes)},
        splits=splits,
        target="kind",
    )
    tensors: dict[Place, torch.Tensor] = {
        place: torch.from_numpy((rng.normal(size=(n, D)) + s * directions[labels]).astype(np.float32))
        for place, s in zip(places, strength, strict=True)
    }
    tensors |= {Place("attn_out", i): 1.0 * tensors[Place("resid_pre", last - 1 - i)] for i in range(last)}
    acts = ActivationSet(tensors, task)
    acts.meta.update({"model": "tiny", "task": "planted", **meta})
    return acts


def trained(acts: Activations, **options: Any) -> ProbeResults:
    return pk.train_probes(acts, **{"C": 1.0, "controls": 0, "codelength": False, "quick": True, **options})


def made(
    predicted: Any,
    truth: Any,
    *,
    scores: Any = None,
    ids: Any = None,
    groups: Any = None,
    classes: tuple[str, ...] = ("no", "yes"),
    metric: str = "accuracy",
    **meta: Any,
) -> ProbeResults:
    """Results of one layer whose test predictions are these."""
    predicted, truth = np.array(predicted), np.array(truth)
    n = len(truth)
    values = np.asarray(predicted if scores is None else scores, dtype=np.float64)
    found = Predictions(truth, predicted, values, len(classes))
    metrics = metrics_of(found, [metric])
    layer = LayerResult("resid_pre", 0, 1.0, True, {"validation": metrics, "test": metrics}, {}, [(1.0, 0.5)])
    ids = [f"row {i}" for i in range(n)] if ids is None else list(ids)
    rows = RowScores(
        ids=np.array(ids, dtype=object),
        digests=np.array([f"{hash(one) & 0xFFFF:016x}" for one in ids], dtype=object),
        splits=np.array(["test"] * n, dtype=object),
        labels=truth,
        groups=np.arange(n) if groups is None else np.asarray(groups),
        scores={"resid_pre.0": values},
        predicted={"resid_pre.0": predicted} if classes else {},
    )
    about = {"model": "tiny", "task": "made", "label": "kind", "point": "resid_pre", "position": "last"}
    about |= {"probe": "logistic", "headline": metric, "n_layers": 2, "n": {"test": n}, "seed": 0}
    about |= {"classes": list(classes), "n_classes": len(classes), "counts": {"test": {}}}
    return ProbeResults([layer], [], {**about, **meta}, rows=rows)

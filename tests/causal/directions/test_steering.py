"""Steering vectors of a task: from rows, from sums, from trained probes, in a model and in files."""

from typing import Any

import gguf
import numpy as np
import pytest
import torch

import probekit as pk
from probekit.activations import ActivationSet, Statistics
from probekit.causal.directions.directions import moments_of_rows
from probekit.causal.directions.placebos import angle
from probekit.errors import DataError, UsageError
from probekit.models.families.gpt2 import GPT2, GPT2Config

N, D, LAYERS = 120, 16, 3
PLACES: list[tuple[str, int | None]] = [("resid_pre", 0), ("resid_pre", 1), ("resid_pre", 2), ("resid_post", 2)]
NAMES = ["red", "green", "blue"]


@pytest.fixture(scope="module")
def acts():
    rng = np.random.default_rng(0)
    color, size = rng.integers(0, 3, N), rng.integers(0, 2, N)
    splits = np.repeat(["train", "validation", "test"], N // 3)
    task = pk.Task(
        "things",
        [[i % 7, i % 5] for i in range(N)],
        {"color": color, "size": size, "weight": rng.standard_normal(N)},
        {"color": NAMES, "size": ["small", "large"], "weight": []},
        splits,
        target="size",
    )
    x = {place: torch.from_numpy(rng.standard_normal((N, D)) + 2 * np.eye(D)[color] + 5) for place in PLACES}
    for i, place in enumerate(PLACES):
        x[place][:, 5] += torch.from_numpy(3.0 * (i + 1) * size)
    return ActivationSet(x, task)


def test_the_difference_of_training_means_at_every_place(acts):
    found = pk.steering_vectors(acts)
    train, size = acts.splits == "train", acts.labels["size"]
    assert list(found) == PLACES
    assert (found.label, found.classes) == ("size", ("small", "large"))
    for place in PLACES:
        x = acts[place].numpy()[train]
        by_hand = x[size[train] == 1].mean(axis=0) - x[size[train] == 0].mean(axis=0)
        assert found[place].vector_D.numpy() == pytest.approx(by_hand / np.linalg.norm(by_hand), abs=1e-12)
    assert "resid_pre.1" in found
    assert "resid_pre.7" not in found
    with pytest.raises(UsageError, match="scale is a number"):
        found.edits("a", 1)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match=r"layer 9 is not in 0\.\.2"):
        found.edits(1, 9)
    with pytest.raises(UsageError, match=r"the last place is resid_post.2: edit it with"):
        found.edits(1, 3)
    with pytest.raises(UsageError, match=r"layers are 5, .* got None"):
        found.edits(1, None)  # pyright: ignore[reportArgumentType]
    assert repr(found) == "SteeringVectors('size', 'small' -> 'large', mean-difference; resid_pre 0-2, resid_post 2)"


@pytest.mark.parametrize("method", ["mean-difference", "lda"])
def test_sums_give_what_rows_give(acts, method):
    train = acts.splits == "train"
    labels = {name: acts.labels[name][train] for name in ("size", "color")}
    sums: dict[Any, Any] = {
        (place, "train"): moments_of_rows(acts[place][torch.from_numpy(train)], labels, {"size": 2, "color": 3})
        for place in PLACES
    }
    stats = Statistics(
        sums, {name: acts.label_names[name] for name in ("size", "color")}, {**acts.meta, "target": "size"}
    )
    with pytest.raises(UsageError, match="statistics are of one position"):
        pk.steering_vectors(stats, position="last")
    assert pk.steering_vectors(stats).label == "size"
    from_sums = pk.steering_vectors(stats, "color", method, ("red", "blue"))
    from_rows = pk.steering_vectors(acts, "color", method, (0, 2))
    for place in PLACES:
        assert angle(from_sums[place].vector_D, from_rows[place].vector_D) < 1e-6
        assert from_rows[place].vector_D[2] > from_rows[place].vector_D[0]  # from red, the first, to blue


def test_probes_give_their_own_directions(acts):
    results = pk.train_probes(acts, label="size", C=1.0, quick=True)
    found = pk.steering_vectors(acts, "size", "probe", results=results)
    for layer in results.layers:
        weights = layer.probe.direction
        by_hand = weights / np.linalg.norm(weights)
        assert found[layer.point, layer.layer].vector_D.numpy() == pytest.approx(by_hand)
    with pytest.raises(UsageError, match="the results are of 'size', expected 'color'"):
        pk.steering_vectors(acts, "color", "probe", (0, 1), results)


def test_a_model_runs_with_them(acts):
    model = GPT2(GPT2Config(d_model=D, n_heads=2, n_layers=LAYERS, n_ctx=4, d_mlp=8, d_vocab=9)).init_weights(0).eval()
    assert sum(p.numel() for p in model.parameters()) < 10_000
    tokens, direction = torch.tensor([[1, 2, 3]]), pk.steering_vectors(acts)["resid_pre.1"]
    with torch.no_grad():
        _, before = model.run_with_cache(tokens)
        with model.edited(pk.steering_vectors(acts).edits(-3, layers=1), positions="last"):
            _, after = model.run_with_cache(tokens)
    moved = (after["resid_pre", 1] - before["resid_pre", 1])[0].double() @ direction.vector_D
    assert moved.tolist() == pytest.approx([0, 0, -3 * direction.std], abs=1e-5)


def test_the_control_vector_leaves_out_what_llama_cpp_cannot_steer(acts, tmp_path):
    found = pk.steering_vectors(acts)
    reader = gguf.GGUFReader(found.export(tmp_path / "v.gguf"))
    assert [tensor.name for tensor in reader.tensors] == ["direction.1", "direction.2"]
    for tensor, place in zip(reader.tensors, PLACES[2:], strict=True):
        assert tensor.data == pytest.approx(found[place].step_D.numpy(), rel=1e-6)
    assert found.export(tmp_path / "v.safetensors").exists()


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"label": "colour"}, UsageError, "did you mean color"),
        ({"label": "color"}, UsageError, r"name two, classes=\(from, to\)"),
        ({"label": "color", "classes": ("red", "pink")}, UsageError, "classes of 'color' are 'red, green, blue'"),
        ({"label": "color", "classes": (0, 3)}, UsageError, "classes of 'color' are"),
        ({"label": "color", "classes": (1, 1)}, UsageError, "two different numbers"),
        ({"label": "weight"}, UsageError, "holds numbers, and steering goes from class to class"),
        ({"method": "pca"}, UsageError, "method .* is one of mean-difference, lda, probe, latent; got 'pca'"),
        ({"method": "probe"}, UsageError, "give results=train_probes"),
        ({"method": "probe", "results": 3}, UsageError, "give results=train_probes"),
        ({"label": "color", "classes": "ab"}, UsageError, "name two, classes"),
        ({"label": "color", "classes": 3}, UsageError, "name two, classes"),
        ({"label": "color", "classes": ("red", ["blue"])}, UsageError, "classes of 'color' are"),
        ({"point": "mlp_out"}, UsageError, "mlp_out"),
    ],
)
def test_bad_input_is_refused(acts, given, error, message):
    with pytest.raises(error, match=message):
        pk.steering_vectors(acts, **given)


def test_what_are_no_activations_is_refused(acts):
    with pytest.raises(UsageError, match="expected activations or statistics, got a dict"):
        pk.steering_vectors({})  # pyright: ignore[reportArgumentType]
    task = acts.task.subset(np.flatnonzero(acts.splits == "test"))
    some = ActivationSet({PLACES[0]: acts[PLACES[0]][: len(task)]}, task)
    with pytest.raises(DataError, match="no training rows"):
        pk.steering_vectors(some)

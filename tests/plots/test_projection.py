"""The projection of a place: an orthogonal picture of the test rows, with the probe's own boundary."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.text import Text
from scipy.linalg import subspace_angles
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from probekit.activations.activations import ActivationSet
from probekit.activations.layout import Layout
from probekit.errors import DataError, UsageError
from probekit.evaluation import ProbeResults
from probekit.evaluation.projection import orthogonal_component, project
from probekit.plots import plot_projection, save_projection_plot
from probekit.points import Place
from probekit.selections import Selection
from probekit.tasks.base import Task
from probekit.verbs.train_probes import train_probes

N, D = 240, 12
HOSTILE = "<b>$x_1$\x1b\u202e"
HOW: dict[str, Any] = {"quick": True, "C": 1.0, "baselines": False}


def world(C: int, names: list[str] | None = None, width: int = D, splits: Any = None) -> ActivationSet:
    """Two layers of noise with different spreads; the second holds the label, 0..C-1, or a number for C = 0."""
    rng = np.random.default_rng(C)
    labels: Any = rng.integers(0, C, N) if C else rng.standard_normal(N)
    X = rng.standard_normal((2, N, width)) * np.linspace(3, 0.5, width)
    X[1] += (np.eye(C)[labels] if C else labels[:, None]) @ rng.standard_normal((C or 1, width)) * 1.5
    splits = np.array(["train", "train", "validation", "test"])[np.arange(N) % 4] if splits is None else splits
    names = names or [f"class {k}" for k in range(C)]
    task = Task(
        name="made up", inputs=[[i] for i in range(N)], labels={"y": labels}, label_names={"y": names if C else []},
        splits=splits, target="y",
    )  # fmt: skip
    tensors = {Place("resid_pre", i): torch.from_numpy(X[i].astype(np.float32)) for i in range(2)}
    return ActivationSet(tensors, task, None, Layout([Selection("last")], np.ones(N, dtype=np.int64), 0))


def draw(results: ProbeResults, acts: ActivationSet) -> Axes:
    figure = Figure(figsize=(6.4, 5.6), layout="constrained")
    ax = plot_projection(results, acts, None, figure.subplots())
    figure.draw_without_rendering()
    return ax


def rows_of(acts: ActivationSet, split: str, layer: int = 1) -> np.ndarray:
    return acts["resid_pre", layer].double().numpy()[acts.splits == split]


@pytest.mark.parametrize("probe", ["logistic", "mean-diff", "lda"])
def test_x_is_the_distance_to_the_boundary_and_y_the_first_orthogonal_component(probe: str) -> None:
    acts = world(2)
    results = train_probes(acts, probe=probe, **({**HOW, "C": None} if probe != "logistic" else HOW))
    found = project(results, acts, "resid_pre.1")
    w = results.layers[1].probe.direction
    X = rows_of(acts, "test")
    assert np.array_equal(found.labels, acts.labels["y"][acts.splits == "test"])
    np.testing.assert_allclose(found.x * np.linalg.norm(w), results.layers[1].probe.decision_function(X))
    predicted = results.layers[1].probe.predict(X)
    assert np.array_equal(found.x > 0, predicted == 1)
    u = w / np.linalg.norm(w)
    others = np.concatenate([rows_of(acts, "train"), rows_of(acts, "validation")])
    pca = PCA(1).fit(others - np.outer((others - others.mean(0)) @ u, u))
    y = pca.transform(X - np.outer((X - others.mean(0)) @ u, u))[:, 0]
    np.testing.assert_allclose(found.y, y * np.sign(y @ found.y), atol=1e-6)
    total = X.var(axis=0).sum()
    np.testing.assert_allclose(found.shares, [(X @ u).var() / total, y.var() / total], rtol=1e-6)


def test_a_regression_has_its_predictions_on_x() -> None:
    acts = world(0)
    results = train_probes(acts, **HOW)
    found = project(results, acts)
    np.testing.assert_allclose(found.x, results.best.probe.predict(rows_of(acts, "test")))
    assert found.names == []
    assert draw(results, acts).get_xlabel().startswith("value predicted by the ridge probe")


def test_more_classes_are_shown_in_the_plane_of_the_first_two_discriminants_of_the_scores() -> None:
    acts = world(4)
    results = train_probes(acts, **HOW)
    found = project(results, acts, "resid_pre.1")
    probe = results.layers[1].probe
    other = acts.splits != "test"
    X = acts["resid_pre", 1].double().numpy()
    lda = LinearDiscriminantAnalysis(solver="svd").fit(probe.decision_function(X[other]), acts.labels["y"][other])
    plane = probe.direction.T @ lda.scalings_[:, :2]
    axes, *_ = np.linalg.lstsq(X[~other] - X[other].mean(0), np.stack([found.x, found.y], axis=1), rcond=None)
    np.testing.assert_allclose(axes.T @ axes, np.eye(2), atol=1e-6)  # orthonormal: distances are not distorted
    assert subspace_angles(axes, plane).max() < 1e-4
    assert abs(axes[:, 0] @ plane[:, 0]) / np.linalg.norm(plane[:, 0]) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("shape", [(30, 80), (80, 30), (5, 2)])
def test_the_component_is_the_same_from_either_gram_matrix(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal(shape) * np.linspace(1, 2, shape[1])
    u = rng.standard_normal(shape[1])
    u /= np.linalg.norm(u)
    found = orthogonal_component(X, u)
    R = (X - X.mean(0)) @ (np.eye(len(u)) - np.outer(u, u))
    assert abs(found @ u) < 1e-12
    assert np.linalg.norm(R @ found) == pytest.approx(np.linalg.svd(R)[1][0])


def test_rows_that_vary_along_the_probe_alone_are_drawn() -> None:
    u = np.eye(3)[1]
    found = orthogonal_component(np.outer([1.0, 2.0, 5.0], u), u)
    assert abs(found @ u) < 1e-12
    assert np.linalg.norm(found) == pytest.approx(1)


def test_only_rows_that_tested_are_drawn() -> None:
    splits = np.array(["train", "train", "validation", "test"])[np.arange(N) % 4]
    acts = world(2, splits=splits)
    folds = train_probes(acts, folds=3, **HOW)
    assert len(project(folds, acts, "resid_pre.0").x) == N
    assert len(project(train_probes(acts, **HOW), acts).x) == (splits == "test").sum()


def test_other_activations_are_refused() -> None:
    acts = world(2)
    results = train_probes(acts, **HOW)
    other = ActivationSet({place: -acts[place] for place in acts}, acts.task, None, acts.layout)
    with pytest.raises(DataError, match="not the activations that were probed"):
        project(results, other)
    named = ActivationSet(dict(acts), replace(acts.task, ids=[f"other:{i}" for i in range(N)]), None, acts.layout)
    with pytest.raises(DataError, match="60 of 60 test rows are not in these activations"):
        project(results, named)
    with pytest.raises(UsageError, match="was not probed"):
        project(results, acts, "resid_pre.7")
    with pytest.raises(DataError, match="takes 12"):
        project(results, world(2, width=13))


@pytest.mark.parametrize("probe", ["mlp"])
def test_a_probe_without_a_direction_is_refused(probe: str) -> None:
    acts = world(2)
    with pytest.raises(UsageError, match="has none"):
        project(train_probes(acts, probe=probe, quick=True), acts)


@pytest.mark.parametrize("C", [2, 3, 9])
def test_every_class_is_named_and_no_text_lies_on_another(C: int) -> None:
    acts = world(C, names=[HOSTILE, *(f"class {k}" for k in range(1, C))])
    ax = draw(train_probes(acts, **HOW), acts)
    points = [each for each in ax.collections if isinstance(each, PathCollection)]
    assert sum(len(np.asarray(each.get_offsets())) for each in points) == (acts.splits == "test").sum()
    assert len(points) == min(C, 7)  # of more, the last share one
    texts = [text for text in ax.findobj(Text) if isinstance(text, Text) and text.get_text() and text.get_visible()]
    names = [text.get_text() for text in texts]
    assert any("\\x1b" in name and "$x_1$" in name for name in names)  # escaped, and no mathtext
    assert not any("\x1b" in name or "\u202e" in name for name in names)
    legend = ax.get_legend()
    assert legend is not None
    figure = ax.get_figure(root=True)
    assert figure is not None
    frame = figure.bbox
    for text in texts:
        box = text.get_window_extent()
        assert box.x1 <= frame.x1 + 1 or text in ax.texts
        assert box.y0 >= frame.y0 - 1
    assert legend.get_window_extent().y1 <= ax.xaxis.label.get_window_extent().y0 + 1


def test_the_files_are_the_same_bytes_each_time(tmp_path: Path) -> None:
    acts = world(2)
    results = train_probes(acts, **HOW)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        save_projection_plot(results, acts, tmp_path / name)
    for file in ("projection.png", "projection.svg"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert (
        results.plot_projection(acts, "resid_pre.0", Figure().subplots()).get_title(loc="left").endswith("resid_pre.0")
    )

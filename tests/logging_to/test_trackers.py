"""What trackers are given: stand-ins that record their calls, and tensorboard itself where it is installed."""

import importlib.machinery
import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import probekit as pk
from probekit.activations.activations import ActivationSet
from probekit.activations.layout import Layout
from probekit.cli.main import run
from probekit.errors import StorageError, UsageError
from probekit.logging_to.trackers import LoggedRun, draw, log_results, logged_run
from probekit.points import Place
from probekit.selections import Selection
from probekit.tasks.base import Task

N, D = 120, 4


@pytest.fixture(scope="module")
def acts() -> ActivationSet:
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=N)
    task = Task(
        name="a/b\x1b[31m",
        inputs=[f"text {i}" for i in range(N)],
        labels={"kind": labels, "other/one": rng.integers(2, size=N)},
        label_names={"kind": ["no", "yes"], "other/one": ["no", "yes"]},
        splits=np.array(["train", "train", "validation", "test"])[np.arange(N) % 4],
        target="kind",
    )
    x = {("resid_pre", i): rng.normal(size=(N, D)) + i * labels[:, None] for i in range(3)}
    return ActivationSet({place: torch.from_numpy(v.astype(np.float32)) for place, v in x.items()}, task)


OPTIONS: dict[str, Any] = {"C": 1.0, "controls": 1, "codelength": False}


@pytest.fixture(scope="module")
def results(acts: ActivationSet) -> pk.ProbeResults:
    return pk.train_probes(acts, **OPTIONS)


def module(name: str, **content: Any) -> types.ModuleType:
    made = types.ModuleType(name)
    made.__spec__ = importlib.machinery.ModuleSpec(name, None)
    vars(made).update(content)
    return made


class StandIn:
    """A run, and the functions of the module: every call is recorded."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.summary, self.config = self, self

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> "StandIn":
            self.calls.append((name, args, kwargs))
            return self

        return call

    def named(self, name: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        return [(args, kwargs) for each, args, kwargs in self.calls if each == name]


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> tuple[StandIn, types.ModuleType]:
    seen = StandIn()
    made = module("wandb", run=None, init=seen.init, Image=lambda path: ("image", Path(path).read_bytes()[:4]))
    monkeypatch.setitem(sys.modules, "wandb", made)
    return seen, made


def check_content(run: LoggedRun, results: pk.ProbeResults) -> None:
    """Every number of the table is there once, under its layer."""
    assert [step for step, _ in run.steps] == list(range(len(results.layers)))
    for (_, values), layer in zip(run.steps, results.layers, strict=True):
        for split, metrics in layer.metrics.items():
            for name, value in metrics.items():
                assert values[f"{split}/{name}"] == value
        low, high = layer.intervals["accuracy"]
        assert (values["test/accuracy_low"], values["test/accuracy_high"]) == (low, high)
        assert values["control/test/accuracy"] == layer.control
    for one in results.baselines:
        assert run.numbers[f"baseline/{one.name}/test/accuracy"] == one.metrics["test"]["accuracy"]
    assert run.numbers["estimate/accuracy"] == results.estimate[0]
    assert all(np.isfinite(value) for _, values in run.steps for value in values.values())
    json.dumps(run.settings, allow_nan=False)
    assert "\x1b" not in run.name


def test_a_run_has_every_number(results: pk.ProbeResults) -> None:
    check_content(logged_run(results), results)


def test_several_curves_have_prefixes(acts: ActivationSet) -> None:
    curves = pk.train_probes(acts, labels="all", points="all", **OPTIONS)
    run = logged_run(curves)
    values = dict(run.steps)[1]
    assert {key.split("/")[0] for key in values} == {"kind", "other|one"}
    curve = curves["kind", "resid_pre"]
    assert values["kind/resid_pre/test/accuracy"] == curve.layers[1].metrics["test"]["accuracy"]


def test_wandb_gets_the_curve_the_picture_and_the_settings(acts: ActivationSet, wandb: Any) -> None:
    seen, _ = wandb
    results = pk.train_probes(acts, log_to="wandb", **OPTIONS)
    ((_, how),) = seen.named("init")
    assert how["project"] == "probekit"
    assert how["config"]["label"] == "kind"
    logged = [args[0] for args, _ in seen.named("log")]
    steps = [(values.pop("layer"), values) for values in logged if "layer" in values]
    (numbers,) = [args[0] for args, _ in seen.named("update")]
    check_content(LoggedRun(how["name"], how["config"], steps, numbers), results)
    assert logged[-1] == {"accuracy_by_layer": ("image", b"\x89PNG")}
    defined = {args[0] for args, kwargs in seen.named("define_metric") if kwargs == {"step_metric": "layer"}}
    assert defined == {key for _, values in steps for key in values}
    assert len(seen.named("finish")) == 1


def test_an_active_run_of_wandb_goes_on(results: pk.ProbeResults, wandb: Any) -> None:
    seen, made = wandb
    made.run = seen
    log_results(results, "wandb")
    assert not seen.named("init")
    assert not seen.named("finish")
    assert seen.named("log")


def test_results_outlive_a_tracker_that_fails(acts: ActivationSet, results: pk.ProbeResults, wandb: Any) -> None:
    """In Python a warning, since an error would lose the fits; the command has written them, and says it on exit."""

    def refuse(**_: Any) -> None:
        raise ConnectionError("no route\nto host\x1b[31m")

    wandb[1].init = refuse
    says = r"wandb did not take the run \(ConnectionError: no route to host.*\); the results are complete without it"
    with pytest.raises(StorageError, match=says) as caught:
        log_results(results, "wandb")
    assert "\x1b" not in str(caught.value)
    with pytest.warns(UserWarning, match=says):
        again = pk.train_probes(acts, log_to="wandb", quick=True, layers="0", C=1.0)
    assert again.layers


def test_trackio_gets_the_same(results: pk.ProbeResults, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = StandIn()
    made = module("trackio", init=seen.init, log=seen.log, finish=seen.finish, Image=lambda path: "image")
    monkeypatch.setitem(sys.modules, "trackio", made)
    log_results(results, "trackio")
    ((_, how),) = seen.named("init")
    *steps, (last, at) = seen.named("log")
    numbers = dict(last[0])
    assert numbers.pop("accuracy_by_layer") == "image"
    curve = [(kwargs["step"], {key: v for key, v in args[0].items() if key != "layer"}) for args, kwargs in steps]
    check_content(LoggedRun(how["name"], how["config"], curve, numbers), results)
    assert at == {"step": len(results.layers)}
    assert len(seen.named("finish")) == 1


def test_tensorboard_reads_back_what_was_logged(
    results: pk.ProbeResults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if importlib.util.find_spec("tensorboard") is None:
        pytest.skip("tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import (  # pyright: ignore[reportMissingImports]
        EventAccumulator,
    )

    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        log_results(results, "tensorboard")
    first, second = sorted((tmp_path / "tensorboard").iterdir())
    assert second.name == f"{first.name}-2"
    events = EventAccumulator(str(first)).Reload()
    for i, layer in enumerate(results.layers):
        value = next(event.value for event in events.Scalars("test/accuracy") if event.step == i)
        assert value == pytest.approx(layer.metrics["test"]["accuracy"], rel=1e-6)
    assert events.Tags()["images"] == ["accuracy_by_layer"]


@pytest.mark.parametrize("name", ["wandb", "tensorboard", "trackio"])
def test_a_tracker_that_is_not_installed(
    name: str, acts: ActivationSet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Said before the store is looked for, with the line that installs it."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match=f"pip install {name}"):
        pk.train_probes(acts, log_to=name)
    assert run(["train-probe", "nowhere", "--log-to", name]) == 2
    assert f"--log-to {name} needs the package {name}, which is not installed: pip install {name}" in (
        capsys.readouterr().err
    )


def test_an_unknown_tracker_is_refused(acts: ActivationSet) -> None:
    with pytest.raises(UsageError, match="unknown tracker 'mlflow'; take wandb, tensorboard, trackio"):
        pk.train_probes(acts, log_to="mlflow")


def test_what_is_no_curve_is_refused(acts: ActivationSet, wandb: Any) -> None:
    with pytest.raises(UsageError, match="and log_to='wandb' exclude each other"):
        pk.train_probes(acts, log_to="wandb", shift_column="length")


def test_grids_in_folds_have_their_procedure_and_a_picture(acts: ActivationSet, tmp_path: Path) -> None:
    how: dict[str, Any] = {"by": "position", "folds": 3, "C": 1.0, "quick": True, "least_texts": 1}
    one: Any = pk.train_probes(acts, **how)
    several: Any = pk.train_probes(acts, labels=["kind", "other/one"], **how)
    run_of_one, run_of_all = logged_run(one), logged_run(several)
    assert run_of_one.numbers["estimate/accuracy"] == pytest.approx(one.estimate[0])
    assert run_of_one.numbers["procedure/test/accuracy"] == pytest.approx(one.estimate[0])
    assert run_of_all.numbers["kind/resid_pre/procedure/test/accuracy"] == pytest.approx(one.estimate[0])
    assert not any("nan" in name for run in (run_of_one, run_of_all) for name in run.numbers)
    assert draw(one, tmp_path).name == "positions.png"
    assert draw(several, tmp_path).name == "grids.png"


def test_each_head_is_logged_with_the_scores_of_its_curve(acts: ActivationSet, wandb: Any) -> None:
    """Two heads of three numbers; each is the curve that it has alone."""
    rng, n_heads = np.random.default_rng(1), 2
    numbers = rng.normal(size=(2, N, n_heads * 3)).astype(np.float32)
    x = {Place("z", layer): torch.from_numpy(numbers[layer]) for layer in range(2)}
    meta = {"model": "noise", "task": "noise", "points": ["z"], "n_layers": 2, "config": {"n_heads": n_heads}}
    heads = ActivationSet(x, acts.task, meta, Layout([Selection("last")], np.ones(N, dtype=np.int64), 0))
    how: dict[str, Any] = {"C": 1.0, "quick": True}
    pk.train_probes(heads, by="head", log_to="wandb", **how)
    run = logged_run(pk.train_probes(heads, by="head", **how))
    logged = [args[0] for args, _ in wandb[0].named("log") if "layer" in args[0]]
    assert logged == [{"layer": step, **values} for step, values in run.steps]
    for head in range(n_heads):
        own = {place: heads[place][:, head * 3 : head * 3 + 3].clone() for place in x}
        alone = pk.train_probes(ActivationSet(own, acts.task), **how)
        for (_, values), layer in zip(run.steps, alone.layers, strict=True):
            assert values[f"head {head}/test/accuracy"] == layer.metrics["test"]["accuracy"]

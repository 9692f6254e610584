"""A folder of results of every kind, of a tiny model on texts of a few letters."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from user_files import write_model

import probekit as pk
from probekit.activations.activations import Activations
from probekit.options import CausalOptions, CompareOptions, ProbeOptions
from probekit.options.question import asked_by
from probekit.tasks.base import Task

N = 48
METHODS = ["interchange", "erase", "steer", "patch"]
TEXTS = [f"t {i:02} {'yes' if i % 2 else 'bad'}" for i in range(N)]


def make_folders(home: Path) -> Path:
    """A store at home/store with results of every kind in its results/; those of transfer, compare, sweep beside."""
    model = pk.load_model(str(write_model(home / "model", n_layers=1)))
    task = made_task()
    how: dict[str, Any] = {"progress": False, "points": ["resid_pre", "z"]}
    acts: Any = pk.extract(model, task, out=home / "store", position="last", **how)
    every = pk.extract(model, task, position="all", progress=False, points=["resid_pre"])
    other = pk.extract(model, made_task("u"), position="last", **how)
    home = home / "store/results"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        full = pk.train_probes(acts, point="resid_pre", C=[0.1, 1.0], controls=1, random_init=pk.random_init_of(acts))
        full.meta["asked"] = asked_by(ProbeOptions(C=[0.1, 1.0]), random_init=True)
        full.save(home / "full")
        _save_curves(home, acts, every)
        pk.transfer([acts, other], point="resid_pre", C=[1.0]).save(home / "transfer")
        used = pk.causal_curve(model, acts, full, methods=METHODS, answers=["a", "b"], placebos=3, scales=[1.0])
        used.meta["asked"] = asked_by(CausalOptions(answers=["a", "b"]), probes="full")
        used.save(home / "causal")
        compared = pk.compare([home / "full", home / "quick"])
        compared.meta["asked"] = asked_by(CompareOptions(), runs=["full", "quick"])
        compared.save(home / "compared")
        pk.sweep(model, {"t": task}, out=home / "swept", points=["resid_pre"], probe="mean-diff", quick=True)
    return home


def made_task(name: str = "t") -> Task:
    numbers = np.arange(N)
    return Task(
        name=name,
        inputs=[f"{name} {text}" for text in TEXTS],
        labels={"kind": numbers % 2, "third": numbers % 3, "size": numbers * 1.0},
        label_names={"kind": ["no", "yes"], "third": ["a", "b", "c"], "size": []},
        splits=np.array(["train", "train", "validation", "test"])[numbers // 6 % 4],
        target="kind",
        columns={"source": np.array(["x", "y", "z"] * (N // 3), dtype=object)},
    )


def _save_curves(home: Path, acts: Activations, every: Activations) -> None:
    quick: dict[str, Any] = {"quick": True, "point": "resid_pre"}
    made: dict[str, Callable[[], Any]] = {
        "quick": lambda: pk.train_probes(acts, probe="mean-diff", **quick),
        "three": lambda: pk.train_probes(acts, label="third", C=[1.0], **quick),
        "numbers": lambda: pk.train_probes(acts, label="size", **quick),
        "folds": lambda: pk.train_probes(acts, folds=3, C=[1.0], **quick),
        "nuisance": lambda: pk.train_probes(acts, nuisance="source", C=[1.0], **quick),
        "shift": lambda: pk.train_probes(acts, shift_column="source", least_texts=1, C=[1.0], **quick),
        "tokens": lambda: pk.train_probes(every, C=[1.0], probe="attention", **quick),
        "positions": lambda: pk.train_probes(every, by="position", least_texts=1, C=[1.0], **quick),
        "heads": lambda: pk.train_probes(acts, by="head", point="z", C=[1.0], quick=True),
        "grids": lambda: pk.train_probes(
            acts, by="head", labels=["kind", "third"], point="z", probe="mean-diff", quick=True
        ),
        "curves": lambda: pk.train_probes(
            acts, points=["resid_pre", "z"], labels=["kind", "third"], probe="mean-diff", quick=True
        ),
    }
    for name, make in made.items():
        make().save(home / name)

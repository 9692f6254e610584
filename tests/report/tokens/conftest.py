"""Curves of a tiny model and of the model that comes with probekit, made once, and a browser."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from tiny_configs import tiny_model

from probekit.evaluation import ProbeResults
from probekit.models import load_model
from probekit.models.base import LanguageModel
from probekit.tasks import load_task
from probekit.tasks.base import Task
from probekit.verbs.extract import extract
from probekit.verbs.train_probes import train_probes

QUICK: dict[str, Any] = {"quick": True, "baselines": False}


def numbers_task(n: int = 120, n_classes: int = 2, regression: bool = False, **more: Any) -> Task:
    """Lists of token ids; the class is that of the last token, with a tenth at random."""
    rng = np.random.default_rng(3)
    inputs = [rng.integers(1, 50, size=rng.integers(3, 12)).tolist() for _ in range(n)]
    last = np.array([ids[-1] for ids in inputs])
    noisy = np.where(rng.random(n) < 0.1, rng.integers(n_classes, size=n), last * n_classes // 50)
    labels: Any = last + 0.5 if regression else noisy
    names = {} if regression else {"label_names": {"kind": [f"class {k}" for k in range(n_classes)]}}
    return Task("numbers", inputs, {"kind": labels}, **names, **more)


@pytest.fixture(scope="session")
def curve_of() -> Callable[..., tuple[ProbeResults, Any, Task]]:
    """A function (family, position, probe, task options) -> the curve, the activations and the task."""

    @cache
    def make(family: str = "gpt2", position: str | int = "last", probe: Any = None, **task: Any) -> Any:
        given = numbers_task(**task)
        acts = extract(tiny_model(family), given, position=position)
        return train_probes(acts, **({} if probe is None else {"probe": probe}), **QUICK), acts, given

    return make


@pytest.fixture(scope="session")
def agreement() -> tuple[ProbeResults, LanguageModel, Task]:
    """A curve of the model that comes with probekit, the model, and some texts."""
    model, task = load_model("agreement-gpt2"), load_task("agreement", limit=300)
    return train_probes(extract(model, task), **QUICK), model, task.subset(np.flatnonzero(task.splits == "test")[:12])


@pytest.fixture(scope="session")
def chromium(browser: Any) -> Any:
    """The browser, driven by selenium."""
    return browser.driver

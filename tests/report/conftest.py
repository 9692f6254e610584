"""A browser, and reports to open in it."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_curves import make
from open_pages import Pages

from probekit.cli import demo
from probekit.cli.main import run
from probekit.evaluation import ProbeResults
from probekit.evaluation.results.row_scores import RowScores
from probekit.options import TaskOptions

FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --window-size=1200,900"
)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    """Chromium without a window, driven by selenium; skips where one of them is missing."""
    programs = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
    if missing := [name for name, path in programs.items() if path is None]:
        pytest.skip(f"{' and '.join(missing)} not installed")
    webdriver = pytest.importorskip("selenium.webdriver")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(programs["chromium"])
    for flag in [*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(programs["chromedriver"])))
    driver.get("about:blank")  # leaves the page of a new tab, which has a log of its own
    yield Pages(driver)
    driver.quit()


@pytest.fixture(scope="session")
def demo_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page that `probekit demo` writes, of fewer texts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("demo"))
        patch.setattr(demo, "TaskOptions", partial(TaskOptions, limit=120))
        assert run(["demo", "--quiet"]) == 0
        (path,) = Path().resolve().glob("runs/*/report.html")
    return path


def rows_of(results: ProbeResults, n_classes: int, n: int = 60) -> RowScores:
    """Rows that were made up, of every place."""
    rng = np.random.default_rng(1)
    labels = rng.integers(n_classes, size=n)
    shape = (n,) if n_classes == 2 else (n, n_classes)
    scores = {layer.place: rng.normal(size=shape) for layer in results.layers}
    chosen = {place: (x > 0).astype(int) if x.ndim == 1 else x.argmax(axis=1) for place, x in scores.items()}
    splits = np.array(["validation", "test", "test"] * (n // 3), dtype=object)
    ids = np.array([str(i) for i in range(n)], dtype=object)
    return RowScores(ids, np.array([""] * n, dtype=object), splits, labels, np.arange(n), scores, chosen)


def curve(classes: tuple[str, ...] = ("no", "yes"), **meta: Any) -> ProbeResults:
    """A made-up curve with everything that a page shows."""
    counts = dict.fromkeys(classes, 10)
    audit = {"lines": [], "splits": {"train": {"n": 20, "classes": counts, "leaks": 0}}, "shared": {}, "near": 0.7}
    known = {"classes": list(classes), "n_classes": len(classes), "seed": 0, "audit": audit, "versions": {"probekit": "0"}}
    made = make(full=True, **{**known, **meta})
    layers = [replace(layer, metrics=_with_ece(layer.metrics)) for layer in made.layers]
    found = ProbeResults(layers, made.baselines, json.loads(json.dumps(made.meta)), made.random_init)
    return ProbeResults(**{**vars(found), "rows": rows_of(found, len(classes))})


def _with_ece(metrics: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    return {split: {**values, "ece": 0.05, "brier": 0.2} for split, values in metrics.items()}

"""Results whose test rows are of fewer groups than intervals need: no interval anywhere, and each table says why."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from probekit import compare, train_probes, transfer, write_report
from probekit.activations.activations import ActivationSet
from probekit.evaluation import ProbeCurves, ProbeResults, TransferResults
from probekit.evaluation.scores.bootstrap import groups_note
from probekit.side_by_side.results import Comparison
from probekit.tasks.base import Task

N, D = 96, 4
NOTE = groups_note(4)


def make(name: str, seed: int) -> ActivationSet:
    """Two classes with much noise; each split has four groups."""
    rng = np.random.default_rng(seed)
    row = np.arange(N)
    task = Task(
        name=name,
        inputs=[f"{name} {i}" for i in row],
        labels={"kind": row // 4 % 2, "other": row // 8 % 2},
        label_names={"kind": ["no", "yes"], "other": ["no", "yes"]},
        splits=np.array(["train", "train", "validation", "test"])[row % 4],
        target="kind",
        groups=row % 4 * 4 + row // 24,
        columns={"source": np.array(["x", "y"], dtype=object)[row // 12 % 2]},
    )
    x = rng.normal(size=(2, N, D)) + (row // 4 % 2)[:, None]
    return ActivationSet({("resid_pre", i): torch.from_numpy(x[i]).float() for i in range(2)}, task)


@pytest.fixture(scope="module")
def acts() -> ActivationSet:
    return make("a", 0)


def intervals_in(value: Any) -> list[Any]:
    """Every interval in nested JSON that is one."""
    pairs = enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else []
    of = ("interval", "intervals", "band")
    return [one for key, each in pairs for one in ([each] if key in of and each else intervals_in(each))]


MADE: dict[str, tuple[Any, Any]] = {
    "curve": (ProbeResults, lambda acts: train_probes(acts, C=[1.0])),
    "curves": (ProbeCurves, lambda acts: train_probes(acts, labels=["kind", "other"], C=[1.0], quick=True)),
    "shift": (TransferResults, lambda acts: train_probes(acts, shift_column="source", least_texts=1, C=[1.0])),
    "transfer": (TransferResults, lambda acts: transfer([acts, make("b", 1)], C=[1.0])),
    "compare": (Comparison, None),
}


@pytest.mark.parametrize("kind", MADE)
def test_no_interval_is_given_and_the_table_says_why(kind: str, acts: ActivationSet, tmp_path: Path) -> None:
    of, make_results = MADE[kind]
    if make_results is None:
        for probe in ("logistic", "ridge"):
            train_probes(acts, probe=probe, C=[1.0], quick=True).save(tmp_path / probe)
        results: Any = compare([tmp_path / "logistic", tmp_path / "ridge"])
    else:
        results = make_results(acts)
    results.save(tmp_path / kind)
    text = next((tmp_path / kind).glob("*.json")).read_text()
    body = json.loads(text)
    assert intervals_in({**body, "meta": {**body["meta"], "interval": None}}) == []  # which says how they are made
    loaded = of.load(tmp_path / kind)
    assert loaded.summary() == results.summary()
    assert NOTE in loaded.summary().splitlines()
    assert NOTE in loaded._repr_html_()
    loaded.to_frame()
    if kind != "compare":
        write_report([tmp_path / kind], tmp_path / "page.html")
        assert NOTE in (tmp_path / "page.html").read_text()
    if kind == "curve":
        for to in ("card", "latex", "csv"):
            loaded.export(to=to, out=tmp_path / to)


def test_differences_without_p_values_name_no_test(tmp_path: Path, acts: ActivationSet) -> None:
    """A p-value that there is not comes from no test."""
    for probe in ("logistic", "ridge"):
        train_probes(acts, probe=probe, C=[1.0], quick=True).save(tmp_path / probe)
    found = compare([tmp_path / "logistic", tmp_path / "ridge"])
    assert found.differences[0].p_value is None
    assert "bootstrap" not in found.summary()


@pytest.mark.parametrize("yes", [2, 4])
def test_few_groups_of_a_class_are_counted_in_place_of_their_rows(yes: int, tmp_path: Path) -> None:
    """Each split has 24 groups of five rows, `yes` of them of the second class: with 2 there is no interval."""
    rng, row = np.random.default_rng(0), np.arange(3 * 24 * 5)
    unit = row // 5
    labels = (unit // 3 < yes).astype(int)
    task = Task(
        name="rare",
        inputs=[f"text {i}" for i in row],
        labels={"kind": labels},
        label_names={"kind": ["no", "yes"]},
        splits=np.array(["train", "validation", "test"])[unit % 3],
        target="kind",
        groups=unit,
    )
    acts = ActivationSet({("resid_pre", 0): torch.from_numpy(rng.normal(size=(len(row), D)) + labels[:, None])}, task)
    for probe in ("ridge", "lda"):
        train_probes(acts, probe=probe, C=None if probe == "lda" else [1.0], metric="auroc").save(tmp_path / probe)
    found = ProbeResults.load(tmp_path / "ridge")
    compared = compare([tmp_path / "ridge", tmp_path / "lda"])
    assert found.quoted is not None
    assert (found.meta["test_groups"], found.meta["test_rarest"]) == (24, yes)
    assert (found.quoted.interval is None) == (yes == 2)
    assert (compared.differences[0].interval is None) == (yes == 2)
    for said in (found.summary(), compared.summary()):
        assert f"{yes} test groups" in said
    write_report([tmp_path / "ridge"], tmp_path / "page.html")
    assert f"{yes} test groups" in (tmp_path / "page.html").read_text()
    for to in ("card", "latex", "csv"):
        found.export(to=to, out=tmp_path / to)

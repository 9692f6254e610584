"""Probes on labels that came later are those on the same labelled texts, and rows without a label take no part."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from probekit.activations import Activations, ActivationSet, label
from probekit.causal.directions.steering import steering_vectors
from probekit.causal.erasure.erase import fit_eraser
from probekit.errors import DataError, UsageError
from probekit.evaluation import ProbeResults, transfer
from probekit.tasks import Task
from probekit.verbs.train_probes import train_probes

N, D = 240, 6
RNG = np.random.default_rng(0)
X = torch.from_numpy(RNG.standard_normal((N, D)).astype(np.float32))
TRUTH = (X[:, 0] + 0.3 * X[:, 1] > 0).numpy().astype(int)
IDS = [f"q{i}" for i in range(N)]
LABELS = {one: ["no", "yes"][truth] for one, truth in zip(IDS, TRUTH, strict=True)}
PART = {one: LABELS[one] for one in IDS if int(one[1:]) % 3}  # two of three
META = {"model": "made up", "points": ["resid_pre"], "n_layers": 2}
QUICK = {"quick": True, "C": [0.1, 1.0]}


def made(task: Task, rows: np.ndarray | None = None, noise: bool = False) -> Activations:
    values = torch.randn(N, D, generator=torch.Generator().manual_seed(3)) if noise else X
    values = values if rows is None else values[rows]
    return ActivationSet({("resid_pre", 0): values, ("resid_pre", 1): values * 2 + 1}, task, dict(META))


def unlabelled() -> Activations:
    return made(Task("t", [f"text number {i}" for i in range(N)], ids=IDS))


def numbers(results: Any) -> list[dict]:
    return [layer.metrics for layer in results.layers]


def test_labels_in_the_call_are_labels_of_the_task():
    task = Task("t", [f"text number {i}" for i in range(N)], {"label": np.array(list(LABELS.values()))}, ids=IDS)
    wanted = train_probes(made(task), **QUICK)
    for labels in (LABELS, pd.Series(LABELS), pd.DataFrame({"id": IDS, "label": LABELS.values()})):
        found = train_probes(unlabelled(), labels=labels, **QUICK)
        assert numbers(found) == numbers(wanted)
        assert found.meta["counts"] == wanted.meta["counts"]
    assert isinstance(found, ProbeResults)


def test_a_path_is_a_file_and_a_name_a_label_set(tmp_path):
    file = tmp_path / "labels.csv"
    pd.DataFrame({"id": IDS, "label": LABELS.values()}).to_csv(file, index=False)
    for given in (file, str(file)):
        assert numbers(train_probes(unlabelled(), labels=given, **QUICK)) == numbers(
            train_probes(unlabelled(), labels=LABELS, **QUICK)
        )
    acts = label(unlabelled(), LABELS, name="truth")
    assert list(train_probes(acts, labels=["truth"], **QUICK)) == [("truth", "resid_pre")]
    with pytest.raises(UsageError, match="no label set 'lies'"):
        train_probes(acts, labels=["lies"], **QUICK)
    with pytest.raises(DataError, match=r"no label for the id 'q0' \(80 of 240 texts have none\)"):
        train_probes(unlabelled(), labels=PART, **QUICK)


def test_rows_without_a_label_take_no_part():
    """The oracle: a task that never had them, with the same splits."""
    acts = label(unlabelled(), PART, on_bad_row="skip")
    rows = np.flatnonzero(acts.labels["label"] >= 0)
    alone = replace(acts.task.subset(rows), info={})
    found, wanted = train_probes(acts), train_probes(made(alone, rows))
    assert numbers(found) == numbers(wanted)
    assert [layer.intervals for layer in found.layers] == [layer.intervals for layer in wanted.layers]
    assert (found.meta["unlabelled"], wanted.meta["unlabelled"]) == (80, 0)
    assert "80 without a label left out" in str(found.summary())
    assert found.meta["classes"] == ["no", "yes"]


def test_several_sets_of_different_rows_and_random_weights():
    acts = label(unlabelled(), PART, name="part", on_bad_row="skip")
    acts = label(acts, {one: int(one[1:]) % 2 for one in IDS[:200]}, name="even", on_bad_row="skip")
    noise = made(acts.task, noise=True)
    several = train_probes(acts, labels="all", random_init=noise, **QUICK)
    for name in ("part", "even"):
        alone = train_probes(acts, label=name, random_init=noise, **QUICK)
        assert numbers(several[name, "resid_pre"]) == numbers(alone)
        noisy = [[layer.metrics for layer in each.random_init] for each in (several[name, "resid_pre"], alone)]
        assert noisy[0] == noisy[1] != []
    by_call = train_probes(unlabelled(), labels=LABELS, random_init=made(unlabelled().task, noise=True), **QUICK)
    assert len(by_call.random_init) == 2


def test_concatenated_layers_of_a_part():
    acts = label(unlabelled(), PART, on_bad_row="skip")
    assert train_probes(acts, concatenate=True, random_init=acts, **QUICK).meta["unlabelled"] == 80


def test_numbers_of_a_part():
    given = {one: float(X[int(one[1:]), 0]) for one in PART}
    found = train_probes(label(unlabelled(), given, on_bad_row="skip"), probe="ridge", quick=True)
    assert found.best.metrics["test"]["r2"] > 0.99


def test_transfer_and_directions_use_the_labelled_rows():
    acts = label(unlabelled(), PART, on_bad_row="skip")
    rows = np.flatnonzero(acts.labels["label"] >= 0)
    alone = made(replace(acts.task.subset(rows), info={}, name="alone"), rows)
    other = label(unlabelled(), {one: "yes" if X[int(one[1:]), 0] > 0 else "no" for one in IDS})
    cells = [transfer([each, other], layers=1, C=1.0).cells for each in (acts, alone)]
    assert [cell.metrics for cell in cells[0]] == [cell.metrics for cell in cells[1]]
    x = X[:5]
    erased = [fit_eraser(each, ("resid_pre", 0))(x) for each in (acts, alone)]
    assert torch.equal(*erased)
    one, other = (steering_vectors(each)["resid_pre", 0].vector_D for each in (acts, alone))
    assert torch.equal(one, other)

"""A regression's labels through stores and imports."""

from dataclasses import replace

import numpy as np
import pytest
from store_cases import plan_of

from probekit.activations import import_activations, load_activations
from probekit.activations.plan.summary import describe_plan
from probekit.errors import UsageError
from probekit.verbs.extract import extract

HOW = {"points": "resid_pre", "layers": 0}
VALUES = np.array([0.1, -1e-300, 1 / 3, 2.0, 1e300, -0.0, 33.6772] * 3)


def as_regression(task, values):
    return replace(task, labels={"height": values}, label_names={"height": []}, target="height")


def test_numbers_come_back_bit_for_bit(model, letters, path):
    task = as_regression(letters(21), VALUES)
    acts = extract(model, task, out=path, **HOW)
    again = load_activations(path)
    for one in (acts, again):
        assert one.labels["height"].tobytes() == VALUES.tobytes()
        assert one.label_names == {"height": []}
        assert one.task.fingerprint() == task.fingerprint()
    assert "height is a number, -1e-300 to 1e+300: a regression" in describe_plan(plan_of(model, task, **HOW))


def test_statistics_of_a_regression_are_refused(model, letters, path):
    with pytest.raises(UsageError, match="'height' is a regression; leave --stats out"):
        extract(model, as_regression(letters(21), VALUES), out=path, stats=True, **HOW)
    assert not path.exists()


@pytest.mark.parametrize("kind", ["npy", "csv"])
def test_imports_take_numbers(tmp_path, kind):
    values = np.linspace(-1, 1, 60)
    np.save(tmp_path / "resid_pre.0.npy", np.ones((60, 4), dtype=np.float32))
    labels = tmp_path / f"y.{kind}"
    if kind == "npy":
        np.save(labels, values)
    else:
        labels.write_text("label\n" + "".join(f"{value!r}\n" for value in values.tolist()))
    acts = import_activations(tmp_path / "resid_pre.0.npy", labels, out=tmp_path / "store")
    assert acts.labels["label"].tolist() == values.tolist()
    assert acts.label_names == {"label": []}

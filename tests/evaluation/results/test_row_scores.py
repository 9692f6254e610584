"""The rows that chose and tested: what the probes of the results say of them, and their file."""

from typing import Any

import numpy as np
import pytest

import probekit as pk
from probekit.activations.activations import ActivationSet
from probekit.errors import DataError
from probekit.evaluation.results.row_scores import digests_of


@pytest.fixture(scope="module")
def acts(world) -> ActivationSet:
    return world()


def train(acts: ActivationSet, C: float = 1.0, **options: Any) -> pk.ProbeResults:
    return pk.train_probes(acts, C=C, controls=0, codelength=False, baselines=False, **options)


@pytest.mark.parametrize("label", ["kind", "other"])
def test_scores_are_those_of_the_saved_probes(acts, label):
    results = train(acts, label=label)
    rows, place = results.rows, results.layers[1]
    assert rows is not None
    where = {name: i for i, name in enumerate(acts.ids)}
    X = acts[place.point, place.layer][[where[name] for name in rows.ids]]
    np.testing.assert_allclose(rows.scores[place.place], place.probe.decision_function(X), rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(rows.predicted[place.place], place.probe.predict(X))
    np.testing.assert_array_equal(rows.labels, acts.labels[label][[where[name] for name in rows.ids]])
    np.testing.assert_array_equal(rows.splits, acts.splits[[where[name] for name in rows.ids]])
    for split in ("validation", "test"):
        own = rows.splits == split
        right = (rows.predicted[place.place] == rows.labels)[own].mean()
        assert right == pytest.approx(place.metrics[split]["accuracy"])


def test_folds_have_every_row_once_as_test(acts):
    rows = train(acts, folds=3).rows
    assert rows is not None
    assert sorted(rows.ids) == sorted(acts.ids)
    assert set(rows.splits) == {"test"}


def test_a_file_gives_back_every_row(acts, tmp_path):
    results = train(acts)
    results.save(tmp_path / "r")
    loaded = pk.ProbeResults.load(tmp_path / "r").rows
    assert loaded is not None
    assert results.rows is not None
    for name in ("ids", "digests", "splits", "labels", "groups"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(results.rows, name))
    for name in ("scores", "predicted"):
        own, theirs = getattr(loaded, name), getattr(results.rows, name)
        assert list(own) == list(theirs)
        for place, values in own.items():
            np.testing.assert_array_equal(values, theirs[place])


def test_an_id_that_utf8_cannot_hold_is_written_as_its_escape(acts, tmp_path):
    results = train(acts)
    assert results.rows is not None
    results.rows.ids[0] = "a\ud800"
    results.save(tmp_path / "r")
    loaded = pk.ProbeResults.load(tmp_path / "r").rows
    assert loaded is not None
    assert loaded.ids[0] == "a\\ud800"


def test_a_damaged_or_missing_file_is_named(acts, tmp_path):
    file = train(acts).save(tmp_path / "r") / "predictions.parquet"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"predictions.parquet.*train again"):
        pk.ProbeResults.load(tmp_path / "r")
    file.unlink()
    with pytest.raises(DataError, match=r"predictions.parquet.*train again"):
        pk.ProbeResults.load(tmp_path / "r")


def test_rows_of_another_run_are_refused(acts, tmp_path):
    """They have the same texts, splits and places: only the hash says that they are of other probes."""
    file = train(acts).save(tmp_path / "r") / "predictions.parquet"
    another = train(acts, C=0.01).save(tmp_path / "another") / "predictions.parquet"
    file.write_bytes(another.read_bytes())
    with pytest.raises(DataError, match=r"predictions.parquet' is not the one of these results.*train again"):
        pk.ProbeResults.load(tmp_path / "r")


def test_results_without_rows_are_saved_without_the_file(acts, tmp_path):
    results = train(acts)
    older = pk.ProbeResults(**{**vars(results), "rows": None})
    assert not (older.save(tmp_path / "r") / "predictions.parquet").exists()
    assert pk.ProbeResults.load(tmp_path / "r").rows is None


def test_digests_differ_where_texts_do():
    digests = digests_of(["a", "b", "a", "\ud800"], has_texts=True)
    assert digests[0] == digests[2]
    assert len(set(digests)) == 3
    assert digests_of([[1, 2], [12]], has_texts=True)[0] != digests_of([[12]], has_texts=True)[0]
    assert list(digests_of(["a"], has_texts=False)) == [""]


def test_rows_of_one_group_share_a_number(world):
    groups = np.array([f"group {i // 8}" for i in range(300)])
    splits = np.array(["train", "train", "validation", "test"])[np.arange(300) // 8 % 4]
    rows = train(world(groups=groups, splits=splits)).rows
    assert rows is not None
    own = groups[[int(name) for name in rows.ids]]
    pairs = set(zip(rows.groups.tolist(), own.tolist(), strict=True))
    assert len(pairs) == len(set(rows.groups.tolist())) == len(set(own.tolist()))

"""Paths of stores: default names, what `ls` sees, which one is the newest."""

import os
import re
from dataclasses import replace

import numpy as np
import pytest
from store_cases import plan_of

from probekit.activations import Store, default_path, list_stores, newest_store
from probekit.errors import DataError
from probekit.verbs.extract import extract


def test_equal_plans_have_one_place(model, task):
    path = default_path(plan_of(model, task, points=["resid_pre", "z"]))
    assert re.fullmatch(r"runs/tiny-letters-resid_pre-z-last-[0-9a-f]{8}", str(path))
    assert default_path(plan_of(model, task, points=["resid_pre", "z"])) == path
    assert default_path(plan_of(model, task, points=["resid_pre", "z"]), "elsewhere").parent.name == "elsewhere"


@pytest.mark.parametrize(
    "changes", [{"position": "mean"}, {"position": 0}, {"dtype": "float16"}, {"layers": 1}, {"batch_tokens": 50}]
)
def test_other_plans_have_another(model, task, changes):
    assert default_path(plan_of(model, task, **changes)) != default_path(plan_of(model, task))


def test_names_are_made_safe(model, task):
    model.name = "../../org/model \x1b[31m"
    path = default_path(plan_of(model, replace(task, name="a/..\\b" * 40), position=np.zeros(23, dtype=int)))
    assert path.parent.name == "runs"
    assert re.fullmatch(r"org-model-31m-a-[A-Za-z0-9._-]{10,60}-resid_pre-per-example-[0-9a-f]{8}", path.name)


def test_listing(model, task, tmp_path, monkeypatch):
    assert list_stores(tmp_path / "nothing") == []
    extract(model, task, out=tmp_path / "a")
    extract(model, task, points="q", layers=1, out=tmp_path / "deep" / "b")
    monkeypatch.setattr("probekit.activations.plan.build.SHARD_BYTES", 1000)
    monkeypatch.setattr("probekit.activations.store.writer.StoreWriter.finish", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        extract(model, task, batch_tokens=20, out=tmp_path / "unfinished")
    sorted((tmp_path / "unfinished" / "records").iterdir())[0].unlink()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "plan.json").write_text("{}")
    a, b, unfinished = list_stores(tmp_path)
    assert (a.state, a.model, a.task, a.places, a.rows) == (
        "complete",
        "tiny",
        "letters",
        "resid_pre 0-2, resid_post 2",
        23,
    )
    assert a.bytes >= 23 * 4 * 16 * 4
    assert a.created < b.created
    assert (b.path, b.places, b.is_complete) == (tmp_path / "deep" / "b", "q 1", True)
    assert re.fullmatch(r"\d+ of 23 rows", unfinished.state)
    assert not unfinished.is_complete
    assert a.as_dict()["path"] == str(tmp_path / "a")
    assert newest_store(tmp_path) == tmp_path / "deep" / "b"
    assert list_stores(tmp_path / "a") == [a]


@pytest.mark.parametrize("file", ["plan.json", "manifest.json", "examples.json", "records/*", "shards/*"])
def test_a_damaged_store_says_so(model, task, tmp_path, file):
    extract(model, task, out=tmp_path / "a")
    victim = next((tmp_path / "a").glob(file))
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    altered = data[:-1] if file == "shards/*" else data  # whose bytes a listing does not hash
    for content in (b"", b"{}", b"\xff\x00", bytes(altered)):
        victim.write_bytes(content)
        assert [info.state for info in list_stores(tmp_path)] == ["damaged"]
    victim.unlink()
    assert [info.state for info in list_stores(tmp_path)] == ["23 of 23 rows" if file == "manifest.json" else "damaged"]
    with pytest.raises(DataError, match="no complete store under"):
        newest_store(tmp_path)


def test_the_newest_is_the_one_that_was_finished_last(model, task, tmp_path):
    for date, name in enumerate(("z", "a", "m")):
        extract(model, task, out=tmp_path / name)
        os.utime(tmp_path / name / "manifest.json", (date, date))
    os.utime(tmp_path / "z")
    assert newest_store(tmp_path) == tmp_path / "m"


def test_a_store_that_is_requested_again_is_the_newest(model, task, tmp_path):
    for name in ("a", "b", "a"):
        extract(model, task, layers="all" if name == "a" else 1, out=tmp_path / name)
        assert newest_store(tmp_path) == tmp_path / name
        for date, known in enumerate(sorted(tmp_path.iterdir())):
            os.utime(known / "manifest.json", (date, date))
    assert newest_store(tmp_path) == tmp_path / "b"


def test_finding_the_newest_opens_no_other_store(model, task, tmp_path, monkeypatch):
    for name in ("a", "b", "c"):
        extract(model, task, out=tmp_path / name)
        os.utime(tmp_path / name / "manifest.json", (5, 5))
    opened = []
    monkeypatch.setattr("probekit.activations.store.listing.Store", lambda path: opened.append(path) or Store(path))
    assert newest_store(tmp_path) == tmp_path / "c", "equal dates: the last name"
    assert opened == [tmp_path / "c"]
    (tmp_path / "c" / "examples.json").write_text("{}")
    assert newest_store(tmp_path) == tmp_path / "b"

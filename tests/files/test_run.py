"""A run knows what is done; the first writer of a record wins, and another question is refused."""

import os

import pytest

from probekit.errors import ResumeMismatch, StorageError
from probekit.files.durable import seal
from probekit.files.remote.path import as_path
from probekit.files.run import Run, begin_run, differing, folder_name, refuse_others


def check(found, ours):
    if fields := differing(found, ours):
        raise refuse_others("'there' was made with other settings", fields, found, ours, {"seed": " (of the draws)"})


@pytest.fixture(params=["here", "there"])
def folder(request, tmp_path):
    """On disk, and in an object store."""
    made = tmp_path / "run" if request.param == "here" else as_path(f"memory://runs/{tmp_path.name}")
    yield made
    if request.param == "there":
        for one in list(made.rglob("*")):
            one.unlink()


def begin(folder, **question):
    return begin_run(folder, {"format": "toy", **question}, "holds other draws", check)


def test_what_is_done_is_found_again_and_the_first_writer_wins(folder):
    run = begin(folder, seed=0)
    assert run.to_do(["a", "b", "c"]) == ["a", "b", "c"]
    assert run.write("b", {"value": 3})
    assert not run.write("b", {"value": 4})
    again = begin(folder, seed=0)
    assert again.seal == run.seal
    assert again.done() == ["b"]
    assert again.to_do(["a", "b", "c"]) == ["a", "c"]
    assert again.read("b", dict[str, str | int])["value"] == 3
    assert again.write("b", {"value": 4}, replace=True)
    assert run.read("b")["value"] == 4
    again.remove("b")
    again.remove("b")
    assert not run.has("b")


def test_the_first_writer_wins_without_hard_links_too(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    run = begin(tmp_path / "run", seed=0)
    assert run.write("a", {"value": 3})
    assert not run.write("a", {"value": 4})
    assert run.read("a")["value"] == 3
    assert sorted(one.name for one in run.folder.iterdir()) == ["a.json", "plan.json"]


def test_another_question_is_refused_with_the_fields_that_differ(folder):
    begin(folder, seed=0, model="tiny").write("a", {})
    with pytest.raises(ResumeMismatch, match=r"^.there. was made with .* \(seed \(of the draws\): 0 there, 1"):
        begin(folder, seed=1, model="tiny")
    with pytest.raises(ResumeMismatch, match="more: nothing there, 'x' here"):
        begin(folder, seed=0, model="tiny", more="x")
    assert begin(folder, seed=0, model="tiny").done() == ["a"]


def test_a_record_that_is_damaged_or_of_another_question_is_named(folder):
    run = begin(folder, seed=0)
    run.write("a", {"value": 3})
    sound = run.file("a").read_bytes()
    for bad in (b"", sound[:-1], sound.replace(b"3", b"4"), seal({"plan": "of another", "value": 3})[0]):
        run.file("a").write_bytes(bad)
        with pytest.raises(StorageError, match=r"a\.json' .*remove it, and run the same command again"):
            run.read("a")
        assert list(run.sound()) == []
    run.file("a").write_bytes(sound)
    with pytest.raises(StorageError, match=r"a\.json' holds other draws"):
        run.read("a", dict[str, str])
    with pytest.raises(StorageError, match=r"a\.json' holds other draws"):
        run.read("a", fits=lambda body: body["value"] > 3)
    with pytest.raises(StorageError, match=r"b\.json' is missing"):
        Run(folder, run.seal).read("b")


def test_equal_questions_get_equal_folders_and_others_get_others():
    assert folder_name(["My model!", "a/b", ""]) == "My-model-a-b-unnamed"
    assert folder_name(["m"], {"b": 1, "a": 2}) == folder_name(["m"], {"a": 2, "b": 1}) != folder_name(["m"], {"a": 2})
    assert folder_name(["m"], "text").startswith("m-")

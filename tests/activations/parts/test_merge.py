"""Folders of parts merged: the store of one process, by links where the disk can; what does not fit is refused."""

import errno
import os
import shutil
from pathlib import Path

import pytest
import torch
from part_cases import HOW
from store_cases import files, flip, of_shards, shard_of

from probekit.activations import (
    load_activations,
    load_statistics,
    merge_stores,
    plan_extraction,
    run_part,
    run_plan,
    verify,
)
from probekit.activations.sums.statistics import list_sums, sums_at
from probekit.errors import DataError, ResumeMismatch, StorageError, UsageError
from probekit.files.remote.path import as_path
from probekit.options import ExtractOptions


@pytest.fixture(scope="module")
def parts(plan, tmp_path_factory):
    """Three parts with sums, each in a folder of its own; tests only read them."""
    folder = tmp_path_factory.mktemp("parts")
    paths = [folder / name for name in ("a", "b", "c")]
    for i, path in enumerate(paths):
        run_part(plan, path, (i + 1, 3), progress=False, sums="also")
    return paths


@pytest.fixture
def other_disk(monkeypatch):
    """No link from one folder to another, as between two disks."""
    link = os.link

    def refuse(source, target):
        if Path(source).parent != Path(target).parent:
            raise OSError(errno.EXDEV, "other disk")
        link(source, target)

    monkeypatch.setattr(os, "link", refuse)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_the_merged_store_is_that_of_one_process_and_its_shards_are_links(plan, single, parts, tmp_path, order):
    before = {file: file.read_bytes() for part in parts for file in files(part)}
    merged = merge_stores([parts[i] for i in order], tmp_path / "all")
    assert (merged.complete, merged.taken, merged.rows, merged.counted) == (True, len(plan.shards), 60, True)
    assert of_shards(merged.path) == of_shards(single)
    assert verify(merged.path).is_sound
    assert {file: file.read_bytes() for part in parts for file in files(part)} == before
    (own,) = parts_with(parts, shard_of(single, 0).name)
    assert own.samefile(shard_of(merged.path, 0))
    whole, alone = load_statistics(merged.path), load_activations(single).statistics
    torch.testing.assert_close(
        whole["resid_pre.1", "train"].gram, alone["resid_pre.1", "train"].gram, rtol=1e-12, atol=0
    )


def parts_with(parts, name):
    return [part / "shards" / name for part in parts if (part / "shards" / name).exists()]


@pytest.mark.usefixtures("other_disk")
def test_on_another_disk_they_are_copied(single, parts, tmp_path):
    merged = merge_stores(parts, tmp_path / "all")
    assert of_shards(merged.path) == of_shards(single)
    (own,) = parts_with(parts, shard_of(single, 0).name)
    assert not own.samefile(shard_of(merged.path, 0))


def test_what_is_missing_is_named_by_part_and_the_rest_joins_later(plan, single, parts, tmp_path):
    merged = merge_stores(parts[:2], tmp_path / "all")
    assert not merged.complete
    assert [(one.part, one.of, one.done) for one in merged.missing] == [(3, 3, 0)]
    assert merged.counted is False
    with pytest.raises(StorageError, match="missing in part 3/3"):
        load_activations(merged.path)
    again = merge_stores(parts, merged.path)
    assert (again.complete, again.counted) == (True, True)
    assert of_shards(merged.path) == of_shards(single)
    assert merge_stores(parts, merged.path).taken == 0


def test_into_one_of_the_parts(single, parts, tmp_path):
    shutil.copytree(parts[1], tmp_path / "b")
    merged = merge_stores([parts[0], tmp_path / "b", parts[2]], tmp_path / "b")
    assert (merged.complete, merged.counted) == (True, True)
    assert of_shards(tmp_path / "b") == of_shards(single)


@pytest.mark.parametrize("at", range(1, 40, 7))
def test_a_merge_that_is_stopped_at_any_link_resumes(single, parts, tmp_path, monkeypatch, at):
    calls, link = [], os.link

    def stop(*args):
        calls.append(args)
        if len(calls) == at + 1:
            raise KeyboardInterrupt
        link(*args)

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", stop)
        try:
            merge_stores(parts, tmp_path / "all")
        except KeyboardInterrupt:
            assert len(calls) == at + 1
    merged = merge_stores(parts, tmp_path / "all")
    assert merged.complete
    assert of_shards(merged.path) == of_shards(single)
    assert load_statistics(merged.path).meta["parts"] == 3


def test_stores_of_other_machines_have_plans_of_their_own(plan, single, parts, tmp_path, monkeypatch):
    """Versions differ, so plan and records have other seals: the merged store has those of the first."""
    from probekit.activations.plan import identity

    monkeypatch.setattr(identity, "versions_of", lambda *_: {"torch": "another"})
    run_part(plan, tmp_path / "other", (2, 3), progress=False)
    assert (tmp_path / "other" / "plan.json").read_bytes() != (parts[0] / "plan.json").read_bytes()
    merged = merge_stores([parts[0], tmp_path / "other", parts[2]], tmp_path / "all")
    assert merged.complete
    assert of_shards(merged.path) == of_shards(single)


def test_other_extractions_are_refused_before_anything_is_written(plan, parts, tmp_path):
    other = plan_extraction(plan.model, plan.task, ExtractOptions(**{**HOW, "dtype": "float16"}))
    run_plan(other, tmp_path / "other", progress=False)
    with pytest.raises(ResumeMismatch, match=r"other.*\(dtype: 'float16' there, 'float32' here.*one extraction"):
        merge_stores([*parts, tmp_path / "other"], tmp_path / "all")
    assert not (tmp_path / "all").exists()
    with pytest.raises(ResumeMismatch, match="dtype"):
        merge_stores(parts, tmp_path / "other")
    with pytest.raises(DataError, match="no store at"):
        merge_stores([*parts, tmp_path / "none"], tmp_path / "all")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("text")
    with pytest.raises(StorageError, match="not of a store"):
        merge_stores(parts, tmp_path / "mine")
    with pytest.raises(UsageError, match="list of stores"):
        merge_stores([], tmp_path / "all")


def test_damaged_shards_are_named_and_not_taken(plan, parts, tmp_path):
    damaged = shutil.copytree(parts[0], tmp_path / "a")
    number = next(int(file.stem) for file in files(damaged / "records"))
    shard = shard_of(damaged, number)
    flip(shard)
    with pytest.raises(StorageError, match=rf"{shard.name}.*does not match its checksum.*probekit repair"):
        merge_stores([damaged, *parts[1:]], tmp_path / "all", check="hash")
    shard.write_bytes(b"")
    with pytest.raises(StorageError, match=rf"{shard.name}.*0 bytes instead of"):
        merge_stores([damaged, *parts[1:]], tmp_path / "all2")
    assert not (tmp_path / "all2" / "records" / f"{number:05d}.json").exists()


def test_parts_in_an_object_store_are_merged_as_on_disk(plan, single, parts, tmp_path):
    """Sums, shards and manifest; from the object store to disk and back."""
    remote = f"memory://{tmp_path.name}-{os.getpid()}"
    for i in (1, 2, 3):
        done = run_part(plan, as_path(f"{remote}/{i}"), (i, 3), progress=False, sums="also")
    assert [(one.part, one.done) for one in done.missing] == [(1, 0), (2, 0)]
    folders = [f"{remote}/{i}" for i in (1, 2, 3)]
    merged = merge_stores(folders, tmp_path / "all")
    assert (merged.complete, merged.counted) == (True, True)
    assert of_shards(merged.path) == of_shards(single)
    back = merge_stores([*parts, folders[0]], f"{remote}/all")
    assert (back.complete, back.counted, verify(back.path).is_sound) == (True, True, True)
    assert torch.equal(load_activations(back.path)["resid_pre.1"], load_activations(single)["resid_pre.1"])
    for i in (3, 1, 2):
        done = run_part(plan, as_path(f"{remote}/same"), (i, 3), progress=False, sums="also")
    assert (done.complete, done.counted) == (True, True)
    assert list(list_sums(sums_at(as_path(f"{remote}/same")))) == [(1, 1)]

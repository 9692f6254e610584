"""The sums of parts: joined they are those of one process, in the same bits whichever part finishes first."""

import os
import re
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from part_cases import HOW
from store_cases import files, flip, of_shards

from probekit import extract_statistics
from probekit.activations import (
    list_stores,
    load_activations,
    load_statistics,
    merge_stores,
    run_part,
    run_plan,
    statistics_progress,
    verify,
)
from probekit.activations.parts import run
from probekit.activations.parts.cut import cut_parts, shard_costs
from probekit.activations.run import loop
from probekit.activations.sums.statistics import PartSums, read_sums, remove_orphans, sums_at
from probekit.activations.sums.tally import Tally
from probekit.errors import DataError, StorageError, UsageError
from probekit.files.durable import unseal
from probekit.files.run import Run
from probekit.options import ExtractOptions

PARTS = ((1, 3), (2, 3), (3, 3))


def run_all(plan, path, order, sums: Any = "also"):
    return [run_part(plan, path, PARTS[part], progress=False, sums=sums) for part in order]


def shard_of_part(path, part):
    (record,) = (path / "statistics").glob(f"{part}-*.json")
    return path / "statistics" / unseal(record)[0]["file"]


def sums_of(path):
    return read_sums(sums_at(path)).values()


def worst(found, activations):
    """The largest error of counts, means and covariances of rows, relative to the deviations, in long double."""
    error = 0.0
    for place, split in found:
        rows = np.asarray(activations[place][torch.from_numpy(activations.task.splits == split)], dtype=np.longdouble)
        moments = found[place, split]
        assert moments.count == len(rows)
        deviation = np.sqrt(np.maximum(rows.var(0), 1e-12))
        error = max(error, float(np.max(np.abs(moments.mean.numpy() - rows.mean(0)) / deviation)))
        centred = rows - rows.mean(0)
        covariance = centred.T @ centred / len(rows)
        error = max(
            error, float(np.max(np.abs(moments.covariance.numpy() - covariance) / np.outer(deviation, deviation)))
        )
    return error


@pytest.mark.parametrize("sums", ["also", "only"])
def test_joined_sums_equal_those_of_the_rows_and_of_one_process(plan, single, tmp_path, sums):
    path = tmp_path / "store"
    done = run_all(plan, path, (0, 1, 2), sums)
    assert [one.counted for one in done] == [False, False, True]
    found, alone = load_statistics(path), load_activations(single).statistics
    assert worst(found, load_activations(single)) <= 1e-12
    for key, moments in alone.items():
        joined = found[key].around(moments.shift)
        scale = moments.shifted_gram.diagonal().clamp_min(1e-12).sqrt()
        assert float(((joined.shifted_gram - moments.shifted_gram).abs() / torch.outer(scale, scale)).max()) <= 1e-12
        for name, counts in moments.class_counts.items():
            assert torch.equal(joined.class_counts[name], counts)
            torch.testing.assert_close(joined.class_means(name), moments.class_means(name), rtol=1e-12, atol=1e-12)
    assert found.meta["parts"] == 3
    assert len(list((path / "statistics").iterdir())) == 2
    assert verify(path).is_sound
    assert (path / "manifest.json").exists() == (sums == "also")


def test_the_order_in_which_parts_finish_changes_no_bit(plan, tmp_path):
    made = []
    for order in ((0, 1, 2), (2, 0, 1), (1, 1, 2, 0)):
        path = tmp_path / "-".join(map(str, order))
        run_all(plan, path, order, "only")
        made.append({file.name: file.read_bytes() for file in files(path / "statistics") if file.suffix != ".json"})
    assert made[0] == made[1] == made[2]
    assert len(made[0]) == 1


def test_parts_that_count_are_seen_by_progress_and_verify_and_damage_is_noticed(plan, tmp_path):
    path = tmp_path / "store"
    first, second = run_all(plan, path, (0, 2), "only")
    assert statistics_progress(path) == (first.rows + second.rows, 60)
    assert verify(path).counted == first.rows + second.rows
    with pytest.raises(StorageError, match="unfinished"):
        load_activations(path)
    flip(shard_of_part(path, "3-of-3"))
    assert [one.file for one in verify(path).broken] == ["statistics"]
    with pytest.raises(StorageError, match=r"damaged.*remove '.*/3-of-3-\d+.json', and run"):
        run_part(plan, path, PARTS[1], progress=False, sums="only")


def test_parts_without_statistics_are_named(plan, tmp_path):
    """By the part that ran, by the list of stores, and by a merge; whether activations are kept or not."""
    n_shards = [len(part) for part in cut_parts(shard_costs(plan), 3)]
    done = run_all(plan, tmp_path / "only", (1,), "only")[0]
    assert [(one.part, one.shards, one.done) for one in done.missing] == [(1, n_shards[0], 0), (3, n_shards[2], 0)]
    (info,) = list_stores(tmp_path)
    assert info.missing == f"part 1/3 (0 of {n_shards[0]} shards), part 3/3 (0 of {n_shards[2]} shards)"
    merged = merge_stores([tmp_path / "only"], tmp_path / "merged")
    assert merged.missing == done.missing
    for part in PARTS:
        run_part(plan, tmp_path / "some", part, progress=False, sums="also" if part == PARTS[0] else None)
    again = run_all(plan, tmp_path / "some", (0,))[0]
    assert (again.complete, again.counted, [one.part for one in again.missing]) == (True, False, [2, 3])


def test_sums_of_parts_that_were_cut_differently_are_refused_and_counted_again(plan, single, tmp_path, monkeypatch):
    """Other versions may cut differently: no text is counted twice or left out."""
    mine, other = tmp_path / "mine", tmp_path / "other"
    run_part(plan, mine, (2, 2), progress=False, sums="also")
    with monkeypatch.context() as patch:
        patch.setattr(run, "cut_parts", lambda costs, n: [np.arange(len(costs))[i::n] for i in range(n)])
        run_part(plan, other, (1, 2), progress=False, sums="also")
    numbers = [record.record.rows.tolist() for path in (mine, other) for record in sums_of(path)]
    odd = sorted(n for n in range(len(plan.shards)) if sum(n in of for of in numbers) != 1)
    with pytest.raises(StorageError, match=rf"each shard once \(see shards {odd[0]}, .*\).*remove the folder"):
        merge_stores([mine, other], tmp_path / "all")
    with pytest.raises(StorageError, match=r"00002.json' has another cut into 2 parts.*; remove it, and run all parts"):
        run_part(plan, other, (1, 2), progress=False, sums="also")
    (other / "parts" / "00002.json").unlink()
    with pytest.raises(StorageError, match=r"counted other shards than this run has; remove it, and run"):
        run_part(plan, other, (1, 2), progress=False, sums="also")
    next((other / "statistics").glob("*.json")).unlink()
    run_part(plan, other, (1, 2), progress=False, sums="also")
    merged = merge_stores([mine, other], tmp_path / "whole")
    assert (merged.complete, merged.counted) == (True, True)
    assert worst(load_statistics(merged.path), load_activations(single)) <= 1e-12


def test_a_damaged_cut_says_nothing_and_costs_nothing(plan, tmp_path):
    path = tmp_path / "store"
    assert [one.part for one in run_part(plan, path, (1, 2), progress=False).missing] == [2]
    flip(path / "parts" / "00002.json")
    assert run_part(plan, path, (1, 2), progress=False).missing == []
    assert run_part(plan, path, (2, 2), progress=False).complete


def test_damaged_sums_are_not_merged_and_those_that_are_made_again_are(plan, tmp_path):
    paths = [tmp_path / "a", tmp_path / "b"]
    for i, path in enumerate(paths):
        run_part(plan, path, (i + 1, 2), progress=False, sums="only")
    flip(broken := shard_of_part(paths[0], "1-of-2"))
    with pytest.raises(StorageError, match=rf"a/statistics/{broken.name}.*damaged.*remove '.*a/.*/1-of-2"):
        merge_stores(paths, tmp_path / "all")
    next((paths[0] / "statistics").glob("*.json")).unlink()
    assert [one.part for one in merge_stores(paths, tmp_path / "all").missing] == [1]
    run_part(plan, paths[0], (1, 2), progress=False, sums="only")
    (tmp_path / "all" / "statistics" / broken.name).write_bytes(b"what a disk made of it")
    assert merge_stores(paths, tmp_path / "all").counted


def test_a_damaged_part_leaves_the_sums_of_the_others(plan, tmp_path):
    """What the message names is removed, and the run goes on with what the other parts have counted."""
    path = tmp_path / "store"
    run_all(plan, path, (0, 1), "only")
    other = shard_of_part(path, "1-of-3")
    flip(shard_of_part(path, "2-of-3"))
    with pytest.raises(StorageError, match=r"remove '(.*2-of-3-\d+.json)', and run the same command") as error:
        run_part(plan, path, PARTS[1], progress=False, sums="only")
    (named,) = re.findall(r"remove '(.*)', and", str(error.value))
    Path(named).unlink()
    assert [one.counted for one in run_all(plan, path, (1, 2), "only")] == [False, True]
    assert not other.exists()
    assert verify(path).is_sound


def test_a_shard_that_a_merge_takes_is_young_and_outlives_it_without_a_record(plan, tmp_path, monkeypatch):
    """A run beside the merge takes an old shard without a record for one of a run that died."""
    paths = [tmp_path / "a", tmp_path / "all"]
    run_part(plan, paths[0], (1, 2), progress=False, sums="only")
    os.utime(shard := shard_of_part(paths[0], "1-of-2"), (0, 0))
    write = Run.write

    def write_late(self, piece, body, replace=False):
        remove_orphans(sums_at(paths[1]))
        return write(self, piece, body, replace)

    monkeypatch.setattr(Run, "write", write_late)
    merge_stores(paths[:1], paths[1])
    assert (paths[1] / "statistics" / shard.name).exists()


def test_joining_holds_the_sums_of_few_places_at_once(plan, tmp_path, monkeypatch):
    """Each place is read, added up and written before the next: the tally and all places are never there together."""
    alive, most, moments = weakref.WeakSet[Any](), [], PartSums.moments

    def counted(self, place):
        found = moments(self, place)
        alive.update(found.values())
        most.append(len(alive))
        return found

    run_all(plan, tmp_path, (0, 1), "only")
    tallies = weakref.WeakSet[Tally]()
    monkeypatch.setattr(run, "Tally", lambda *args: (tallies.add(tally := Tally(*args)), tally)[1])
    monkeypatch.setattr(PartSums, "moments", counted)
    join, left = run.join_sums, []
    monkeypatch.setattr(run, "join_sums", lambda *args: (left.append(len(tallies)), join(*args))[1])
    assert run_all(plan, tmp_path, (2,), "only")[0].counted
    held, n_splits = max(most), len(load_statistics(tmp_path).splits)
    assert left == [0]
    assert len(plan.places) > 3
    assert held <= 3 * n_splits


def test_a_part_of_another_versions_cut_is_finished_or_refused(plan, single, tmp_path, monkeypatch):
    """Without sums the cut that stands in the store is done, so that parts of two versions complete it."""
    path = tmp_path / "store"
    with monkeypatch.context() as patch:
        patch.setattr(run, "cut_parts", lambda costs, n: [np.arange(len(costs))[i::n] for i in range(n)])
        run_part(plan, path, (1, 2), progress=False)
        run_part(plan, tmp_path / "theirs", (1, 2), progress=False)
    with pytest.raises(StorageError, match="has another cut into 2 parts"):
        run_part(plan, path, (2, 2), progress=False, sums="also")
    assert run_part(plan, path, (2, 2), progress=False).complete
    run_part(plan, tmp_path / "ours", (2, 2), progress=False)
    merged = merge_stores([tmp_path / "theirs", tmp_path / "ours"], tmp_path / "merged")
    assert (merged.complete, merged.missing) == (False, []), "no part that would find nothing to do is named"
    run_plan(plan, tmp_path / "merged", progress=False)
    assert of_shards(tmp_path / "merged") == of_shards(path) == of_shards(single)


def test_in_python_statistics_of_a_part_are_a_keyword(plan, single, tmp_path):
    options, path = ExtractOptions(**HOW), tmp_path / "store"
    done = [extract_statistics(plan.model, plan.task, options, out=path, part=(i, 2)) for i in (1, 2)]
    assert [one.counted for one in done] == [False, True]
    assert worst(load_statistics(path), load_activations(single)) <= 1e-12
    with pytest.raises(UsageError, match="give out=PATH"):
        extract_statistics(plan.model, plan.task, options, part="1/2")  # pyright: ignore[reportCallIssue, reportArgumentType]


def test_sums_of_parts_of_a_complete_store_are_read_from_its_shards(plan, single, tmp_path, monkeypatch):
    path = tmp_path / "store"
    run_plan(plan, path, progress=False)
    monkeypatch.setattr(loop, "compute_shard", lambda *_: pytest.fail("computed again"))
    assert [one.counted for one in run_all(plan, path, (2, 1, 0))] == [False, False, True]
    assert run_all(plan, path, (1,))[0].counted  # again, when they are joined
    assert worst(load_statistics(path), load_activations(single)) <= 1e-12


def test_a_part_is_refused_what_cannot_be_counted(plan, tmp_path):
    labels = {"label": np.where(np.arange(60) == 3, -1, plan.task.labels["label"])}
    odd = replace(plan, task=replace(plan.task, labels=labels))
    with pytest.raises(DataError, match=r"must be 0\.\.1 to be counted"):
        run_part(odd, tmp_path / "store", (1, 2), sums="only")
    assert not (tmp_path / "store").exists()

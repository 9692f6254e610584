"""The sums of parts: joined they are those of one process, in the same bits whichever part finishes first."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from store_cases import files, flip

from probekit.activations import load_activations, load_statistics, run_part, run_plan, statistics_progress, verify
from probekit.activations.run import loop
from probekit.activations.sums.join import part_folder, part_folders
from probekit.errors import DataError, StorageError

PARTS = ((1, 3), (2, 3), (3, 3))


def run_all(plan, path, order, sums="also"):
    return [run_part(plan, path, PARTS[part], progress=False, sums=sums) for part in order]


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
    assert part_folders(path) == []
    assert verify(path).is_sound
    assert (path / "manifest.json").exists() == (sums == "also")


def test_the_order_in_which_parts_finish_changes_no_bit(plan, tmp_path):
    made = []
    for order in ((0, 1, 2), (2, 0, 1), (1, 1, 2, 0)):
        path = tmp_path / "-".join(map(str, order))
        run_all(plan, path, order, "only")
        made.append({file.name: file.read_bytes() for file in files(path / "statistics") if file.suffix != ".json"})
    assert made[0] == made[1] == made[2]
    assert len(made[0]) == len(plan.places)


def test_parts_that_count_are_seen_by_progress_and_verify_and_damage_is_noticed(plan, tmp_path):
    path = tmp_path / "store"
    first, second = run_all(plan, path, (0, 2), "only")
    assert statistics_progress(path) == (first.rows + second.rows, 60)
    assert verify(path).counted == first.rows + second.rows
    with pytest.raises(StorageError, match="unfinished"):
        load_activations(path)
    flip(next(part_folder(path, 3, 3).glob("*.safetensors")))
    assert [one.file for one in verify(path).broken] == ["statistics"]
    with pytest.raises(StorageError, match=r"damaged.*remove the folder"):
        run_part(plan, path, PARTS[1], progress=False, sums="only")


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

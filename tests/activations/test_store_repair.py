"""Verify names every broken file; repair makes those again bit for bit and touches nothing else."""

import os
import shutil

import numpy as np
import pytest
import torch
from store_cases import HOW, Stopped, assert_equal, files, flip, lasting, run, shard_of, stop_after

from probekit.activations import Store, load_activations, repair, verify
from probekit.activations.run import loop
from probekit.activations.store.format import read_plan
from probekit.activations.store.writer import write_manifest
from probekit.errors import DataError, ResumeMismatch, StorageError
from probekit.files.durable import seal, unseal

pytestmark = pytest.mark.usefixtures("small_shards")


def dates(path):
    return {p: p.stat().st_mtime_ns for p in files(path)}


def broken(path):
    return [one.file for one in verify(path).broken]


def test_a_sound_store_is_left_alone(model, task, path):
    run(model, task, path)
    found = verify(path)
    assert found.is_sound
    assert found.finished
    assert (found.files, found.rows, found.total) == (3 + 1 + 2 * 4, 23, 23)
    assert found.bytes == sum(p.stat().st_size for p in files(path))
    before = dates(path)
    assert repair(path).shards == []
    assert dates(path) == before
    with pytest.raises(DataError, match="no store at"):
        verify(path / "records")


def test_what_is_broken_is_named_and_made_again_and_nothing_else(model, letters, path):
    task = letters(shortest=3)
    position = [np.arange(23) % 3, "last", "mean"]
    memory = run(model, task, path, position=position, bos=False, layers=[0, 2])
    before, when = lasting(path), dates(path)
    flip(shard_of(path, 0))
    shard_of(path, 2).unlink()
    flip(path / "records" / "00001.json")
    (path / "records" / "00003.json").unlink()
    flip(path / "manifest.json", 30)
    hurt = ["records/00001.json", "records/00003.json", shard_of(path, 0), shard_of(path, 2), "manifest.json"]
    names = {p if isinstance(p, str) else str(p.relative_to(path)) for p in hurt}
    assert set(broken(path)) == names
    done = repair(path, model)
    assert (done.shards, done.manifest, done.complete) == ([0, 1, 2, 3], True, True)
    assert verify(path).is_sound
    assert lasting(path) == before
    touched = {str(p.relative_to(path)) for p, date in dates(path).items() if date != when[p]}
    assert touched == names
    assert_equal(load_activations(path), memory)


def test_the_manifest_needs_no_model(model, task, path):
    meta = run(model, task, path).meta
    (path / "manifest.json").unlink()  # as a run leaves it that is killed before its last step
    found = verify(path)
    assert (found.is_sound, found.finished, found.rows, found.total) == (True, False, 23, 23)
    assert found.advice == f"run the same extract command again, or probekit repair {str(path)!a}"
    assert repair(path).manifest
    again = load_activations(path).meta
    assert {**again, "created": 0} == {**meta, "created": 0}


def test_an_unfinished_store_is_repaired_and_stays_unfinished(model, task, path, monkeypatch):
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(Stopped):
            run(model, task, path)
    assert verify(path).is_sound
    assert not verify(path).finished
    flip(shard_of(path, 1))
    done = repair(path, model)
    assert (done.shards, done.complete) == ([1], False)
    kept, total = Store.progress(path)
    assert kept < total
    assert_equal(run(model, task, path), run(model, task))


def test_broken_statistics_are_named_and_left_to_the_command_that_makes_them(model, task, path):
    run(model, task, path, stats=True)
    found = verify(path)
    assert found.is_sound
    assert found.counted == found.total == 23
    assert found.bytes == sum(p.stat().st_size for p in files(path))
    file = next((path / "statistics").glob("*.safetensors"))
    flip(file)
    flip(shard_of(path, 1))
    before = dates(path)
    assert verify(path).advice == f"run: probekit repair {str(path)!a}"
    done = repair(path, model)
    assert done.shards == [1]
    assert [one.file for one in done.left] == broken(path) == ["statistics"]
    assert file.name in done.left[0].why
    assert {p for p, date in dates(path).items() if date != before[p]} == {shard_of(path, 1)}
    assert verify(path).advice.startswith(f"remove what is broken in {str(path / 'statistics')!a}")
    shutil.rmtree(path / "statistics")
    run(model, task, path, stats=True)
    assert verify(path).is_sound


def test_a_manifest_that_names_too_few_records_is_broken(model, task, path):
    run(model, task, path)
    (path / "records" / "00003.json").unlink()
    manifest, _ = unseal(path / "manifest.json")
    (path / "manifest.json").write_bytes(seal({**manifest, "records": manifest["records"][:3]})[0])
    assert broken(path) == ["manifest.json"]
    done = repair(path)
    assert (done.manifest, done.complete) == (False, False)
    assert_equal(run(model, task, path), run(model, task))


def test_no_manifest_is_written_while_a_row_is_missing(model, task, path):
    run(model, task, path)
    (path / "records" / "00003.json").unlink()
    (path / "manifest.json").unlink()
    with pytest.raises(StorageError, match=r"of 23 rows: run the same extract command again$"):
        write_manifest(path, read_plan(path))
    assert not (path / "manifest.json").exists()


def test_damaged_examples_stop_a_run_before_it_computes(model, task, path, monkeypatch):
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(Stopped):
            run(model, task, path)
    flip(path / "examples.json", 10)
    monkeypatch.setattr(model, "forward", lambda *_, **__: pytest.fail("the model ran"))
    with pytest.raises(StorageError, match=r"examples\.json.* is damaged"):
        run(model, task, path)


@pytest.mark.parametrize("name", ["plan.json", "examples.json"])
def test_what_cannot_be_made_again(model, task, path, name):
    run(model, task, path)
    flip(path / name, 10)
    flip(path / "records" / "00001.json", 10)
    assert {name, "records/00001.json"} <= set(broken(path))
    with pytest.raises(StorageError, match=rf"{name}.* cannot be made again .*; remove the store and extract again"):
        repair(path, model)


def test_another_model_is_refused(tiny, task, path):
    run(tiny(), task, path)
    flip(shard_of(path, 1))
    before = dates(path)
    with pytest.raises(ResumeMismatch, match=r"model_fingerprint .*: .* there, .* here.*--model"):
        repair(path, tiny(seed=1))
    with pytest.raises(StorageError, match="does not record where its model is; name it with probekit repair --model"):
        repair(path)
    assert dates(path) == before


def test_other_bits_are_not_taken(model, task, path, monkeypatch):
    run(model, task, path)
    flip(shard_of(path, 1))
    before = dates(path)
    compute = loop.compute_shard
    wrong = lambda *a: {place: torch.nextafter(x, x + 1) for place, x in compute(*a).items()}  # noqa: E731
    monkeypatch.setattr(loop, "compute_shard", wrong)
    with pytest.raises(StorageError, match=r"shard 1 .* other bits than were recorded .* repair it on the machine"):
        repair(path, model)
    assert dates(path) == before


def test_a_missing_model_must_be_named(tiny, task, path, tmp_path):
    model = tiny()
    model.source = {"name_or_path": str(tmp_path / "gone"), "revision": None, "random_init": False, "seed": 0}
    run(model, task, path)
    flip(shard_of(path, 1))
    with pytest.raises(DataError, match=r"cannot be loaded from where it was .*; name it with probekit repair --model"):
        repair(path)
    assert repair(path, model).shards == [1]


def test_a_plan_that_does_not_say_how_is_one_error(model, task, path):
    run(model, task, path)
    body, _ = unseal(path / "plan.json")
    (path / "records" / "00001.json").unlink()
    for key in ("points", "device", "compute_dtype", "batch_tokens", "bos", "on_long", "block_nodes", "share"):
        for value in (None, [[]]):
            (path / "plan.json").write_bytes(seal({**body, "identity": {**body["identity"], key: value}})[0])
            with pytest.raises(StorageError, match=r"plan\.json' does not say how the store was extracted; remove"):
                repair(path, model)


@pytest.mark.parametrize(
    "how", [{"position": "all"}, {"position": ["first", "last"]}, {"points": ["attn_pattern", "q"]}]
)
def test_every_layout_comes_back_complete_and_in_part(model, task, path, how):
    store, memory = run(model, task, path, **how), run(model, task, **how)
    assert len(store._records) > 2
    rng = np.random.default_rng(0)
    for place in store:
        assert torch.equal(store._rows(place), memory._rows(place))
        every = store.per_text(place)
        for rows in (slice(3, 9), rng.integers(-23, 23, 7), np.arange(23) % 2 == 0, [], [5]):
            wanted = [every[i].flatten() for i in np.arange(23)[rows]]
            got = store.read(place, rows)
            if place[0] == "attn_pattern":
                assert got.numel() == sum(x.numel() for x in wanted)
            else:
                assert torch.equal(got.flatten(), torch.cat([torch.empty(0), *wanted]))
        for rows, x in store.shards(place):
            assert torch.equal(x, memory._rows(place)[torch.from_numpy(store.layout.index(place, rows))])
    flip(shard_of(path, 1))
    repair(path, model)
    assert_equal(*({place: a._rows(place) for place in a} for a in (load_activations(path), memory)))


def test_a_part_is_read_out_of_the_shards_that_hold_it(model, task, path):
    store = run(model, task, path)
    for number in (1, 2, 3):
        shard_of(path, number).unlink()
    rows = store._records[0].rows
    assert torch.equal(store.read("q.1", rows), run(model, task)["q.1"][rows])
    with pytest.raises(StorageError, match="is missing"):
        store.read("q.1", slice(None))
    assert HOW["points"] == store.points


def test_a_manifest_that_is_a_link_to_nothing_is_written_again(model, task, path, tmp_path):
    run(model, task, path)
    (path / "manifest.json").unlink()
    (path / "manifest.json").symlink_to(tmp_path / "nowhere")
    assert broken(path) == ["manifest.json"]
    with pytest.raises(StorageError, match=r"manifest\.json.*a link"):
        load_activations(path)
    done = repair(path)
    assert (done.manifest, done.complete) == (True, True)
    assert (path / "manifest.json").is_file()
    assert not (tmp_path / "nowhere").exists()
    assert verify(path).is_sound
    load_activations(path)


def test_links_and_pipes_under_the_names_of_records_and_shards_are_replaced(model, task, path, tmp_path):
    memory = run(model, task, path)
    link, record, pipe = shard_of(path, 0), path / "records/00001.json", shard_of(path, 2)
    for victim in (link, record, pipe):
        victim.unlink()
    link.symlink_to(tmp_path / "nowhere")
    record.symlink_to(tmp_path / "nowhere")
    os.mkfifo(pipe)
    assert set(broken(path)) == {str(victim.relative_to(path)) for victim in (link, record, pipe)}
    assert repair(path, model).complete
    assert verify(path).is_sound
    assert_equal(load_activations(path), memory)


def test_statistics_without_their_record_are_not_sound(model, task, path):
    run(model, task, path, stats=True)
    for record in (path / "statistics").glob("*.json"):
        record.unlink()
    found = verify(path)
    assert [one.file for one in found.broken] == ["statistics"]
    assert "no record names its" in found.broken[0].why
    assert found.advice.startswith("remove what is broken in")

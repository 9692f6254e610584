"""The store: equal to memory bit for bit, and it resumes where it stopped."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch
from store_cases import HOW, Stopped, assert_equal, files, lasting, plan_of, rows_of, run, shard_of, stop_after

from probekit.activations import Store, load_activations
from probekit.activations.parts import work
from probekit.activations.plan.plan import shard_rows
from probekit.activations.store import writer
from probekit.errors import DataError, ResumeMismatch, StorageError
from probekit.files.durable import seal, unseal

pytestmark = pytest.mark.usefixtures("small_shards")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("position", ["last", "mean"])
def test_disk_holds_what_memory_holds(model, task, path, dtype, position):
    store = run(model, task, path, dtype=dtype, position=position)
    assert isinstance(store, Store)
    assert len(list((path / "shards").iterdir())) >= 2
    assert_equal(store, run(model, task, dtype=dtype, position=position))
    store.verify()


def test_labels_splits_and_provenance_come_back(model, letters, path):
    task = letters(shortest=4)
    task = replace(task, position=np.arange(len(task)) % 4, groups=np.arange(len(task)) // 2)
    made, memory = run(model, task, path), run(model, task)
    store = load_activations(path)
    assert store.task.fingerprint() == task.fingerprint() == store.meta["task_fingerprint"]
    assert store.inputs == task.inputs
    assert store.ids == task.ids
    assert store.label_names == task.label_names
    assert (store.target, store.points, store.n_layers) == ("odd", ["resid_pre", "q"], 3)
    assert np.array_equal(store.labels["third"], task.labels["third"])
    assert store.labels["third"].dtype == np.int64
    assert np.array_equal(store.splits, task.splits)
    assert store.groups is not None
    assert np.array_equal(store.groups, np.arange(len(task)) // 2)
    assert np.array_equal(store.task.position, task.position)
    assert store.curve("resid_pre") == memory.curve("resid_pre")
    assert memory.meta.keys() <= store.meta.keys()
    same = memory.meta.keys() - {"created"}
    assert {key: store.meta[key] for key in same} == json.loads(json.dumps({key: memory.meta[key] for key in same}))
    assert repr(made).startswith("Store(tiny on letters: 23 texts x 7 places, 0.0 MB; resid_pre 0-2, resid_post 2, q")
    assert "resid_pre.1" in store
    assert ("v", 0) not in store


def test_texts_may_hold_anything(tiny, letters, path):
    model, task = tiny(), letters(texts=True)
    task.inputs[:4] = ["\ud800 lone", "\u2028\x00\x1b[31m", "</script>", '"\\u00e9"']
    model.tokenizer.encode_batch = lambda texts, bos: [[ord(c) % 27 for c in text] for text in texts]
    assert run(model, task, path).inputs == task.inputs
    assert load_activations(path).task.fingerprint() == task.fingerprint()


def test_the_files_of_a_store(model, task, path):
    run(model, task, path)
    made = plan_of(model, task, **HOW)
    n = len(made.shards)
    assert n == 4
    names = {"plan.json", "examples.json", "manifest.json", *(f"records/{k:05d}.json" for k in range(n))}
    found = {str(p.relative_to(path)) for p in files(path)}
    examples = json.loads((path / "examples.json").read_text())
    pieces = [f"examples/{one}.parquet" for one in examples["pieces"]]
    shards = {f"shards/{unseal(path / f'records/{k:05d}.json')[0]['file']}" for k in range(n)}
    assert found - names == shards | set(pieces)
    record = json.loads((path / "records" / "00000.json").read_text())
    assert record["rows"] == shard_rows(made, 0).tolist()
    assert list(record["tensors"]) == [f"{point}.{layer}" for point, layer in made.places]
    assert examples["layout"] == {"positions": ["last"], "n_bos": 0, "n_end": 0}
    table = pq.read_table(path / pieces[0]).to_pydict()
    assert (table["inputs"], table["ids"]) == (task.inputs, task.ids)
    assert table["lengths"] == [len(text) for text in task.inputs]


def test_other_programs_read_the_shards(model, task, path):
    store = run(model, task, path)
    for number in range(4):
        rows = unseal(path / "records" / f"{number:05d}.json")[0]["rows"]
        for name, x in safetensors.torch.load_file(shard_of(path, number)).items():
            assert torch.equal(x, store[name][rows])


def test_a_run_stopped_at_any_shard_ends_in_the_same_files(model, task, path, tmp_path, monkeypatch):
    whole = run(model, task, tmp_path / "whole")
    made = plan_of(model, task, **HOW)
    for n in range(len(made.shards)):
        shutil.rmtree(path, ignore_errors=True)
        with monkeypatch.context() as patch:
            stop_after(patch, n)
            with pytest.raises(Stopped):
                run(model, task, path)
        rows = rows_of(made, range(n))
        assert Store.progress(path) == (rows, 23)
        with pytest.raises(StorageError, match=rf"unfinished, with {rows} of 23 rows.*same extract command again"):
            load_activations(path)
        with monkeypatch.context() as patch:
            written = stop_after(patch, None)
            store = run(model, task, path)
        assert written == list(range(n, len(made.shards)))
        assert_equal(store, whole)
        assert lasting(path) == lasting(tmp_path / "whole")


def test_a_complete_store_is_returned_without_any_work(model, task, path, monkeypatch):
    first = run(model, task, path)
    parts = [p for p in files(path) if p.name != "manifest.json"]  # whose date says when it was last requested
    before = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in parts}
    monkeypatch.setattr(model, "forward", lambda *_, **__: pytest.fail("the model ran"))
    assert_equal(run(model, task, path), first)
    assert {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in parts} == before


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"points": "resid_pre"}, r"points: \['resid_pre', 'q'\] there, \['resid_pre'\] here"),
        ({"layers": "0,1"}, "places: "),
        ({"dtype": "bfloat16"}, "dtype: 'float32' there, 'bfloat16' here"),
        ({"position": "mean"}, "position: 'last' there, 'mean' here"),
        ({"position": np.zeros(23, dtype=int)}, "position: 'last' there, 'sha256:"),
        ({"batch_tokens": 31}, "batch_tokens: 16 there, 31 here"),
        ({"on_long": "error"}, "on_long: 'cut' there, 'error' here"),
    ],
)
@pytest.mark.parametrize("complete", [True, False])
def test_other_settings_are_refused_field_by_field(model, task, path, changes, field, complete, monkeypatch):
    with monkeypatch.context() as patch:
        if not complete:
            stop_after(patch, 1)
        with pytest.raises(Stopped) if not complete else monkeypatch.context():
            run(model, task, path)
    before = lasting(path)
    with pytest.raises(ResumeMismatch, match=field) as raised:
        run(model, task, path, **changes)
    assert raised.value.exit_code == 5
    assert "\n" not in str(raised.value)
    assert lasting(path) == before


def test_another_model_or_task_is_refused(tiny, letters, path):
    run(tiny(), letters(longest=11), path)
    with pytest.raises(ResumeMismatch, match=r"\(model_fingerprint \(the weights.*\): '[0-9a-f]{23}\.\.\."):
        run(tiny(seed=1), letters(longest=11), path)
    with pytest.raises(ResumeMismatch, match=r"config\.ln_eps: 1e-05 there, 0\.1 here"):
        run(tiny(ln_eps=0.1), letters(longest=11), path)
    with pytest.raises(ResumeMismatch, match="task_fingerprint"):
        run(tiny(), letters(longest=11, seed=3), path)
    with pytest.raises(ResumeMismatch, match="bos: False there, True here"):
        run(tiny(), letters(longest=11), path, bos=True)
    renamed = tiny()
    renamed.name = "other"
    assert run(renamed, letters(longest=11), path).meta["model"] == "tiny"
    with pytest.raises(ResumeMismatch, match="model: 'tiny' there, 'other' here; dtype"):
        run(renamed, letters(longest=11), path, dtype="float16")


def test_a_store_of_a_version_whose_config_had_fewer_fields_says_so(model, task, path):
    run(model, task, path)
    body, _ = unseal(path / "plan.json")
    del body["identity"]["config"]["scale_by_layer"]
    (path / "plan.json").write_bytes(seal(body)[0])
    with pytest.raises(ResumeMismatch, match=r"another version of probekit \(config\.scale_by_layer: nothing there, F"):
        run(model, task, path)


def test_a_store_of_a_version_that_summed_in_another_order_is_read_and_not_resumed(monkeypatch, model, task, path):
    now = work.identity_of
    with monkeypatch.context() as older:
        older.setattr(work, "identity_of", lambda plan: {k: v for k, v in now(plan).items() if k != "arithmetic"})
        acts = run(model, task, path)
    with pytest.raises(ResumeMismatch, match=r"another version of probekit \(arithmetic .*: nothing there, 2 here\)"):
        run(model, task, path)
    assert load_activations(path).keys() == acts.keys()


def test_what_is_no_store(model, task, tmp_path):
    with pytest.raises(DataError, match=r"no store at .*nothing"):
        load_activations(tmp_path / "nothing")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(StorageError, match="holds files that are not of a store"):
        run(model, task, tmp_path)
    with pytest.raises(StorageError, match=r"notes\.txt"):
        run(model, task, tmp_path / "notes.txt")
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]
    (tmp_path / "empty").mkdir()
    run(model, task, tmp_path / "empty")


def test_a_writer_that_begins_while_another_looks_is_no_stranger(tmp_path, monkeypatch):
    """The plan may come between the question whether there is one and the look at the folder."""
    store = tmp_path / "store"
    asked: list[bool] = []

    def lexists(path) -> bool:
        found = Path(path).exists()
        if str(path).endswith("plan.json") and not asked:
            asked.append(found)
            for name in ("plan.json", "examples.json"):
                (store / name).write_text("{}")
        return found

    store.mkdir()
    monkeypatch.setattr(writer, "is_there", lexists)
    writer.check_free(store)
    assert asked == [False]

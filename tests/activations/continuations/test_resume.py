"""Finished batches of continuations are on disk: a run that died goes on after them, with the same settings only."""

# pyright: reportOptionalMemberAccess=false

import pytest
import torch
from activations.continuations.cases import greedy, prompts, task_of_prompts, words
from store_cases import Stopped, assert_equal, files

from probekit.activations import load_activations
from probekit.activations.continuations import write
from probekit.activations.continuations.write import texts_written
from probekit.errors import DataError, ResumeMismatch, StorageError
from probekit.verbs.extract import extract

HOW = {"generate": 6, "temperature": 1.3, "stop_tokens": [3], "batch_tokens": 24, "on_bad_row": "skip"}


@pytest.fixture
def model(tiny):
    made = tiny(n_ctx=16)
    made.tokenizer = words(27)
    return made


def stop_after(monkeypatch, n):
    """Let n batches be written and stop before the next; the rows that were computed."""
    computed = []
    real = write.write_rows

    def counted(plan, rows, advance=None):
        if len(computed) == n:
            raise Stopped
        computed.append(rows.tolist())
        return real(plan, rows, advance)

    monkeypatch.setattr(write, "write_rows", counted)
    return computed


def test_a_run_goes_on_after_the_batches_that_are_on_disk(model, path, monkeypatch):
    task = task_of_prompts(13)
    expected = extract(model, task, **HOW)
    with monkeypatch.context() as patch:
        done = stop_after(patch, 3)
        with pytest.raises(Stopped):
            extract(model, task, out=path, **HOW)
    assert texts_written(path / "continuations") == sum(map(len, done))
    before = {p: p.read_bytes() for p in files(path)}
    with monkeypatch.context() as patch:
        rest = stop_after(patch, None)
        made = extract(model, task, out=path, **HOW)
    assert sorted(row for rows in done + rest for row in rows) == list(range(13))
    assert made.task.inputs == expected.task.inputs
    assert_equal(made, expected)
    assert all(p.read_bytes() == data for p, data in before.items())
    with monkeypatch.context() as patch:
        none = stop_after(patch, None)
        again = extract(model, task, out=path, **HOW)  # complete: nothing is written or computed
    assert (none, again.task.token_ids) == ([], made.task.token_ids)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"temperature": 1.0}, "temperature: 1.3 there, 1.0 here"),
        ({"generate": 7}, "generate: 6 there, 7 here"),
        ({"generate_seed": 2}, "generate_seed"),
        ({"stop_tokens": []}, "stop_tokens"),
        ({"bos": True}, "prompts"),
    ],
)
def test_other_settings_are_named_before_anything_is_written(model, path, change, named):
    task = task_of_prompts()
    extract(model, task, out=path, **HOW)
    before = {p: p.read_bytes() for p in files(path)}
    with pytest.raises(ResumeMismatch, match=named):
        extract(model, task, out=path, **HOW | change)
    assert {p: p.read_bytes() for p in files(path)} == before


def test_other_weights_and_other_texts_are_told_apart(model, tiny, path):
    extract(model, task_of_prompts(), out=path, **HOW)
    with pytest.raises(ResumeMismatch, match="prompts"):
        extract(model, task_of_prompts(seed=1), out=path, **HOW)
    other = tiny(seed=1, n_ctx=16)
    other.tokenizer = words(27)
    with pytest.raises(ResumeMismatch, match="model_fingerprint"):
        extract(other, task_of_prompts(), out=path, **HOW)


def test_a_store_without_continuations_and_a_folder_of_other_files_are_refused(model, path, monkeypatch):
    task = task_of_prompts()
    extract(model, task, out=path)
    computed = stop_after(monkeypatch, None)
    with pytest.raises(ResumeMismatch, match="generate: nothing there"):
        extract(model, task, out=path, **HOW)
    (path.parent / "mine").mkdir()
    (path.parent / "mine" / "thesis.tex").touch()
    with pytest.raises(StorageError, match="not of a store"):
        extract(model, task, out=path.parent / "mine", **HOW)
    assert computed == []


def test_a_batch_of_other_texts_is_refused(model, path):
    task = task_of_prompts()
    extract(model, task, out=path, **HOW)
    file = path / "continuations" / "000001.json"
    sound = file.read_bytes()
    file.write_bytes((path / "continuations" / "000000.json").read_bytes())
    with pytest.raises(StorageError, match="continuations of other texts"):
        extract(model, task, out=path, **HOW)
    file.unlink()
    extract(model, task, out=path, **HOW)
    assert file.read_bytes() == sound


def test_rows_may_be_skipped_after_all(model, path):
    """Whether texts that end at once are refused decides no token: the finished batches are taken."""
    task = task_of_prompts(13)
    first = greedy(model, prompts(13, 27)[0], 1)
    how = {"generate": 6, "stop_tokens": first, "batch_tokens": 24}
    with pytest.raises(DataError, match="ends it at once"):
        extract(model, task, out=path, **how)
    made = extract(model, task, out=path, **how, on_bad_row="skip")
    assert torch.equal(load_activations(path)["resid_pre", 0], made["resid_pre", 0])
    assert load_activations(path).task.generated.tolist() == made.task.generated.tolist()

"""The token that is read at each row is kept with the activations; a task's own token ids are what runs."""

import hashlib
from dataclasses import replace
from io import BytesIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from store_cases import plan_of

from probekit.activations import load_activations
from probekit.activations.plan.identity import identity_of
from probekit.activations.plan.token_ids import tokenise_inputs
from probekit.activations.store.format import read_plan
from probekit.errors import DataError, StorageError
from probekit.files.durable import seal, unseal
from probekit.verbs.extract import extract

LETTERS = {"a": 1, "b": 2, "c": 3}
POINTS = {"points": "resid_pre", "layers": 0}


@pytest.fixture
def abc(letters):
    """Six texts, "c", "ab", "abc", "c", ..."""
    task = letters(6)
    task.inputs[:] = ["c", "ab", "abc"] * 2
    return task


@pytest.mark.parametrize("bos", [False, True])
def test_the_tokens_are_those_at_the_position(model, abc, path, bos):
    ids = [[LETTERS[c] for c in text] for text in abc.inputs]
    for position, expected in (
        ("last", [own[-1] for own in ids]),
        ("first", [own[0] for own in ids]),
        ("mean", [-1] * 6),
        (np.array([0, 1, -2] * 2), [3, 2, 2] * 2),
        (["first", "last", "mean"], [i for own in ids for i in (own[0], own[-1], -1)]),
        ("all", [i for own in ids for i in own]),
    ):
        tokens = extract(model, abc, position=position, bos=bos, **POINTS).layout.tokens
        assert tokens is not None
        assert tokens.tolist() == expected
    several = extract(model, abc, position="all", bos=bos, out=path, **POINTS)
    for acts in (several, load_activations(path)):
        found = acts.at("last").layout.tokens
        assert found is not None
        assert found.tolist() == [own[-1] for own in ids]
        assert acts.at("mean").layout.tokens is None


def rewritten(path, change):
    """The store with other examples, as an older program would have left it."""
    head, _ = unseal(path / "examples.json")
    (piece,) = head["pieces"]
    file = path / "examples" / f"{piece}.parquet"
    out = BytesIO()
    pq.write_table(change(pq.read_table(file)), out)
    file.unlink()
    head["pieces"] = [hashlib.sha256(out.getvalue()).hexdigest()]
    (path / "examples" / f"{head['pieces'][0]}.parquet").write_bytes(out.getvalue())
    data, checksum = seal(head)
    (path / "examples.json").write_bytes(data)
    manifest, _ = unseal(path / "manifest.json", 1 << 29)
    (path / "manifest.json").write_bytes(seal(manifest | {"examples": checksum})[0])


def test_a_store_that_knows_no_tokens_is_read(model, abc, path):
    made = extract(model, abc, out=path, **POINTS)
    rewritten(path, lambda table: table.drop_columns(["tokens"]))
    acts = load_activations(path)
    assert acts.layout.tokens is None
    assert (acts["resid_pre", 0] == made["resid_pre", 0]).all()
    again = extract(model, abc, out=path, **POINTS)  # the same plan: it is taken as it is
    assert again.layout.tokens is None
    assert read_plan(path).identity == identity_of(plan_of(model, abc, **POINTS))


@pytest.mark.parametrize("tokens", [[[1]] * 5 + [[]], [[1, 2]] * 6, [["a"]] * 6, [[0.5]] * 6, [3] * 6, [None] * 6])
def test_tokens_that_cannot_be_are_refused(model, abc, path, tokens):
    extract(model, abc, out=path, **POINTS)
    rewritten(path, lambda table: table.drop_columns(["tokens"]).append_column("tokens", pa.array(tokens)))
    with pytest.raises(StorageError, match="not a list of the examples"):
        load_activations(path)


IDS = [[5, 5, 7], [1], [2, 9, 9, 3]]


@pytest.mark.parametrize("bos", [None, False, True])
def test_the_ids_of_a_task_are_what_runs(model, letters, bos):
    texts, ids = letters(3), replace(letters(3), inputs=IDS)
    exact = replace(texts, token_ids=IDS)
    sequences = tokenise_inputs(model, exact, bos, "error")
    assert [sequences[i].tolist() for i in range(3)] == [[0] * bool(bos) + own for own in IDS]
    found, expected = (extract(model, task, position="all", bos=bos) for task in (exact, ids))
    assert found.task.inputs == texts.inputs
    assert all(torch.equal(found[place], expected[place]) for place in expected)


def test_texts_that_were_tokenised_need_no_tokenizer(tiny, letters):
    model = tiny()
    model.tokenizer = None
    task = replace(letters(3), token_ids=IDS)
    assert extract(model, task)["resid_pre", 0].shape == (3, 16)


@pytest.mark.parametrize(("ids", "found"), [([], "no tokens"), ([27], "0..26, got 27"), (["a"], "got 'a'")])
def test_ids_that_the_model_cannot_take_are_refused_with_the_row(model, letters, ids, found):
    with pytest.raises(DataError, match="train:101.*" + found) as error:
        tokenise_inputs(model, replace(letters(3), token_ids=[[1], ids, [2]]), None, "cut")
    assert "tokenizer" not in str(error.value)


def test_ids_longer_than_the_context_are_cut_or_refused(model, letters):
    task = replace(letters(2), token_ids=[[1] * 14, [2]])
    cut = tokenise_inputs(model, task, None, "cut")
    assert (cut.lengths.tolist(), cut.n_cut) == ([12, 1], 1)
    with pytest.raises(DataError, match="14 tokens"):
        tokenise_inputs(model, task, None, "error")

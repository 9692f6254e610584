"""The token that is read at each row is kept with the activations, in memory and on disk."""

import hashlib
from io import BytesIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from store_cases import plan_of

from probekit.activations import load_activations
from probekit.activations.plan.identity import identity_of
from probekit.activations.store.format import read_plan
from probekit.errors import StorageError
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

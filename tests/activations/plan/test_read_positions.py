"""The token that is read at each row is kept with the activations, in memory and on disk."""

import json

import numpy as np
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
    """The store with other examples, as an older program would have left it: no manifest names them."""
    body, _ = unseal(path / "examples.json", 1 << 29)
    change(body)
    (path / "examples.json").write_bytes(seal(body)[0])
    manifest, _ = unseal(path / "manifest.json", 1 << 29)
    manifest["examples"] = json.loads((path / "examples.json").read_text())["seal"]
    (path / "manifest.json").write_bytes(seal(manifest)[0])


def test_a_store_from_before_reads_and_knows_no_tokens(model, abc, path):
    made = extract(model, abc, out=path, **POINTS)
    rewritten(path, lambda body: body.pop("tokens"))
    acts = load_activations(path)
    assert acts.layout.tokens is None
    assert (acts["resid_pre", 0] == made["resid_pre", 0]).all()
    again = extract(model, abc, out=path, **POINTS)  # the same plan: it is taken as it is
    assert again.layout.tokens is None
    assert read_plan(path).identity == identity_of(plan_of(model, abc, **POINTS))


@pytest.mark.parametrize("tokens", [[1], [1] * 7, ["a"] * 6, [0.5] * 6, 3])
def test_tokens_that_cannot_be_are_refused(model, abc, path, tokens):
    extract(model, abc, out=path, **POINTS)
    rewritten(path, lambda body: body.update(tokens=tokens))
    with pytest.raises(StorageError, match="not a list of the examples"):
        load_activations(path)

"""A self-test passes on a model that is right, and on one that is wrong it fails and says where."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gpt2_points import GPT2_POINTS
from tiny_configs import new_model
from torch import Tensor

import probekit as pk
from probekit.models import load_model
from probekit.models.families.gpt2 import GPT2, GPT2Config
from probekit.models.family import HfModel
from probekit.models.weights import save_hf
from probekit.verification import SelfTest, compare, references
from probekit.verification.inputs import MOST, inputs_for
from probekit.verification.result import CHECKS

SIZES = {"d_model": 16, "n_heads": 2, "d_mlp": 24, "n_layers": 3, "n_ctx": 24, "d_vocab": 61, "init_std": 0.3}


def tiny(**changes: Any) -> GPT2:
    model = GPT2(GPT2Config(**{**SIZES, "bos_token_id": 0, **changes})).init_weights(1).eval()
    model.name = "tiny"
    assert sum(p.numel() for p in model.parameters()) < 20_000
    return model


def failing(found: SelfTest) -> set[str]:
    """The checks that fail at any point."""
    return {check for row in found.rows for check, figure in row.figures.items() if not figure.passed}


def first(found: SelfTest) -> tuple[str, int | None, str]:
    assert found.first is not None
    return found.first.point, found.first.layer, found.first.check


@pytest.fixture(scope="module")
def sound() -> SelfTest:
    return pk.selftest(tiny())


def test_a_right_model_passes_at_every_point(sound):
    assert sound.passed
    assert [row.point for row in sound.rows] == [*GPT2_POINTS, "logits"]
    for row in sound.rows:
        missing = {"packed", "shuffled"} if row.point == "logits" else set()  # the engine has no head
        assert set(row.figures) == set(CHECKS) - missing
    assert sound.verdict.startswith("passed: 113 figures")


def test_transformers_shows_all_but_what_it_does_not_compute(sound):
    own = {row.point for row in sound.rows if row.against == "float64"}
    assert own == {"ln1_scale", "ln2_scale", "ln_final_scale", "attn_scores", "result"}
    assert "GPT2LMHeadModel" in sound.oracle
    assert "with this model's weights" in sound.oracle


def test_stated_bounds(sound):
    assert sound.bounds == {"reference": 1e-5} | dict.fromkeys(list(CHECKS)[1:], 5e-6)
    assert compare.bounds_of(torch.bfloat16) == dict.fromkeys(CHECKS, 8 * 2**-7)
    kept = {"packed": 8 * 2**-23, "shuffled": 8 * 2**-23}  # extraction keeps float32
    assert compare.bounds_of(torch.float64) == dict.fromkeys(CHECKS, 8 * 2**-52) | kept
    pattern, scores = (next(row for row in sound.rows if row.point == p) for p in ("attn_pattern", "attn_scores"))
    assert 5e-6 * sound.softmax >= pattern.figures["packed"].bound >= scores.figures["packed"].bound == 5e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_types_pass_their_own_bounds(dtype):
    found = pk.selftest(tiny(init_std=0.1).to(dtype))
    assert found.passed, found
    assert found.worst.error > 1e-5


def test_sharp_attention_passes():
    """Large scores: patterns are less exact than scores, and no fault of the model."""
    found = pk.selftest(tiny(init_std=0.7))
    assert found.softmax > 10
    assert found.passed, found


def test_a_wrong_norm_is_named():
    model = tiny()
    model.blocks[1].ln1.eps = 1e-2  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
    found = pk.selftest(model)
    assert first(found) == ("ln1_scale", 1, "reference")
    assert failing(found) == {"reference"}
    row = next(row for row in found.rows if row.point == "ln1_normalized")
    assert row.against == "transformers"
    assert not row.figures["reference"].passed
    assert "failed" in found.verdict
    assert "ln1_scale.1, reference" in found.verdict


def test_positions_that_count_padding_are_named(monkeypatch):
    def ignoring(mask: Tensor) -> Tensor:
        return torch.arange(mask.shape[1]).expand(mask.shape[:2])

    monkeypatch.setattr("probekit.models.base.positions_from_mask", ignoring)
    found = pk.selftest(tiny())
    assert first(found) == ("pos_embed", None, "left_pad")
    assert failing(found) == {"left_pad"}


def test_what_depends_on_the_batch_is_named():
    model = tiny()
    with model.hooks([(("mlp_out", 1), lambda x, _: x + (x.mean(0, keepdim=True) - x) * 1e-3)]):
        found = pk.selftest(model)
    assert first(found)[:2] == ("mlp_out", 1)
    assert {"left_pad", "right_pad"} <= failing(found)
    assert "reference" not in failing(found)  # of one text it is the mean


def test_a_packing_that_leaks_is_named(monkeypatch):
    """A mask that lets a node see every earlier node of its block, of other texts too."""
    monkeypatch.setattr(
        "probekit.activations.plan.packing.PackedBatch.mask",
        lambda self, device: torch.ones(len(self.tokens), *[self.tokens.shape[1]] * 2, dtype=torch.bool).tril(),
    )
    found = pk.selftest(tiny())
    assert first(found)[1] == 0
    assert failing(found) == {"packed", "shuffled"}


def test_a_last_block_that_computes_other_tokens_is_named(monkeypatch):
    reading = GPT2.reading

    def of_the_token_before(model: GPT2, read_BR: Tensor | None) -> Any:
        return reading(model, None if read_BR is None else (read_BR - 1).clamp(min=0))

    monkeypatch.setattr(GPT2, "reading", of_the_token_before)
    assert failing(pk.selftest(tiny(n_layers=1))) == {"packed"}


def test_not_a_number_fails():
    model = tiny()
    model.get_parameter("blocks.1.mlp.down.weight").data[0, 0] = torch.nan
    found = pk.selftest(model)
    assert first(found)[:2] == ("mlp_out", 1)
    assert failing(found) == set(CHECKS)
    assert math.isinf(found.worst.error)
    json.dumps(found.as_dict(), allow_nan=False)


def test_rounding_that_every_batch_shares_is_seen():
    """What TF32 and bfloat16 products do: the same in all batches, so that only float64 shows it."""
    model = tiny()
    with model.hooks([(("q", 2), lambda x, _: x.bfloat16().float())]):
        found = pk.selftest(model)
    assert first(found) == ("q", 2, "reference")


def test_without_transformers_the_rest_decides(monkeypatch):
    monkeypatch.setattr(references, "families", dict)
    found = pk.selftest(tiny())
    assert found.passed
    assert {row.against for row in found.rows} == {"float64"}
    assert found.oracle == "not available: no class of transformers is known for GPT2"
    model = tiny()
    model.blocks[1].ln1.eps = 1e-2  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
    assert first(pk.selftest(model)) == ("ln1_scale", 1, "reference")


def test_a_folder_is_read_by_transformers_itself(tmp_path: Path):
    save_hf(tiny(), tmp_path)
    model = load_model(tmp_path, device="cpu")
    found = pk.selftest(model)
    assert found.passed
    assert found.oracle.endswith("read from the model's folder")
    model.get_parameter("blocks.2.mlp.up.weight").data[3, 0] += 1
    assert first(pk.selftest(model)) == ("mlp_pre", 2, "reference")


def test_a_folder_that_transformers_cannot_read_is_a_failure(tmp_path: Path):
    save_hf(tiny(), tmp_path)
    model = load_model(tmp_path, device="cpu")
    (tmp_path / "model.safetensors").unlink()
    found = pk.selftest(model)
    assert not found.passed
    assert found.as_dict()["passed"] is False
    assert "GPT2LMHeadModel of 5" in found.oracle
    assert "cannot be run: " in found.oracle
    assert found.verdict.startswith(f"failed: {found.oracle}; against float64, ")
    assert found.first is None


@pytest.mark.parametrize(
    ("raised", "passes"),
    [("an index is out of range", False), ("\"addmm\" not implemented for 'Double'", True)],
)
def test_a_class_of_transformers_that_raises_fails_unless_it_lacks_float64(monkeypatch, raised, passes):
    def forward(*_, **__):
        raise RuntimeError(raised)

    monkeypatch.setattr("transformers.models.gpt2.modeling_gpt2.GPT2Model.forward", forward)
    found = pk.selftest(tiny())
    assert found.passed is passes
    assert raised in found.oracle
    assert (raised in found.verdict) is not passes


def test_a_class_that_the_installed_transformers_lacks_is_no_failure(monkeypatch):
    family = references.families()["gpt2"]
    newer = replace(family, twin=lambda cfg, names: HfModel("GPT2Config", "GPT9Model", {}))
    monkeypatch.setattr(references, "families", lambda: {"gpt2": newer})
    found = pk.selftest(tiny())
    assert found.passed
    assert found.oracle.startswith("not available: transformers 5")
    assert found.oracle.endswith("has no GPT9Model")


def test_it_leaves_everything_as_it_was(capfd):
    model = tiny()
    before, state = model.fingerprint(), torch.get_rng_state()
    pk.selftest(model)
    assert model.fingerprint() == before
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(point.hooked for point in model.points.values())
    assert capfd.readouterr() == ("", "")


def test_the_memory_at_hand_changes_no_figure(sound, monkeypatch):
    monkeypatch.setattr(compare, "MEMORY", 1)
    apart = pk.selftest(tiny())
    assert [(row.point, list(row.figures)) for row in apart.rows] == [(r.point, list(r.figures)) for r in sound.rows]
    assert apart.passed


def test_inputs_go_through_every_path():
    texts = [given[0] for given in inputs_for(tiny(), seed=0)]
    assert {len(text) for text in texts} >= {1, 24}
    assert any(a != b and a == b[: len(a)] for a in texts for b in texts)
    assert any(a[:4] == b[:4] and a[4] != b[4] for a in texts for b in texts if min(len(a), len(b)) > 4)
    assert len({tuple(text) for text in texts}) < len(texts)
    assert len({tuple(text) for text in texts if len(text) == 7}) == 3
    assert inputs_for(tiny(), seed=0) == [(ids,) for ids in texts] != inputs_for(tiny(), seed=1)


def test_inputs_are_few_and_fit():
    model = tiny()
    model.tokenizer = Bytes()  # pyright: ignore[reportAttributeAccessIssue]
    texts = [given[0] for given in inputs_for(model, seed=0)]
    assert len(texts) > 8
    assert sum(map(len, texts)) <= MOST
    assert max(map(len, texts)) == 24
    assert all(0 <= i < 61 for text in texts for i in text)
    assert ([0],) in inputs_for(tiny(n_ctx=1, d_vocab=1), seed=0)


class Bytes:
    encode: Callable[[str], list[int]] = staticmethod(lambda text: [byte % 61 for byte in text.encode()])


def test_the_smallest_model_passes():
    assert pk.selftest(tiny(n_ctx=1, n_layers=1, n_heads=1)).passed


@pytest.mark.parametrize(
    ("name", "spoil", "where"),
    [
        ("llama", lambda model: setattr(model.blocks[1].ln2, "eps", 1e-1), "ln2_scale"),
        ("bert", lambda model: setattr(model.blocks[1].ln1, "eps", 1e-1), "ln1_scale"),
        ("marian", lambda model: setattr(model.decoder.blocks[1].ln3, "eps", 1e-1), "decoder.ln3_scale"),
    ],
)
def test_a_wrong_norm_of_another_family_is_named(name, spoil, where):
    model = new_model(name)
    spoil(model)
    found = pk.selftest(model)
    assert not found.passed
    assert found.first is not None
    assert (found.first.point, found.first.layer, found.first.check) == (where, 1, "reference")


@pytest.mark.parametrize(
    ("name", "norm"),
    [("bert", "ln_embed"), ("bert", "head.ln"), ("marian", "encoder.blocks.0.ln1"), ("marian", "decoder.blocks.2.ln3")],
)
def test_a_norm_is_tested_fused_and_in_steps(name, norm):
    """A hook on its scale makes it compute step by step, so both ways are tested."""
    model = new_model(name)
    module = model.get_submodule(norm)
    right = module.forward
    module.forward = lambda x: right(x if module.hook_scale.hooked else x + 0.01 * x.roll(1, -1))
    found = pk.selftest(model)
    assert not found.passed
    assert found.first is not None
    assert found.first.check == "reference"


def test_a_source_that_leaks_into_its_neighbours_is_named(monkeypatch):
    monkeypatch.setattr(
        "probekit.activations.plan.packing.PackedBatch.cross_mask",
        lambda self, device: torch.ones(len(self.tokens), self.tokens.shape[1], self.source.tokens.shape[1]).bool(),
    )
    found = pk.selftest(new_model("marian"))
    assert not found.passed
    assert {figure.check for row in found.rows for figure in row.figures.values() if not figure.passed} == {
        "packed",
        "shuffled",
    }

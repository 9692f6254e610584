"""A self-test of a mixture of experts leaves out what follows from near ties, and only that."""

import json
from typing import Any

import pytest
import torch
from tiny_configs import new_model, tiny_model
from torch import Tensor

import probekit as pk
from probekit.models.families.moe import SoftmaxSparse
from probekit.verification.compared_runs import chosen_by_rounding


def tied_model(layer: int) -> Any:
    """In a layer the experts come in pairs whose logits differ by rounding: three of them are a pair and one of two."""
    model = new_model("qwen3-moe")
    assert (model.cfg.n_experts, model.cfg.n_active_experts) == (6, 3)
    with torch.no_grad():
        router = model.blocks[layer].mlp.router.weight
        noise = torch.randn(router[::2].shape, generator=torch.Generator().manual_seed(0))
        router[1::2] = router[::2] * (1 + 1e-7 * noise)
    return model


@pytest.fixture(scope="module")
def tied() -> Any:
    return tied_model(2)


def test_what_follows_from_a_near_tie_is_left_out_and_counted(tied):
    found = pk.selftest(tied)
    assert found.passed, found
    left = found.left_out["reference"]
    assert left.layer == 2
    assert 0 < left.tokens < found.tokens
    assert f"reference {left.tokens} from layer 2 on" in found.describe()
    assert json.loads(json.dumps(found.as_dict()))["left_out"]["reference"] == {"tokens": left.tokens, "layer": 2}


@pytest.mark.parametrize("name", ["glm-4.5", "deepseek-v2"])
def test_near_ties_of_groups_are_left_out_too(name, monkeypatch):
    """In the last layer the second of three groups is like the third but for rounding, and two are chosen."""
    model = new_model(name)
    with torch.no_grad():
        mlp: Any = model.blocks[2].mlp
        router = mlp.router.weight
        noise = torch.randn(router[4:].shape, generator=torch.Generator().manual_seed(0))
        router[4:] = router[2:4] * (1 + 1e-7 * noise)
        if hasattr(mlp, "correction_bias"):
            mlp.correction_bias.zero_()
    found = pk.selftest(model)
    assert found.passed, found
    assert found.left_out["reference"].layer == 2
    assert 0 < found.left_out["reference"].tokens <= found.tokens  # all, if rounding decides the first of each text
    monkeypatch.setattr("probekit.verification.compared_runs.chosen_by_rounding", never)
    failed = pk.selftest(model)
    assert failed.first is not None
    assert (failed.first.point, failed.first.layer) == ("expert_weights", 2)


def never(logits: Tensor, *_: Any) -> Tensor:
    return torch.zeros(len(logits), dtype=torch.bool)


def test_without_that_a_right_model_would_fail(tied, monkeypatch):
    by_rounding = "probekit.verification.compared_runs.chosen_by_rounding"
    monkeypatch.setattr(by_rounding, never)
    found = pk.selftest(tied)
    assert found.first is not None
    assert (found.first.point, found.first.layer, found.first.check) == ("expert_weights", 2, "reference")
    assert found.left_out == {}


def test_nothing_is_left_out_without_near_ties():
    found = pk.selftest(tiny_model("qwen3-moe"))
    assert found.passed
    assert found.left_out == {}
    assert "left out" not in found.describe()


def the_largest_is_passed_over(self: SoftmaxSparse, logits: Tensor) -> Tensor:
    shares = logits.softmax(-1)
    largest, chosen = shares.topk(self.n_active + 1, -1)
    return torch.zeros_like(shares).scatter(-1, chosen[..., 1:], largest[..., 1:])


def the_last_is_the_next_but_one(self: SoftmaxSparse, logits: Tensor) -> Tensor:
    shares = logits.softmax(-1)
    largest, chosen = shares.topk(self.n_active + 2, -1)
    kept = [*range(self.n_active - 1), self.n_active + 1]
    return torch.zeros_like(shares).scatter(-1, chosen[..., kept], largest[..., kept])


@pytest.mark.parametrize("wrong", [the_largest_is_passed_over, the_last_is_the_next_but_one])
def test_a_wrong_choice_fails_even_beside_near_ties(wrong, monkeypatch):
    monkeypatch.setattr(SoftmaxSparse, "weights", wrong)
    found = pk.selftest(tied_model(2))
    assert found.first is not None
    assert (found.first.point, found.first.layer) == ("expert_weights", 0)
    assert "float64" not in {row.against for row in found.rows if row.point == "expert_weights"}


def test_a_wrong_choice_in_the_tied_layer_fails(tied):
    model = tied_model(2)
    mlp: Any = model.blocks[2].mlp
    mlp.weights = lambda logits: the_last_is_the_next_but_one(mlp, logits)
    found = pk.selftest(model)
    assert found.first is not None
    assert (found.first.point, found.first.layer) == ("expert_weights", 2)


def test_wrong_logits_fail_and_excuse_no_choice():
    """Logits that are off by much choose other experts, which the logits' own bound shows."""
    model = new_model("qwen3-moe")
    with model.hooks([(("router_logits", 2), lambda x, _: x + 0.1 * x.roll(1, -1))]):
        found = pk.selftest(model)
    assert found.first is not None
    assert (found.first.point, found.first.layer, found.first.check) == ("router_logits", 2, "reference")


def test_nothing_left_to_compare_is_no_pass(monkeypatch):
    by_rounding = "probekit.verification.compared_runs.chosen_by_rounding"
    monkeypatch.setattr(by_rounding, lambda logits, *_: torch.ones(len(logits), dtype=torch.bool))
    found = pk.selftest(tiny_model("qwen3-moe"))
    assert found.first is None
    assert not found.passed
    assert found.unchecked == "expert_weights.0, reference"
    assert found.left_out["reference"].tokens == found.tokens
    assert found.verdict.startswith("undecided: ")
    assert "--dtype float32" in found.verdict


ONE, OTHER = torch.tensor([1.0, 1, 0, 0]), torch.tensor([1.0, 0, 1, 0])


@pytest.mark.parametrize(
    ("logits", "wanted", "chosen", "wanted_chosen", "expected"),
    [
        ([3, 2.001, 2, 1], [3, 2, 2.001, 1], ONE, OTHER, True),
        ([3, 2.001, 2, 1], [3, 2, 2.001, 1], ONE, ONE, False),  # the same experts
        ([3, 2.1, 2, 1], [3, 2.1, 2, 1], OTHER, ONE, False),  # the logits are the same
        ([3, 2, 2, 1], [3, 2, 2, 1], OTHER, ONE, True),  # a tie
        ([3, 2.001, 2, 1], [3, 2, 2.001, 1], torch.tensor([0.0, 1, 1, 0]), OTHER, False),  # without the largest
        ([3, 2.001, 2, 1], [3, 2, 2.001, 1], torch.tensor([1.0, 0, 0, 1]), OTHER, False),  # with the smallest
    ],
)
def test_a_choice_that_the_logits_do_not_explain_is_compared(logits, wanted, chosen, wanted_chosen, expected):
    logits, wanted = torch.tensor([logits], dtype=torch.double), torch.tensor([wanted], dtype=torch.double)
    assert chosen_by_rounding(logits, chosen[None], wanted, wanted_chosen[None], 2).tolist() == [expected]


def test_any_choice_by_logits_is_explained_by_their_difference():
    generator = torch.Generator().manual_seed(0)
    wanted = torch.randn(500, 16, generator=generator, dtype=torch.double)
    for size in (1e-3, 0.1, 3):
        logits = wanted + size * torch.randn(wanted.shape, generator=generator, dtype=torch.double)
        weights, others = (torch.zeros_like(x).scatter(-1, x.topk(4, -1).indices, 1) for x in (logits, wanted))
        differs = (weights != others).any(-1)
        assert torch.equal(chosen_by_rounding(logits, weights, wanted, others, 4), differs)
        assert differs.any()

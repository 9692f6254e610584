"""Branches of a trunk against a full forward for each edited text by itself, in every family."""

import dataclasses
import math
from functools import cache
from typing import Any

import pytest
import torch
from models.adapter.wrapped import wrapped
from tiny_configs import LIKE_ANOTHER, tiny_configs, tiny_model
from torch import Tensor

from probekit.causal.branches import rows as branch_rows
from probekit.causal.branches import run as branches_module
from probekit.causal.branches.run import Branches, Trunk, run_branches, run_trunk
from probekit.errors import UsageError
from probekit.interventions import Add, Edit, ProjectOut, Replace, Swap, editing
from probekit.models.families import shape_of
from probekit.points import POINTS

CONFIGS = tiny_configs()
SINGLE = [name for name in CONFIGS if len(shape_of(CONFIGS[name]).stacks) == 1]
PAIRS = [name for name in CONFIGS if name not in SINGLE]
every_family = pytest.mark.parametrize("name", [name for name in SINGLE if name not in LIKE_ANOTHER])
D, LENGTHS, NEAR = 32, (12, 5, 9, 12, 1), 1e-5
V = 8  # branches


@cache
def texts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(8, 50, (n,), generator=generator).tolist() for n in LENGTHS]


@cache
def trunk_of(name: str, answers: bool = False) -> Trunk:
    """The trunk of a tiny model, read at the last tokens or at others."""
    return run_trunk(tiny_model(name), texts(), torch.tensor([7, 4, 0, 11, 0]) if answers else None)


def random(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def some_branches(layer: int, edits: dict[Any, Any], n: int = V) -> Branches:
    """Branches of every text, edited at some tokens, at all, and at none."""
    generator = torch.Generator().manual_seed(layer)
    at_VL = torch.rand(n, max(LENGTHS), generator=generator) < 0.15
    at_VL[0], at_VL[1] = True, False
    text_V = torch.arange(n) % len(LENGTHS)
    return Branches(layer, text_V, at_VL & (torch.arange(12) < torch.tensor(LENGTHS)[text_V, None]), edits)


def of_row(edit: Edit, v: int) -> Edit:
    """The edit of one row by itself."""
    shared = {"basis": 2, "mean": 1, "scale": 0}
    fields = {}
    for field, x in vars(edit).items():
        has_rows = isinstance(x, Tensor) and x.dim() > shared.get(field, 1)
        fields[field] = x[v] if has_rows else x
    return type(edit)(**fields)


@torch.no_grad()
def alone(model: Any, trunk: Trunk, branches: Branches) -> Tensor:
    """A forward of each edited text, from the embedding."""
    out = []
    for v, i in enumerate(branches.text_V.tolist()):
        tokens = torch.tensor([trunk.texts[i]])
        edits = {point: of_row(edit, v) for point, edit in branches.edits.items() if isinstance(edit, Edit)}
        with editing(model, edits, branches.at_VL[v : v + 1, : tokens.shape[1]]):
            out.append(model(tokens, return_logits=False)[0, trunk.answer_N[i]])
    return torch.stack(out)


def assert_near(x: Tensor, wanted: Tensor) -> None:
    assert x.shape == wanted.shape
    assert (x - wanted).abs().max() <= NEAR * wanted.abs().max()


@every_family
@pytest.mark.parametrize("answers", [False, True])
def test_a_trunk_is_the_run_of_each_text_alone(name: str, answers: bool) -> None:
    trunk = trunk_of(name, answers)
    nothing = Branches(0, torch.arange(len(LENGTHS)), torch.zeros(len(LENGTHS), 12, dtype=torch.bool), {})
    assert_near(trunk.hidden_ND, alone(tiny_model(name), trunk, nothing))


@every_family
def test_branches_are_full_forwards_with_the_edits(name: str) -> None:
    """Every kind of edit, at points before and after the sublayers, in every layer, a row for each branch."""
    model = tiny_model(name)
    last = "mlp_out" if model.layers_of("mlp_out") else "resid_post"
    of_head: Any = model.points[POINTS["z"].format(layer=1)].axes.split()[2:]
    width = math.prod(model.size_of(axis, "z", 1) for axis in of_head)
    basis = torch.linalg.qr(random(D, 2)).Q
    swap = {("resid_pre", 0): Swap(basis, random(V, 2)), ("attn_out", 1): ProjectOut(basis, random(V, D))}
    for layer, edits, answers in [
        (0, swap, True),
        (1, {("resid_pre", 1): Replace(random(V, D))}, False),
        (
            1,
            {("z", 1): Replace(random(V, width), random(V, width, seed=2) > 0), ("resid_pre", 2): Add(random(D))},
            True,
        ),
        (2, {("resid_pre", 2): Add(random(V, D), scale=random(V))}, True),
        (2, {(last, 2): Replace(random(V, D))}, False),
    ]:
        trunk, branches = trunk_of(name, answers), some_branches(layer, edits)
        wanted = alone(model, trunk, branches)
        assert_near(run_branches(model, trunk, branches), wanted)
        assert (wanted - trunk.hidden_ND[branches.text_V]).abs().max() > 0.1  # the edits do something


def test_the_way_of_running_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing kept of the trunk, a few tokens at a time, a branch a row."""
    model, edits = tiny_model("gpt2"), {("resid_pre", 1): Replace(random(V, D))}
    branches = some_branches(1, edits)
    wanted = run_branches(model, trunk_of("gpt2"), branches)
    monkeypatch.setattr(branches_module, "TOKENS", {"cpu": 20})
    assert_near(run_branches(model, run_trunk(model, texts(), keep=0), branches), wanted)
    monkeypatch.setattr(branch_rows, "ROW_TOKENS", 1)
    assert_near(run_branches(model, trunk_of("gpt2"), branches), wanted)


def test_a_branch_computes_its_own_tokens_alone() -> None:
    """From the first edited token to the answer token, in the layers from the edit on, side by side."""
    model, trunk, edits = tiny_model("gpt2"), trunk_of("gpt2"), {("resid_pre", 1): Replace(random(3, D))}
    at_VL = torch.zeros(3, 12, dtype=torch.bool)
    at_VL[0, 9] = at_VL[1, 11] = at_VL[2, 10] = True
    seen: list[tuple[str, list[int]]] = []
    with model.hooks([(["resid_pre", "mlp_out"], lambda x, hook: seen.append((hook.name, list(x.shape))))]):
        run_branches(model, trunk, Branches(1, torch.tensor([0, 0, 0]), at_VL, edits))
    assert seen == [
        ("blocks.1.hook_resid_pre", [1, 3 + 1 + 2, D]),
        ("blocks.1.hook_mlp_out", [1, 6, D]),
        ("blocks.2.hook_resid_pre", [1, 6, D]),
        ("blocks.2.hook_mlp_out", [1, 3, D]),
    ]


def test_a_row_of_an_edit_may_belong_to_a_token() -> None:
    model, trunk = tiny_model("llama"), trunk_of("llama")
    at_VL = torch.ones(2, 12, dtype=torch.bool)
    values = random(24, D)
    one = Branches(1, torch.tensor([0, 3]), at_VL, {("resid_pre", 1): Replace(values)}, torch.arange(24).view(2, 12))
    got = run_branches(model, trunk, one)
    with torch.no_grad(), model.hooks([("resid_pre.1", lambda x, _: values.view(2, 12, D))]):
        wanted = model(torch.tensor([texts()[0], texts()[3]]), return_logits=False)[:, -1]
    assert_near(got, wanted)


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "bert"])
def test_gradients_are_those_of_full_forwards(name: str) -> None:
    model, weights = tiny_model(name), next(tiny_model(name).parameters())
    direction, at_VL = random(V, D).requires_grad_(), some_branches(1, {}).at_VL
    branches = Branches(1, torch.arange(V) % len(LENGTHS), at_VL, {("resid_pre", 1): Add(direction)})
    got = run_branches(model, trunk_of(name), branches)
    weight_D = random(D, seed=3)
    (grad,) = torch.autograd.grad((got @ weight_D).sum(), direction)
    assert weights.requires_grad
    assert weights.grad is None
    step = 0.01 * random(V, D, seed=4)
    moved = [
        alone(
            model,
            trunk_of(name),
            dataclasses.replace(branches, edits={("resid_pre", 1): Add(direction.detach() + sign * step)}),
        )
        for sign in (1, -1)
    ]
    slope = ((moved[0] - moved[1]) @ weight_D / 2).sum()
    assert slope == pytest.approx(float((grad * step).sum()), rel=0.01)
    with torch.no_grad():
        assert not run_branches(model, trunk_of(name), branches).requires_grad


def test_a_branch_without_edited_tokens_is_the_trunk_exactly() -> None:
    model, trunk = tiny_model("gpt2"), trunk_of("gpt2", True)
    after = torch.arange(12) > trunk.answer_N[:, None]
    branches = Branches(0, torch.arange(len(LENGTHS)), after, {("resid_pre", 0): Replace(random(D))})
    assert torch.equal(run_branches(model, trunk, branches), trunk.hidden_ND)


def test_no_hook_stays_after_an_error() -> None:
    model = tiny_model("gpt2")
    with pytest.raises(UsageError, match="has width 32"):
        run_branches(model, trunk_of("gpt2"), some_branches(1, {("resid_pre", 1): Replace(random(V, D + 1))}))
    assert not any(point.hooked for point in model.points.values())
    assert all(w.requires_grad for w in model.parameters())


@pytest.mark.parametrize("kind", ["opt", "mamba", "electra"])
def test_models_of_transformers_run_whole_texts(kind: str) -> None:
    """Packed, one length at a time, and read in both directions."""
    model = wrapped(kind)
    trunk = run_trunk(model, texts())
    branches = some_branches(1, {("resid_pre", 1): Add(random(V, D))})
    assert_near(trunk.hidden_ND, alone(model, trunk, dataclasses.replace(branches, text_V=torch.arange(5), edits={})))
    assert_near(run_branches(model, trunk, branches), alone(model, trunk, branches))


@pytest.mark.parametrize("name", PAIRS)
def test_an_encoder_decoder_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is an encoder-decoder, and edits are followed in one stack alone"):
        run_trunk(tiny_model(name), texts())


def test_errors_say_what_to_give() -> None:
    model = tiny_model("gpt2")
    with pytest.raises(UsageError, match="the answer token of text 1 is one of its 5 tokens; got 9"):
        run_trunk(model, texts()[:2], torch.tensor([0, 9]))
    with pytest.raises(UsageError, match="a text without tokens"):
        run_trunk(model, [[1, 2], []])
    with pytest.raises(UsageError, match=r"branches start at a layer, 0..2; got 3"):
        run_branches(model, trunk_of("gpt2"), some_branches(3, {}))
    wrong = Branches(0, torch.tensor([0]), torch.ones(1, 5, dtype=torch.bool), {})
    with pytest.raises(UsageError, match=r"at_VL is \[1, 12\]"):
        run_branches(model, trunk_of("gpt2"), wrong)

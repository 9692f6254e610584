"""Activation patching against full forwards of each patched text by itself, and what must hold of any grid.

Axes: N pairs, T tokens, L layers, C columns.
"""

from typing import Any

import numpy as np
import pytest
import torch
from tiny_configs import new_model, tiny_model
from torch import Tensor, nn

from probekit.causal.behaviour.pairs import MinimalPairs
from probekit.causal.branches.run import Branches, run_branches, run_trunk
from probekit.causal.data import PatchGrid
from probekit.causal.patching.patching import POINTS, intervals, patch_grid, recovery
from probekit.errors import DataError, UsageError
from probekit.interventions import Replace

LAYERS, T = 3, 6
NEAR = 1e-5


def pairs_of(n: int = 4, length: int = T, seed: int = 0, changed: int | None = None, **fields: Any) -> MinimalPairs:
    """Texts that share their first token and their last; with `changed`, all but this one."""
    generator = torch.Generator().manual_seed(seed)
    clean, other = (torch.randint(8, 40, (n, length), generator=generator) for _ in range(2))
    keeps = (
        torch.isin(torch.arange(length), torch.tensor([0, length - 1]))
        if changed is None
        else torch.arange(length) != changed
    )
    corrupted = torch.where(keeps, clean, 8 + (other - 8 + (clean == other)) % 32)
    last = torch.full((n,), length - 1)
    answers = torch.tensor([41, 42] * n)[:n], torch.tensor([42, 41] * n)[:n]
    names = [f"pairs.csv, line {i + 2}" for i in range(n)]
    return MinimalPairs(clean.tolist(), corrupted.tolist(), *answers, last, last, names, **fields)


def difference(model: Any, pairs: MinimalPairs, i: int, text: list[int], answer: int, hooks: Any = ()) -> float:
    """The logit difference of pair i's answers at a token of a text."""
    with torch.no_grad(), model.hooks(list(hooks)):
        logits_V = model(torch.tensor([text]))[0, answer]
    return float(logits_V[pairs.own_N[i]] - logits_V[pairs.other_N[i]])


def one_by_one(model: Any, pairs: MinimalPairs, point: str) -> np.ndarray:
    """The recovery in every cell, by forwards of one text."""
    n_columns = model.cfg.n_heads if point == "z" else T
    changes, gaps = np.zeros((len(pairs), LAYERS, n_columns)), np.zeros(len(pairs))
    for i, (clean, corrupted) in enumerate(zip(pairs.clean, pairs.corrupted, strict=True)):
        at_clean, at_corrupted = int(pairs.clean_answer_N[i]), int(pairs.corrupted_answer_N[i])
        before = difference(model, pairs, i, corrupted, at_corrupted)
        gaps[i] = difference(model, pairs, i, clean, at_clean) - before
        with torch.no_grad():
            _, cache = model.run_with_cache(torch.tensor([clean]), points=point, return_logits=model.has_logits)
        for layer in range(LAYERS):
            for column in range(n_columns):

                def patch(x: Tensor, _: Any, value: Tensor = cache[point, layer], at: int = column) -> Tensor:
                    new = x.clone()
                    new[:, :, at] = value[:, :, at] if point == "z" else new[:, :, at]
                    new[:, at] = new[:, at] if point == "z" else value[:, at]
                    return new

                after = difference(model, pairs, i, corrupted, at_corrupted, [((point, layer), patch)])
                changes[i, layer, column] = after - before
    return changes.mean(0) / gaps.mean()


def assert_near(x: np.ndarray, wanted: np.ndarray) -> None:
    assert x.shape == wanted.shape
    assert np.abs(x - wanted).max() <= 10 * NEAR * max(1, np.abs(wanted).max())


@pytest.mark.parametrize(
    ("name", "point"),
    [
        *(("gpt2", point) for point in POINTS),
        *(("bert", point) for point in POINTS),
        ("gemma2", "attn_out"),
        ("gemma2", "z"),
    ],
)
def test_a_grid_is_the_recovery_of_each_cell_by_itself(name: str, point: str) -> None:
    model, pairs = tiny_model(name), pairs_of(2)
    grid = patch_grid(model, pairs, point, placebos=0)
    assert_near(grid.recovery, one_by_one(model, pairs, point))
    assert (grid.layers, grid.by, grid.n, grid.n_exact) == ([0, 1, 2], "head" if point == "z" else "position", 2, 2)
    assert grid.within_placebo is None


def test_the_answer_may_be_read_before_the_end() -> None:
    """A mask in the middle of a text that is read in both directions."""
    model, pairs = tiny_model("bert"), pairs_of(2)
    pairs.clean_answer_N.fill_(3)  # the same tensor is the corrupted texts'
    assert_near(patch_grid(model, pairs, placebos=0).recovery, one_by_one(model, pairs, "resid_pre"))


def test_a_pair_with_one_patched_token_is_a_run_by_itself() -> None:
    model, pairs = tiny_model("gpt2"), pairs_of(1, changed=T - 1)
    found = patch_grid(model, pairs, "resid_pre", placebos=0)
    assert_near(found.recovery[:, -1], one_by_one(model, pairs, "resid_pre")[:, -1])


def test_one_changed_token_is_recovered_whole_where_it_is_read() -> None:
    """In layer 0 at the changed token; before it, and after the answer token, nothing can be recovered."""
    grid = patch_grid(tiny_model("gpt2"), pairs_of(6, changed=2), placebos=0)
    assert grid.recovery[0] == pytest.approx([0, 0, 1, 0, 0, 0], abs=NEAR)
    assert (grid.recovery[:, :2] == 0).all()
    assert (grid.interval[:, :2] == 0).all()
    assert grid.interval[0, 2] == pytest.approx([1, 1], abs=10 * NEAR)


def test_patching_everything_is_the_clean_run_and_nothing_the_corrupted_one() -> None:
    """All positions of a layer in one patch."""
    model, pairs = tiny_model("gpt2"), pairs_of(2)
    clean, trunk = run_trunk(model, pairs.clean), run_trunk(model, pairs.corrupted)
    rows = torch.arange(2 * T).view(2, T)
    everywhere = torch.ones(2, T, dtype=torch.bool)
    for layer in range(LAYERS):
        with torch.no_grad():
            _, cache = model.run_with_cache(torch.tensor(pairs.clean), points="resid_pre")
        values = {("resid_pre", layer): Replace(cache["resid_pre", layer].flatten(0, 1))}
        branches = Branches(layer, torch.arange(2), everywhere, values, rows)
        assert (run_branches(model, trunk, branches) - clean.hidden_ND).abs().max() <= NEAR
        nothing = Branches(layer, torch.arange(2), ~everywhere, values, rows)
        assert torch.equal(run_branches(model, trunk, nothing), trunk.hidden_ND)


def linear_model() -> Any:
    """A GPT-2 without norms and MLPs, whose heads average over all earlier tokens."""
    model = new_model("gpt2")
    model.ln_final = nn.Identity()
    with torch.no_grad():
        for block in model.blocks:
            block.ln1 = block.ln2 = nn.Identity()
            block.attn.qkv.weight[: 2 * model.cfg.d_model] = 0
            block.attn.qkv.bias[: 2 * model.cfg.d_model] = 0
            block.mlp.down.weight.zero_()
    return model


@pytest.mark.parametrize("point", ["resid_pre", "attn_out", "z"])
def test_attribution_is_exact_in_a_linear_model(point: str) -> None:
    grid = patch_grid(linear_model(), pairs_of(3), point, placebos=0)
    assert grid.attribution is not None
    assert_near(grid.attribution, grid.recovery)
    assert grid.correlation == pytest.approx(1, abs=NEAR)
    if point == "resid_pre":
        assert grid.recovery.sum(1) == pytest.approx(1, abs=10 * NEAR)  # all positions of a layer are the clean run


def test_attribution_of_all_pairs_is_compared_with_exact_patching_of_some() -> None:
    model, pairs = tiny_model("gpt2"), pairs_of(6)
    exact, fast = patch_grid(model, pairs, placebos=0), patch_grid(model, pairs, exact=2, placebos=3)
    assert exact.attribution is not None
    assert np.array_equal(fast.recovery, exact.attribution)
    assert (fast.n, fast.n_exact) == (6, 2)
    assert fast.correlation is not None
    assert -1 <= fast.correlation <= 1
    assert fast.within_placebo is not None  # placebos by attribution
    assert patch_grid(model, pairs, exact=0, placebos=0).correlation is None


def test_placebos_are_other_pairs_corrupted_texts() -> None:
    """Where only one token counts, a text with the same token recovers nothing; the clean token recovers all."""
    model, pairs = tiny_model("gpt2"), pairs_of(6, changed=2)
    for text in pairs.corrupted:
        text[2] = 7  # all corrupted texts have one token here, other ones elsewhere
    grid = patch_grid(model, pairs, placebos=4)
    assert grid.within_placebo is not None
    assert not grid.within_placebo[0, 2]
    assert grid.within_placebo[:, 0].all()
    assert patch_grid(model, pairs_of(1), placebos=4).within_placebo is None  # no other pair


def joined(one: MinimalPairs, other: MinimalPairs) -> MinimalPairs:
    texts = ([*getattr(one, x), *getattr(other, x)] for x in ("clean", "corrupted"))
    numbers = ("own_N", "other_N", "clean_answer_N", "corrupted_answer_N")
    tensors = (torch.cat([getattr(one, x), getattr(other, x)]) for x in numbers)
    return MinimalPairs(*texts, *tensors, [*one.names, *other.names])  # pyright: ignore[reportCallIssue]


def test_texts_of_several_lengths_are_counted_from_their_ends() -> None:
    short, long = pairs_of(2, 4, seed=1), pairs_of(3)
    both = joined(short, long)
    model = tiny_model("gpt2")
    grid, alone = patch_grid(model, both, placebos=0), patch_grid(model, long, placebos=0)
    assert grid.columns == ["-6", "-5", "-4", "-3", "-2", "-1"]
    assert grid.recovery[:, :2] == pytest.approx(alone.recovery[:, :2])  # the longer texts have these alone


def test_a_cell_without_placebos_is_not_outside_their_band() -> None:
    """One long pair has no other of its length, and two short ones have each other."""
    short, long = pairs_of(2, 4, seed=1), pairs_of(1)
    grid = patch_grid(tiny_model("gpt2"), joined(short, long), placebos=2)
    assert grid.within_placebo is not None
    assert grid.within_placebo[:, :2].all()
    assert not grid.within_placebo.all()


def test_pairs_that_align_at_the_answer_alone_are_patched_there() -> None:
    longer, pairs = pairs_of(2, T + 2, seed=3), pairs_of(2, align="last")
    apart = MinimalPairs(
        longer.clean,
        pairs.corrupted,
        pairs.own_N,
        pairs.other_N,
        longer.clean_answer_N,
        pairs.corrupted_answer_N,
        pairs.names,
        "last",
    )
    model = tiny_model("gpt2")
    grid = patch_grid(model, apart, placebos=1)
    assert grid.columns == ["answer token"]
    assert (grid.recovery[1:] != 0).all()
    wanted = []
    for i in range(2):
        with torch.no_grad():
            _, cache = model.run_with_cache(torch.tensor([apart.clean[i]]), points="resid_pre.2")
        value_D = cache["resid_pre", 2][0, -1]

        def patch(x: Tensor, _: Any, value_D: Tensor = value_D) -> Tensor:
            return torch.cat([x[:, :-1], value_D[None, None]], 1)

        wanted.append(difference(model, apart, i, apart.corrupted[i], T - 1, [("resid_pre.2", patch)]))
    before = [difference(model, apart, i, apart.corrupted[i], T - 1) for i in range(2)]
    gap = [difference(model, apart, i, apart.clean[i], T + 1) - before[i] for i in range(2)]
    assert grid.recovery[2, -1] == pytest.approx((np.sum(wanted) - np.sum(before)) / np.sum(gap), abs=10 * NEAR)


def test_intervals_resample_pairs_or_groups() -> None:
    generator = np.random.default_rng(0)
    effects_NLC, gap_N = generator.normal(0.5, 1, (400, 1, 1)), np.full(400, 2.0)
    (low, high), error = intervals(effects_NLC, gap_N, np.arange(400))[0, 0], effects_NLC.std() / 20 / 2
    assert (high - low) / (2 * 1.96 * error) == pytest.approx(1, abs=0.15)
    assert low < recovery(effects_NLC, gap_N)[0, 0] < high
    doubled = np.repeat(effects_NLC, 2, 0)
    by_group = intervals(doubled, np.full(800, 2.0), np.repeat(np.arange(400), 2))[0, 0]
    assert by_group == pytest.approx([low, high])


def test_a_column_that_no_pair_has_is_nan() -> None:
    effects_NLC = np.full((3, 1, 2), np.nan)
    effects_NLC[:, 0, 0] = 1
    assert np.isnan(recovery(effects_NLC, np.ones(3))[0]).tolist() == [False, True]


def test_every_layer_is_reported() -> None:
    told: list[tuple[int, int]] = []
    grid = patch_grid(tiny_model("gpt2"), pairs_of(2), layers=[2, 0], placebos=0, on_layer=lambda *at: told.append(at))
    assert (told, grid.layers) == ([(1, 2), (2, 2)], [0, 2])


def same(a: PatchGrid, b: PatchGrid) -> bool:
    return np.array_equal(a.recovery, b.recovery) and np.array_equal(a.interval, b.interval)


def test_a_grid_is_the_same_each_time() -> None:
    first, second = (patch_grid(tiny_model("gpt2"), pairs_of(3), "mlp_out", placebos=2) for _ in range(2))
    assert same(first, second)
    assert first.within_placebo is not None
    assert second.within_placebo is not None
    assert np.array_equal(first.within_placebo, second.within_placebo)


def test_errors_say_what_to_give() -> None:
    model, pairs = tiny_model("gpt2"), pairs_of(2)
    with pytest.raises(UsageError, match="patching is done at resid_pre, attn_out, mlp_out, z; got 'q'"):
        patch_grid(model, pairs, "q")
    with pytest.raises(UsageError, match=r"resid_pre is in the layers 0..2; got 3"):
        patch_grid(model, pairs, layers=[0, 3])
    with pytest.raises(DataError, match="there are no pairs to patch"):
        patch_grid(model, pairs_of(0))
    same = MinimalPairs(
        pairs.clean,
        pairs.clean,
        *(getattr(pairs, x) for x in ("own_N", "other_N", "clean_answer_N", "corrupted_answer_N", "names")),
    )
    with pytest.raises(DataError, match=r"pairs\.csv, line 2: the clean and the corrupted text are the same"):
        patch_grid(model, same)
    with pytest.raises(DataError, match="the same mean logit difference"):
        patch_grid(
            model,
            MinimalPairs(
                pairs.clean,
                pairs.corrupted,
                pairs.own_N,
                pairs.own_N,
                pairs.clean_answer_N,
                pairs.corrupted_answer_N,
                pairs.names,
            ),
        )

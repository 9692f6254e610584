"""Each edit equals its formula at the tokens it is for, and leaves every other token as it was.

Axes: B batch, L position, D width, R rows, k dimensions of a subspace.
"""

from typing import Any

import numpy as np
import pytest
import torch
from tiny_configs import LIKE_ANOTHER, new_model, tiny_configs, tiny_model

from probekit.errors import UsageError
from probekit.interventions import (
    Add,
    Affine,
    ProjectOut,
    Swap,
    add,
    affine,
    apply_edit,
    check_positions,
    editing,
    project_out,
    replace,
    swap,
    texts_in,
    tokens_at,
)
from probekit.models.generation import prompt_tokens
from probekit.points import Place, UnknownPoint

D, TOKENS = 32, [[5, 6, 7, 8, 9, 10], [11, 12, 13], [14, 15, 16, 17]]
POSITIONS: dict[str, Any] = {
    "all": "all",
    "last": "last",
    "generated": "generated",
    "index": 1,
    "from the end": -2,
    "slice": slice(1, -1),
    "one for each": [2, 0, -1],
    "mask": [[True, False, True, False, False, True]] * 3,
}


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def padded(left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The texts of TOKENS in one batch, and the mask of real tokens."""
    rows, mask = torch.zeros(3, 6, dtype=torch.long), torch.zeros(3, 6, dtype=torch.bool)
    for i, ids in enumerate(TOKENS):
        at = slice(6 - len(ids), 6) if left else slice(len(ids))
        rows[i, at], mask[i, at] = torch.tensor(ids), True
    return rows, mask


def residual(model: Any, edits: Any, tokens: torch.Tensor, positions: Any = "all", **inputs: Any) -> torch.Tensor:
    """The input of the last block under edits."""
    with model.edited(edits, positions):
        return model(tokens, stop_at_layer=2, **inputs)


# the edits


@pytest.mark.parametrize("scale", [0.0, 0.4, 1.0, -2.0])
def test_each_edit_is_its_formula(scale):
    x, q = draw(2, 3, 8), torch.linalg.qr(draw(8, 2, seed=1))[0]
    p, b, d, other = draw(8, 8, seed=2), draw(8, seed=3), draw(8, seed=4), draw(8, seed=5)
    part = torch.arange(8) < 3
    formulas = {
        replace(d, scale=scale): d.expand_as(x),
        replace(d, part, scale=scale): torch.where(part, d, x),
        add(d, scale): x + d,
        project_out(q, scale=scale): x - x @ q @ q.T,
        project_out(q, mean=b, scale=scale): x - (x - b) @ q @ q.T,
        affine(p, b, scale): x @ p.T + b,
        swap(q, other, scale): x + (other - x) @ q @ q.T,
    }
    for edit, changed in formulas.items():
        wanted = x + scale * (changed - x)
        torch.testing.assert_close(apply_edit(edit, x), wanted, rtol=1e-12, atol=1e-12)
        half = apply_edit(edit, x.bfloat16())
        assert half.dtype == torch.bfloat16
        torch.testing.assert_close(half.double(), wanted, rtol=0.02, atol=0.05)
    assert all(torch.equal(apply_edit(edit, x), x) for edit in formulas) == (scale == 0)


def test_a_row_of_an_edit_belongs_to_its_tokens_alone():
    x, directions, scales = draw(3, 4, 8), draw(3, 8, seed=1), torch.tensor([0.0, 1.0, 2.5])
    rows_BL = torch.tensor([[0, 1, 2, 0], [2, 2, 1, 1], [0, 0, 0, 1]])
    at_BL = rows_BL != 1
    edited = apply_edit(add(directions, scales), x, at_BL, rows_BL)
    assert torch.equal(edited[~at_BL], x[~at_BL])
    wanted = x + (scales[:, None] * directions)[rows_BL]
    torch.testing.assert_close(edited[at_BL], wanted[at_BL])
    bases = torch.linalg.qr(draw(3, 8, 2, seed=2))[0]
    out = apply_edit(project_out(bases), x, None, rows_BL)
    projected = torch.einsum("bldk,blk->bld", bases[rows_BL], torch.einsum("bld,bldk->blk", x, bases[rows_BL]))
    torch.testing.assert_close(out, x - projected)


def test_a_span_needs_no_orthonormal_directions():
    directions = draw(8, 2) @ torch.tensor([[1.0, 2.0, 0.0], [0.5, -1.0, 1.0]], dtype=torch.float64)
    edit = project_out(directions)
    assert edit.basis.shape == (8, 2)  # the third lies in the span of the others
    left = apply_edit(edit, draw(1, 5, 8, seed=1))
    torch.testing.assert_close(left @ directions, torch.zeros(1, 5, 3, dtype=torch.float64), atol=1e-12, rtol=0)
    x, other = draw(1, 5, 8, seed=1), draw(8, seed=2)
    swapped = apply_edit(swap(directions, other), x)
    torch.testing.assert_close(swapped @ directions, (other @ directions).expand(1, 5, 3))
    torch.testing.assert_close(apply_edit(swap(directions, x[0, 2]), x[:, 2:3]), x[:, 2:3])  # with itself: nothing


def test_gradients_reach_the_tensors_of_an_edit():
    x, q, c = draw(1, 3, 4), draw(4, 1, seed=1).requires_grad_(), draw(1, seed=2).requires_grad_()
    apply_edit(Swap(q, c), x, torch.tensor([[True, False, True]])).sum().backward()
    direction, scale = draw(4, seed=3).requires_grad_(), torch.tensor(0.0, dtype=torch.float64, requires_grad=True)
    apply_edit(Add(direction, scale=scale), x).sum().backward()
    assert q.grad is not None
    assert c.grad is not None
    torch.testing.assert_close(scale.grad, 3 * direction.detach().sum())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: add([1.0, float("nan")]), "NaN, infinity"),
        (lambda: add([1e39]), "beyond float32"),
        (lambda: add(torch.ones(4).to_sparse()), "direction is a tensor or an array of numbers; got a Tensor"),
        (lambda: add(draw(2, 3, 4)), r"shape \[D\] or \[R, D\]; got \[2, 3, 4\]"),
        (lambda: add("direction"), "direction is a tensor or an array of numbers; got a str"),
        (lambda: add([1.0], scale=True), "scale is a number"),
        (lambda: add(draw(3, 4), scale=draw(2)), "one number of rows; got scale 2, direction 3"),
        (lambda: project_out([0.0, 0.0]), "directions are all 0"),
        (lambda: project_out(draw(2, 8)), r"columns of \[D, k\].*transpose"),
        (lambda: add(draw(4), 1j), "scale is a number"),
        (lambda: add(draw(4), [float("nan"), 1.0]), "scale holds NaN"),
        (lambda: add(draw(4), draw(2, 2)), "scale is a number or one for each row; got tensor"),
        (lambda: affine(draw(4, 4), draw(3)), "one width; got matrix 4, bias 3"),
        (lambda: affine([1.0, 2.0]), r"matrix has the shape \[D, D\]; got \[2\]"),
        (lambda: project_out(draw(8), draw(7)), "one width; got basis 8, mean 7"),
        (lambda: swap(draw(8), draw(7)), "width 7, and the directions 8"),
        (lambda: swap(draw(3, 8, 2), draw(2, 8)), "2 rows, and the directions 3"),
        (lambda: replace(draw(4), [1, 0, 1, 0]), "part is bool"),
        (lambda: replace(draw(4), "1010"), "part is bool.*got '1010'"),
        (lambda: Add([1.0]), "direction of an edit is a tensor, got a list"),  # pyright: ignore
        (lambda: Add(draw(2, 3, 4)), r"shape \[D\] or \[R, D\]; got \[2, 3, 4\]"),
        (lambda: Add(draw(4), scale=float("nan")), "finite number or one for each row; got nan"),
        (
            lambda: Affine(draw(2, 4, 4), draw(4)),
            r"matrix of an edit has the shape \[D, D\]; got \[2, 4, 4\]",
        ),
        (lambda: Swap(draw(4, 2), draw(3)), "one number of dimensions; got basis 2, coordinates 3"),
    ],
)
def test_what_is_no_edit_is_refused(make, message):
    with pytest.raises(UsageError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_arrays_of_any_layout_make_the_edit_of_their_values():
    values = np.arange(1.0, 7.0)
    fixed = values.copy()
    fixed.flags.writeable = False
    for given in (values, [*values], fixed, values[::-1][::-1], values.astype(">f4"), values.astype(np.int16)):
        assert torch.equal(add(given).direction.double(), torch.from_numpy(values))
    edit = add(values)
    values[:] = 0
    assert edit.direction.all()  # a copy


def test_the_rank_of_a_span_is_that_of_the_type_in_which_it_was_computed():
    """A direction that depends on others up to float32's rounding adds no direction of noise."""
    a = draw(64, 2).float()
    assert project_out(torch.stack([a[:, 0], a[:, 1], 0.3 * a[:, 0] + 0.7 * a[:, 1]], 1)).basis.shape == (64, 2)
    assert project_out(torch.stack([draw(64), draw(64) + 1e-10 * draw(64, seed=1)], 1)).basis.shape == (64, 2)
    tiny = project_out(draw(8) * 1e-200).basis  # whose square is 0
    torch.testing.assert_close(tiny, project_out(draw(8)).basis)


def test_each_row_is_swapped_in_a_subspace_of_its_own():
    x, directions, other = draw(3, 4, 8), draw(3, 8, 2, seed=1), draw(3, 8, seed=2)
    swapped = apply_edit(swap(directions, other), x, None, torch.arange(3)[:, None])
    for row in range(3):
        torch.testing.assert_close(swapped[row], apply_edit(swap(directions[row], other[row]), x[row : row + 1])[0])
        same = apply_edit(swap(directions, x[:, 1]), x, None, torch.arange(3)[:, None])
        torch.testing.assert_close(same[row, 1], x[row, 1])  # with itself: nothing


# positions


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize("name", POSITIONS)
def test_positions_are_those_of_each_text_under_any_padding(name, left):
    model, (tokens, mask) = tiny_model("gpt2"), padded(left)
    positions: Any = POSITIONS[name]
    if name == "mask":
        positions = torch.tensor(positions) & mask
    edits = {("resid_pre", 1): add(draw(3, D), 3.0)}
    together = residual(model, edits, tokens, positions, attention_mask=mask)
    for i, ids in enumerate(TOKENS):
        own = positions[i][mask[i]] if name == "mask" else positions[i] if name == "one for each" else positions
        alone = residual(model, {("resid_pre", 1): add(draw(3, D)[i], 3.0)}, torch.tensor([ids]), own)
        torch.testing.assert_close(together[i][mask[i]], alone[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", POSITIONS)
def test_generation_is_the_same_with_and_without_cache_and_alone(name):
    model, positions = tiny_model("gpt2"), POSITIONS[name]
    rows, plain = draw(3, D), tiny_model("gpt2").generate(TOKENS, 4, stop_tokens=[])
    with model.edited({("resid_pre", 1): add(rows, 4.0)}, positions):
        cached = model.generate(TOKENS, 4, stop_tokens=[])
        assert model.generate(TOKENS, 4, stop_tokens=[], use_cache=False) == cached
    for i, ids in enumerate(TOKENS):
        own = positions[i] if name == "one for each" else positions[i][: len(ids)] if name == "mask" else positions
        with model.edited({("resid_pre", 1): add(rows[i], 4.0)}, own):
            assert model.generate(ids, 4, stop_tokens=[]) == cached[i]
    assert cached != plain


def test_edits_at_generated_tokens_are_those_of_the_text_so_far():
    """Generation under edits reads the logits of a forward over prompt and continuation, edited at the same tokens."""
    model, prompt = tiny_model("gpt2"), TOKENS[2]
    edits = {("resid_pre", 1): add(draw(D), 4.0)}
    for positions in ("all", "generated", "last"):
        with model.edited(edits, positions):
            new = model.generate(prompt, 5, stop_tokens=[])
        at = {"all": [*range(9)], "generated": [*range(4, 9)], "last": [3]}[positions]
        mask = [i in at for i in range(9)]
        with model.edited(edits, mask):
            logits_LV = model(torch.tensor([prompt + new]))[0]
        assert logits_LV.argmax(-1)[3:-1].tolist() == new


PROMPTS = [  # of 2 and 3 tokens, two generated ones after each: the tokens at a position
    (POSITIONS["last"], [[0, 0, 1, 0, 0], [0, 0, 1, 0, 0]]),
    (POSITIONS["generated"], [[0, 0, 0, 1, 1], [0, 0, 0, 1, 1]]),
    (POSITIONS["index"], [[0, 0, 1, 0, 0], [0, 1, 0, 0, 0]]),
    (POSITIONS["from the end"], [[0, 1, 0, 0, 0], [0, 1, 0, 0, 0]]),
    (slice(None, None, -2), [[0, 0, 1, 0, 0], [1, 0, 1, 0, 0]]),
]


@pytest.mark.parametrize(("positions", "at"), PROMPTS)
def test_positions_of_prompts_leave_generated_tokens_out(positions, at):
    texts = prompt_tokens(torch.tensor([[-1, 0, 1, 2, 3], [0, 1, 2, 3, 4]]), [2, 3])
    found = tokens_at(check_positions(positions), texts)
    assert found is not None
    assert found.int().tolist() == at
    assert tokens_at("all", texts) is None


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        ("lats", "did you mean last"),
        (1.5, "positions are"),
        (10**30, "positions are"),
        (b"last", "positions are"),
        (slice(1.5), "a slice of positions has whole numbers"),
        (slice(None, None, 0), "a step other than 0"),
        (True, "positions are"),
        ([], "positions are"),
        ([[1, 2]], "positions are"),
        ([0.5], "positions are"),
        (3, "text 1 has 3 tokens; got position 3"),
        (-4, "text 1 has 3 tokens; got position -4"),
        ([0, 1], "one position for each of 3 texts; got 2"),
        (np.ones((2, 6), bool), "a mask of positions has an entry for each token of 3 texts"),
        (np.ones(4, bool), r"got \[4\] for texts of up to 6 tokens"),
    ],
)
def test_positions_outside_the_texts_are_refused(positions, message):
    texts = texts_in(*padded(left=False))
    assert texts is not None
    with pytest.raises(UsageError, match=message) as caught:
        tokens_at(check_positions(positions), texts)
    assert "\n" not in str(caught.value)


# models under edits


def inputs_of(model: Any, tokens: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (tokens, tokens) if hasattr(model, "decode") else (tokens,)


def run_of(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """The logits of a forward, or its output where there are none."""
    with torch.no_grad():
        return model(*inputs_of(model, tokens), return_logits=model.has_logits)


def widths(model: Any) -> dict[str, int]:
    """The width of each point that can be edited: those of one layer, and those outside the layers."""
    names = [name for name in model.points if Place.of(name)[1] in (None, 1)]
    editable = [name for name in names if model.points[name].axes.split()[:2] == ["B", "L"]]
    assert len(editable) > len(names) / 2
    _, cache = model.run_with_cache(
        *inputs_of(model, torch.tensor([[5]])), points=editable, return_logits=model.has_logits
    )
    return {name: cache[name][0, 0].numel() for name in editable}


@pytest.mark.parametrize("name", sorted(tiny_configs().keys() - LIKE_ANOTHER))
def test_every_family_is_edited_at_every_editable_point_and_at_the_given_token_alone(name):
    """What leaves a point is the edit of what entered it, in the same forward."""
    model, tokens = tiny_model(name), torch.tensor([TOKENS[0], TOKENS[0][::-1]])
    editable, entered, left = widths(model), {}, {}
    with (
        model.hooks(([*editable], lambda x, hook: entered.update({hook.name: x}))),
        model.edited({point: replace(torch.full((width,), 7.0)) for point, width in editable.items()}, "last"),
        model.hooks(([*editable], lambda x, hook: left.update({hook.name: x}))),
    ):
        run_of(model, tokens)
    assert left.keys() == editable.keys()
    for point in editable:
        assert torch.equal(left[point][:, :-1], entered[point][:, :-1]), point
        assert (left[point][:, -1] == 7).all(), point


@pytest.mark.parametrize("name", ["gpt2", "gptneox", "gemma2", "qwen3-moe", "modernbert", "marian"])
def test_an_edit_reaches_the_output_and_a_row_of_scale_0_is_the_unedited_run(name):
    """In the residual stream bit for bit; elsewhere a hook may bring other kernels, and an expert more tokens."""
    model, tokens = tiny_model(name), torch.tensor([TOKENS[2]] * 2)
    editable, plain = widths(model), run_of(model, tokens)
    scale = torch.tensor([0.0, 30.0])
    for point, width in editable.items():
        with model.edited({point: Add(2 + draw(width), scale=scale)}, 1):  # softmax ignores what all keys share
            edited = run_of(model, tokens)
        torch.testing.assert_close(edited[0], plain[0], rtol=1e-4, atol=1e-4)
        if "hook_resid" in point and not hasattr(model.cfg, "n_experts"):
            assert torch.equal(edited[0], plain[0]), point
        assert (edited[1] - plain[1]).abs().max() > 3e-3, point
    with model.edited({point: Add(torch.ones(width), scale=0.0) for point, width in editable.items()}):
        assert torch.equal(run_of(model, tokens), plain)


def test_edits_at_one_point_are_done_in_order_and_outer_contexts_first():
    model, tokens = tiny_model("gpt2"), torch.tensor(TOKENS[:1])
    to_one, double = replace(torch.ones(D)), add(torch.ones(D))
    at = ("resid_pre", 2)
    assert (residual(model, {at: [to_one, double]}, tokens) == 2).all()
    assert (residual(model, {at: [double, to_one]}, tokens) == 1).all()
    with model.edited({at: to_one}):
        assert (residual(model, {at: double}, tokens) == 2).all()
        with model.hooks(("resid_pre.2", lambda x, _: x * 5)):  # hooks in the order in which they were added, too
            assert (residual(model, {at: double}, tokens) == 6).all()
    with model.edited({at: double}):
        assert (residual(model, {at: to_one}, tokens) == 1).all()
    every = {
        ("resid_pre", 1): add(torch.ones(D)),
        "mlp_out": replace(torch.zeros(D)),
        "attn_out": replace(torch.zeros(D)),
    }
    with model.edited(every):  # without a layer: in all of them; with nothing written, the stream is the embedding
        out, cache = model.run_with_cache(tokens, points=["embed", "pos_embed"], stop_at_layer=2)
    torch.testing.assert_close(out, cache["embed"] + cache["pos_embed"] + 1)


def test_edits_are_gone_after_an_exception():
    model, tokens = new_model("gpt2"), torch.tensor(TOKENS[:1])
    plain = model(tokens)
    with pytest.raises(RuntimeError, match="stop"), model.edited({("resid_pre", 1): add(torch.ones(D))}, "last"):
        raise RuntimeError("stop")
    with pytest.raises(UsageError, match="width 32"), model.edited({("resid_pre", 1): add(torch.ones(5))}):
        model(tokens)
    with pytest.raises(UnknownPoint), model.edited({("resid_pre", 1): add(torch.ones(D)), "resid_pree.0": add([1.0])}):
        pass
    assert not [point for point in model.points.values() if point.hooked]
    assert torch.equal(model(tokens), plain)
    with editing(model, {("resid_pre", 1): add(torch.ones(D))}):
        assert not torch.equal(model(tokens), plain)
    assert not model._n_followed


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ({("attn_pattern", 0): add(torch.ones(4))}, "one row for each token, and blocks.0.attn.hook_pattern.*q, k, v"),
        ({("resid_pre", 9): add(torch.ones(D))}, "layer 9 is not in 0..2"),
        ({("resid_pre", 0): torch.ones(D)}, "expected an edit at .*, got a Tensor; make one with add"),
        ([add(torch.ones(D))], "edits are a dictionary"),
        ({("resid_pre", 0): add(torch.ones(D + 1))}, r"width 32; got an edit whose direction is \[33\]"),
        ({("resid_pre", 0): add(torch.ones(2, D))}, "tensors for 2 texts, got 1"),
    ],
)
def test_edits_that_cannot_be_done_are_refused_in_one_line(edits, message):
    with pytest.raises(UsageError, match=message) as caught, tiny_model("gpt2").edited(edits):
        tiny_model("gpt2")(torch.tensor(TOKENS[:1]))
    assert "\n" not in str(caught.value)


def test_rows_that_hold_several_texts_have_no_positions():
    model, tokens = tiny_model("gpt2"), torch.tensor(TOKENS[:1])
    packed = {"position_ids": torch.arange(6)[None], "attention_mask": torch.ones(1, 6, 6).tril().bool()}
    with model.edited({("resid_pre", 0): add(torch.ones(D))}):  # at all tokens
        model(tokens, **packed)
    for edit, positions in ((add(torch.ones(D)), "last"), (add(torch.ones(1, D)), "all")):
        with pytest.raises(UsageError, match="one text in each row"), model.edited({("resid_pre", 0): edit}, positions):
            model(tokens, **packed)


def test_an_encoder_decoder_is_edited_in_either_stack():
    model, source, target = tiny_model("marian"), torch.tensor([[5, 6, 7]]), torch.tensor([[1, 8, 9, 10]])
    d = draw(D)
    plain = model(source, target)
    memory = model.encode(source)
    with model.edited({("encoder.resid_pre", 1): add(d, 2.0)}, "last"):
        edited_memory = model.encode(source)
        assert torch.equal(model(source, target), model.decode(target, edited_memory))
    assert not torch.equal(memory, edited_memory)
    with model.edited({("decoder.resid_pre", 0): add(d, 2.0)}, 2):
        out = model(source, target)
    torch.testing.assert_close(out[:, :2], plain[:, :2])  # the decoder is causal: earlier tokens do not see it
    assert not torch.allclose(out[:, 2:], plain[:, 2:])
    with pytest.raises(UsageError, match="edit the encoder's output"), model.edited({("decoder.cross_k", 0): add(d)}):
        pass
    for positions in ("all", "last", "generated"):
        with model.edited({("decoder.resid_pre", 1): add(d, 5.0)}, positions):
            cached = model.generate([[5, 6, 7], [8, 9]], 5, stop_tokens=[])
            assert model.generate([[5, 6, 7], [8, 9]], 5, stop_tokens=[], use_cache=False) == cached


def test_bfloat16_is_edited_in_float32_and_rounded_once():
    model, tokens = new_model("gpt2").bfloat16(), torch.tensor(TOKENS[:1])
    plain = model(tokens, stop_at_layer=1)
    edit = ProjectOut(torch.linalg.qr(draw(D, 3))[0])
    with model.edited({("resid_pre", 1): edit}):
        edited = model(tokens, stop_at_layer=1)
    assert torch.equal(edited, (plain.float() - plain.float() @ edit.basis.float() @ edit.basis.float().T).bfloat16())

"""What holds in every family: points, identities, packing, windows, cache, generation, folders, self-test.

Each test runs over the tiny configs of all families, on one model of each. Points are compared with `transformers` by
the self-test, and in the test of the family; sizes in `test_accounting.py`.

Axes: B batch, L query position, M key position, H heads, G kv heads, K d_head.
"""

from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tiny_configs import LIKE_ANOTHER, tiny_configs, tiny_model
from torch import Tensor, nn

import probekit as pk
from probekit.errors import UsageError
from probekit.models.families import family_of, shape_of
from probekit.models.generation import generate
from probekit.models.layers import ACTIVATIONS
from probekit.models.weights import save_hf
from probekit.points import POINTS, Place
from probekit.tasks.base import Task
from probekit.verbs.extract import extract

CONFIGS = tiny_configs()
NEAR = 1e-5  # relative to the largest value
B, L = 3, 12
PAIRS = ("attn_scores", "attn_pattern")
CENTRED = {"LayerNorm", "GainNorm", "LayerNormPre"}  # classes of norms
UNSEEN = {"attn_scores", "result", "rot_q", "rot_k"}  # by transformers, and so are the scales of norms


def of_pairs(full: str) -> bool:
    """Whether a point has a value for each pair of tokens."""
    return Place.of(full)[0] in PAIRS


def is_pair(name: str) -> bool:
    return len(shape_of(CONFIGS[name]).stacks) == 2


SINGLE = [name for name in CONFIGS if not is_pair(name)]
DECODERS = [name for name in CONFIGS if shape_of(CONFIGS[name]).cached]
IN_TRANSFORMERS = [name for name, cfg in CONFIGS.items() if family_of(cfg).hf_model(cfg)]
every_family = pytest.mark.parametrize("name", CONFIGS)
every_arithmetic = pytest.mark.parametrize("name", [name for name in CONFIGS if name not in LIKE_ANOTHER])
every_stacks_arithmetic = pytest.mark.parametrize("name", [name for name in SINGLE if name not in LIKE_ANOTHER])


def tokens_of(name: str, batch: int = B, length: int = L, seed: int = 0) -> list[Tensor]:
    """Ids [B, L] of a source, if there is one, and of a text."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(8, 50, (batch, length), generator=generator) for _ in shape_of(CONFIGS[name]).stacks]


@cache
def seen(name: str) -> tuple[Any, Tensor, Any]:
    """The model, what it gives for `tokens_of`, and all of its points."""
    model = tiny_model(name)
    with torch.no_grad():
        return model, *model.run_with_cache(*tokens_of(name), return_logits=model.has_logits)


def assert_near(x: Tensor, wanted: Tensor, what: Any, bound: float = NEAR) -> None:
    assert x.shape == wanted.shape, what
    finite = wanted.isfinite()
    assert torch.equal(x.isfinite(), finite), what
    if finite.any():
        assert (x[finite] - wanted[finite]).abs().max() <= bound * wanted[finite].abs().max(), what


def lender(model: Any, layer: int) -> int:
    """The layer whose keys and values a layer attends to: itself in most models."""
    return model.cfg.lender(layer) if hasattr(model.cfg, "lender") else layer


def in_stacks(name: str) -> list[tuple[str, Any]]:
    """The prefix of each stack's points, and its sizes."""
    return [(f"{stack.name}." if stack.name else "", stack) for stack in shape_of(CONFIGS[name]).stacks]


@every_family
def test_every_point_has_a_short_name_and_the_axes_that_it_declares(name: str) -> None:
    model, _, cache = seen(name)
    assert set(cache) == set(model.points)
    sizes: dict[str, int] = {"B": B, "L": L, "M": L, "S": L}
    for full, x in cache.items():
        short, layer = Place.of(full)
        assert POINTS[short].format(layer=layer) == full
        named = model.points[full].axes.split()
        assert list(x.shape) == [sizes.get(axis) or model.size_of(axis, short, layer) for axis in named], full


@every_arithmetic
def test_hooks_change_nothing_of_what_follows(name: str) -> None:
    """Scores and pattern in steps where a hook reads them, and inside the kernel where none does."""
    model, out, _ = seen(name)
    with torch.no_grad():
        assert_near(model(*tokens_of(name), return_logits=model.has_logits), out, name)


@every_arithmetic
def test_the_stream_is_the_sum_of_what_is_added_to_it(name: str) -> None:
    """Pre-norm blocks, one after the other or in parallel; post-norm blocks, whose norms stand between the sums."""
    model, _, c = seen(name)
    for stack, shape in in_stacks(name):
        for i in range(shape.n_layers):
            at = {point: c[f"{stack}{point}", i] for point in ("resid_pre", "resid_post")}
            at["attn_out"] = c[f"{stack}{'mixer_out' if shape.hybrid else 'attn_out'}", i]
            output = c[model.output_of(f"{stack}resid_post"), i]
            if shape.d_mlp:
                at["mlp_out"] = c[f"{stack}mlp_out", i]
            if shape.parallel:
                assert_near(at["resid_pre"] + at["attn_out"] + at["mlp_out"], at["resid_post"], i, 1e-6)
            elif not shape.d_mlp:
                assert torch.equal(at["resid_pre"] + at["attn_out"], at["resid_post"])
            else:
                assert torch.equal(at["resid_pre"] + at["attn_out"], c[f"{stack}resid_mid", i])
                between = "resid_mid" if model.output_point == "resid_post" else f"{shape.norms[-2]}_normalized"
                summed = c[f"{stack}{between}", i] + at["mlp_out"]
                if shape.d_per_layer:
                    summed = summed + c["per_layer_out", i]
                scale = getattr(model.blocks[i], "scale", 1) if not stack else 1
                assert torch.equal(summed * scale, at["resid_post"])
            if i + 1 < shape.n_layers:
                assert torch.equal(output, c[f"{stack}resid_pre", i + 1])


@every_arithmetic
def test_attention_is_its_pattern_times_its_values(name: str) -> None:
    model, _, c = seen(name)
    for stack, shape in in_stacks(name):
        for at in ("", "cross_") if shape.cross else ("",):
            for i in model.layers_of(f"{stack}{at}attn_pattern"):
                point = {x: c[f"{stack}{at}{x}", i] for x in ("attn_pattern", "attn_scores", "z", "result")}
                point["v"] = c[f"{stack}{at}v", lender(model, i)]
                pattern, scores = point["attn_pattern"], point["attn_scores"]
                if shape.sinks:  # a column that takes its share of nothing
                    sinks = model.blocks[i].attn.sinks.detach()[:, None, None].expand(B, -1, L, 1)
                    scores = torch.cat([scores, sinks], -1)
                    pattern = torch.cat([pattern, 1 - pattern.sum(-1, keepdim=True)], -1)
                    assert 0.1 < pattern[..., -1].mean() < 0.5
                assert_near(pattern.sum(-1), torch.ones(B, shape.n_heads, L), i)
                assert_near(scores.softmax(-1), pattern, i)
                pattern = point["attn_pattern"]
                v = point["v"].repeat_interleave(shape.n_heads // point["v"].shape[2], 2)
                gate = c["attn_gate", i] if shape.output_gate else 1
                assert_near(gate * torch.einsum("bhlm,bmhk->blhk", pattern, v), point["z"], i)
                for half in ("ln1_post", "ln2_post"):
                    if half in shape.norms:
                        normed, out = c[f"{half}_normalized", i], c["attn_out" if half == "ln1_post" else "mlp_out", i]
                        assert torch.equal(normed, out)


@every_stacks_arithmetic
def test_what_is_inside_a_block_follows_from_its_points(name: str) -> None:
    """Scores from rotated queries and keys, the output from the heads' results, the MLP from its products."""
    model, out, c = seen(name)
    cfg = model.cfg
    for i, block in enumerate(model.blocks):
        has = {point for point in POINTS if (point, i) in c}
        is_local = hasattr(cfg, "local_rope_theta") and model.window_of(i)
        scaling = None if is_local else getattr(cfg, "rope_scaling", None)
        factor = scaling.attention_factor if scaling else 1
        for x in (x for x in "qk" if f"rot_{x}" in has):
            n = getattr(cfg, "n_rotated", c[x, i].shape[-1])
            before = c[f"{x}_norm" if f"{x}_norm" in has else x, i].reshape(c[x, i].shape)
            if limit := getattr(cfg, "clip_qkv", None):
                before = before.clamp(-limit, limit)
            after = c[f"rot_{x}", i]
            if hasattr(cfg, "d_nope"):  # the last coordinates are rotated, elsewhere the first
                before, after = before.roll(n, -1), after.roll(n, -1)
            assert torch.equal(after[..., n:], before[..., n:])  # what is not rotated
            assert_near(after[:, 0, :, :n], factor * before[:, 0, :, :n], i, 1e-6)  # at position 0 nothing turns
            assert_near(after[..., :n].norm(dim=-1), factor * before[..., :n].norm(dim=-1), i)
            assert (after - before)[:, 1:].abs().max() > 1e-4
        if "mlp_post" in has:
            activated = ACTIVATIONS[cfg.activation](c["mlp_pre", i])
            assert_near(activated * (c["mlp_pre_linear", i] if "mlp_pre_linear" in has else 1), c["mlp_post", i], i)
        if "attn_out" not in has:
            continue
        q, k = (c[f"rot_{x}" if "rot_q" in has else x, lender(model, i) if x == "k" else i] for x in "qk")
        scores = torch.einsum("blhk,bmhk->bhlm", q, k.repeat_interleave(q.shape[2] // k.shape[2], 2))
        scores = scores / (
            getattr(cfg, "attn_scale", None) or getattr(cfg, "query_pre_attn_scalar", q.shape[-1]) ** 0.5
        )
        if cap := getattr(cfg, "attn_scores_soft_cap", None):
            scores = cap * torch.tanh(scores / cap)
        allowed = c["attn_scores", i].isfinite()
        assert_near(c["attn_scores", i][allowed], scores[allowed], i)
        bias = 0 if block.attn.out.bias is None else block.attn.out.bias
        assert_near(getattr(block, "ln1_post", nn.Identity())(c["result", i].sum(2) + bias), c["attn_out", i], i)
    summed: Any = sum(c[x] for x in ("embed", "pos_embed", "token_type_embed") if x in c)
    assert_near(model.ln_embed(summed) if "ln_embed" in c else summed, c["resid_pre", 0], name, 1e-6)
    if model.has_logits:
        last = c["ln_final"] if "ln_final" in c else c[model.output_point, model.n_layers - 1]
        assert_near(model.logits(last), out, name)


@every_stacks_arithmetic
def test_a_norm_is_divided_by_its_scale(name: str) -> None:
    model, inputs = tiny_model(name), {}
    norms = {path: x for path, x in model.named_modules() if hasattr(x, "hook_scale")}
    handles = [
        norm.register_forward_pre_hook(lambda _, args, path=path: inputs.update({path: args[0]}))
        for path, norm in norms.items()
    ]
    with torch.no_grad():
        _, c = model.run_with_cache(*tokens_of(name), return_logits=model.has_logits)
    for handle in handles:
        handle.remove()
    assert inputs.keys() == norms.keys()
    for path, x in inputs.items():
        norm: Any = norms[path]
        x = x - x.mean(-1, keepdim=True) if type(norm).__name__ in CENTRED else x
        scale = (x.square().mean(-1, keepdim=True) + norm.eps).sqrt()
        gain = 1 + norm.weight if type(norm).__name__ == "OnePlusRMSNorm" else getattr(norm, "weight", 1)
        assert_near(c[f"{path}.hook_scale"], scale, path, 1e-6)
        assert_near(c[f"{path}.hook_normalized"], x / scale * gain + getattr(norm, "bias", 0), path)


@every_stacks_arithmetic
def test_a_hook_changes_what_follows(name: str) -> None:
    model, out, _ = seen(name)
    how: dict[str, Any] = {"return_logits": model.has_logits}
    with torch.no_grad():
        for point in model.points:
            hidden = point.endswith("hook_attn_scores")  # the softmax does not see a shift
            if point.endswith("ln1.hook_scale"):  # nor do queries, keys and values a scale if all are normalised
                hidden = hasattr(getattr(model.blocks[0], "attn", None), "v_norm")
            if not hidden:
                bent = model.run_with_hooks(*tokens_of(name), fwd_hooks=[(point, lambda x, _: x + 1 + x.cos())], **how)
                assert (bent - out).abs().max() > 1e-4 * out.abs().max(), point
        assert_near(model(*tokens_of(name), **how), out, name)  # and leaves nothing behind


@every_stacks_arithmetic
def test_a_layer_sees_its_window(name: str) -> None:
    """The pattern is zero exactly where the key is ahead in a causal model, or as far away as the window is wide."""
    model, _, c = seen(name)
    behind = torch.arange(L)[:, None] - torch.arange(L)
    for i in model.layers_of("attn_scores"):
        window = model.window_of(i) or L
        expected = (behind.abs() < window) & ((behind >= 0) | (not model.causal))
        assert torch.equal(c["attn_scores", i].isfinite(), expected.expand(B, CONFIGS[name].n_heads, L, L)), i
        assert window > 1, "a window of one token shows nothing"


@every_stacks_arithmetic
def test_packed_texts_equal_each_text_alone(name: str) -> None:
    """Every point of every token, in blocks of 14, where texts that begin alike share nodes and where they do not."""
    model = tiny_model(name)
    rng = np.random.default_rng(1)
    stem = rng.integers(8, 50, size=9).tolist()
    texts = [[*stem[:k], *rng.integers(8, 50, size=n).tolist()] for k, n in ((9, 0), (5, 3), (5, 2), (4, 0), (1, 6))]
    with torch.no_grad():
        alone = [model.run_with_cache(torch.tensor([ids]), return_logits=model.has_logits)[1] for ids in texts]
    points = list(dict.fromkeys(Place.of(point)[0] for point in model.points))
    rows = {full: [own[full][0].flatten(1) for own in alone] for full in model.points if not of_pairs(full)}
    wanted = {Place.of(full): torch.cat(each) for full, each in rows.items()}
    for share in (True, False):
        how: dict[str, Any] = {"position": "all", "block_nodes": 14, "share": share, "progress": False}
        acts = extract(model, ids_task(texts), points=points, **how)
        assert {place[0] for place in acts} >= set(points)
        for place in acts:
            if place in wanted:
                assert_near(torch.cat(acts.per_text(place)), wanted[place], (place, share))
                continue
            for got, own in zip(acts.per_text(place), alone, strict=True):
                assert_near(got, own[place][0], (place, share))


def ids_task(texts: list[list[int]]) -> Task:
    labels = {"none": np.zeros(len(texts), dtype=np.int64)}
    return Task("texts", texts, labels, {"none": ["none"]}, np.full(len(texts), "train"), "none")


@every_stacks_arithmetic
def test_the_last_block_computes_what_is_read(name: str) -> None:
    model = tiny_model(name)
    texts = [row.tolist()[: 3 + i] for i, row in enumerate(tokens_of(name, 6)[0])]
    has = {Place.of(full)[0] for full in model.points}
    points = [x for x in ("resid_pre", "attn_out", "mlp_post", "expert_weights", "mlp_out", "q", "z") if x in has]
    how: dict[str, Any] = {"points": points, "block_nodes": 24, "progress": False}
    every, last = (extract(model, ids_task(texts), position=position, **how) for position in ("all", "last"))
    for place, x in last.items():
        assert_near(x, every.at("last")[place], place, 5e-6)


@every_stacks_arithmetic
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_no_point(name: str, side: str) -> None:
    model, _, plain = seen(name)
    before = 3 if side == "left" else 0
    real = torch.zeros(B, L + 3, dtype=torch.bool)
    real[:, before : before + L] = True
    tokens = torch.full((B, L + 3), 9)
    tokens[real] = tokens_of(name)[0].flatten()
    with torch.no_grad():
        _, padded = model.run_with_cache(tokens, attention_mask=real, return_logits=model.has_logits)
    own = slice(before, before + L)
    for full, x in padded.items():
        assert_near(x[:, :, own, own] if of_pairs(full) else x[:, own], plain[full], full)


@every_stacks_arithmetic
def test_stopping_returns_the_input_of_that_block(name: str) -> None:
    model, _, c = seen(name)
    with torch.no_grad():
        for i in range(model.n_layers + 1):
            out = model(*tokens_of(name), stop_at_layer=i)
            assert_near(out, c["resid_pre", i] if i < model.n_layers else c[model.output_point, i - 1], i)
    n = model.n_layers
    with pytest.raises(UsageError, match=rf"stop_at_layer {n + 1} is not in 0\.\.{n}"):
        model(*tokens_of(name), stop_at_layer=n + 1)


@pytest.mark.parametrize("name", DECODERS)
def test_a_cache_changes_nothing(name: str) -> None:
    """Token by token, in pieces and at once; one row of the batch is padded on the left."""
    model, (*source, tokens) = tiny_model(name), tokens_of(name, 2)
    real = torch.ones(2, L, dtype=torch.bool)
    real[1, :3] = False
    positions = (real.long().cumsum(1) - 1).clamp(min=0)
    mask = torch.ones(L, L, dtype=torch.bool).tril() & real[:, None] | torch.eye(L, dtype=torch.bool)
    with torch.no_grad():
        read: Any = model
        if source:
            memory = model.encode(source[0])
            read = lambda tokens, *args, **how: model.decode(tokens, memory, **how)  # noqa: E731
        whole = read(tokens, attention_mask=mask, position_ids=positions)
        for cuts in [range(L + 1), (0, 7, 8, L)]:
            cache = model.empty_cache()
            parts = [
                read(tokens[:, i:j], position_ids=positions[:, i:j], attention_mask=mask[:, i:j, :j], cache=cache)
                for i, j in pairwise(cuts)
            ]
            assert cache.length == L
            assert_near(torch.cat(parts, 1)[real], whole[real], cuts)


@every_family
def test_a_seed_fixes_the_weights_and_gradients_reach_all_of_them(name: str) -> None:
    cfg = CONFIGS[name]
    one, two, other = (family_of(cfg).model(cfg).init_weights(seed) for seed in (3, 3, 4))
    assert one.fingerprint() == two.fingerprint() != other.fingerprint()
    model = tiny_model(name)
    out = model(*tokens_of(name), return_logits=model.has_logits)
    weights = {weight: x for weight, x in model.named_parameters() if not weight.startswith(("pooler", "seq_head"))}
    grads = torch.autograd.grad(out.square().sum(), list(weights.values()), allow_unused=True)
    assert [weight for weight, grad in zip(weights, grads, strict=True) if grad is None or not grad.any()] == []


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """name -> the folder that this package saved, once."""

    @cache
    def saved(name: str) -> Any:
        folder = tmp_path_factory.mktemp("matrix") / "model"
        save_hf(tiny_model(name), folder)
        return folder

    return saved


@pytest.fixture(scope="session")
def in_transformers(folders: Any) -> Any:
    """name -> the model that `transformers` reads from that folder, once."""

    @cache
    def loaded(name: str) -> Any:
        found = family_of(CONFIGS[name]).hf_model(CONFIGS[name])
        assert found
        return getattr(transformers, found.model).from_pretrained(folders(name)).eval()

    return loaded


@every_family
def test_a_saved_folder_loads(name: str, folders: Any) -> None:
    loaded = pk.load_model(folders(name), device="cpu")
    assert loaded.cfg == CONFIGS[name]
    assert loaded.fingerprint() == tiny_model(name).fingerprint()


@pytest.mark.parametrize("name", [x for x in IN_TRANSFORMERS if getattr(CONFIGS[x], "positions", "") != "learned"])
def test_folders_go_to_transformers_and_come_back(name: str, in_transformers: Any, tmp_path: Any) -> None:
    """Every weight but a pooler, which `transformers` adds or leaves out; its Marian has no learned positions."""
    in_transformers(name).save_pretrained(tmp_path / "theirs")
    came_back = pk.load_model(tmp_path / "theirs", device="cpu").state_dict()
    for weight, x in tiny_model(name).state_dict().items():
        assert weight.startswith("pooler") or torch.equal(came_back[weight], x), weight


@every_arithmetic
@pytest.mark.usefixtures("five_texts")
def test_a_correct_model_passes_its_self_test_at_every_point(name: str, folders: Any) -> None:
    model = tiny_model(name)
    found = pk.selftest(pk.load_model(folders(name), device="cpu"))
    assert found.passed, found.describe()
    shown = {row.point for row in found.rows}
    assert shown == {Place.of(full)[0] for full in model.points} | ({"logits"} if model.has_logits else set())
    if name in IN_TRANSFORMERS:
        assert "read from the model's folder" in found.oracle
        own = {row.point.rpartition(".")[2].removeprefix("cross_") for row in found.rows if row.against == "float64"}
        unseen = UNSEEN | ({"k"} if shape_of(CONFIGS[name]).stacks[0].kv_rank else {"embed"})  # parts of it are seen
        assert {point for point in own if not point.endswith("_scale")} <= unseen
        assert len(own) < len(shown) / 2


@pytest.mark.parametrize("name", [name for name in DECODERS if name in IN_TRANSFORMERS])
def test_greedy_text_is_that_of_transformers_with_a_cache_and_without(name: str, in_transformers: Any) -> None:
    model, theirs = tiny_model(name), in_transformers(name)
    theirs.generation_config.forced_eos_token_id = None
    prompt = tokens_of(name, 1, 7)[0]
    made = theirs.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=9,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    wanted = made[:, 1 if is_pair(name) else 7 :].tolist()
    for use_cache in (True, False):
        assert generate(model, prompt.tolist(), 9, stop_tokens=[], use_cache=use_cache) == wanted

"""The hand-written encoder-decoder against `transformers`' Marian, against torch's own layers, and against itself."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from marian_oracle import SHAPES, from_hf, ids, oracle_for
from tiny_configs import SIZES
from torch import Tensor, nn
from transformers import MarianMTModel
from transformers_twins import error

from probekit.errors import UsageError
from probekit.models.cache import KeyValueCache
from probekit.models.families.transformer import Transformer, TransformerConfig

IDS: dict[str, Any] = {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 1}
PAIR: dict[str, Any] = {**SIZES, **IDS, "n_layers": 2, "n_decoder_layers": 3, "n_ctx": 16}
TINY = {
    "marian": TransformerConfig(**PAIR, n_decoder_heads=2, d_decoder_mlp=48),
    "marian-untied": TransformerConfig(
        **PAIR,
        n_decoder_heads=4,
        d_decoder_mlp=80,
        positions="learned",
        tie_embeddings=False,
        scale_embedding=False,
        logits_bias=False,
    ),
}


@pytest.fixture(scope="module")
def model() -> Transformer:
    return from_hf(oracle_for(SHAPES[0]))


# Our point -> where it stands in a Marian layer: what a module is given, or what it returns.
ENCODER_PLACES = {
    "attn.hook_q": ("self_attn.q_proj", "out"), "attn.hook_k": ("self_attn.k_proj", "out"),
    "attn.hook_v": ("self_attn.v_proj", "out"), "attn.hook_z": ("self_attn.out_proj", "in"),
    "hook_attn_out": ("self_attn", "out"), "hook_resid_mid": ("self_attn_layer_norm", "in"),
    "ln1.hook_normalized": ("self_attn_layer_norm", "out"), "mlp.hook_pre": ("fc1", "out"),
    "mlp.hook_post": ("fc2", "in"), "hook_mlp_out": ("fc2", "out"), "hook_resid_post": ("final_layer_norm", "in"),
    "ln2.hook_normalized": ("final_layer_norm", "out"),
}  # fmt: skip
CROSS_PLACES = {
    "cross_attn.hook_q": ("encoder_attn.q_proj", "out"), "cross_attn.hook_k": ("encoder_attn.k_proj", "out"),
    "cross_attn.hook_v": ("encoder_attn.v_proj", "out"), "cross_attn.hook_z": ("encoder_attn.out_proj", "in"),
    "hook_cross_attn_out": ("encoder_attn", "out"), "hook_resid_mid_cross": ("encoder_attn_layer_norm", "in"),
    "ln2.hook_normalized": ("encoder_attn_layer_norm", "out"), "ln3.hook_normalized": ("final_layer_norm", "out"),
}  # fmt: skip
PLACES = {"encoder": ENCODER_PLACES, "decoder": ENCODER_PLACES | CROSS_PLACES}


def watch(oracle: MarianMTModel) -> dict[str, Tensor]:
    """What passes each of our points in the oracle, filled in by its next forward."""
    seen: dict[str, Tensor] = {}

    def keep(name: str, scale: float = 1.0) -> tuple[Callable, Callable]:
        def given(_: Any, args: Any) -> None:
            seen[name] = args[0]

        def returned(_: Any, __: Any, out: Any) -> None:
            seen[name] = (out[0] if isinstance(out, tuple) else out) * scale

        return given, returned

    for stack, places in PLACES.items():
        theirs: Any = oracle.get_submodule(f"model.{stack}")
        theirs.embed_tokens.register_forward_hook(keep(f"{stack}.hook_embed", theirs.embed_scale)[1])
        theirs.embed_positions.register_forward_hook(keep(f"{stack}.hook_pos_embed")[1])
        for i, layer in enumerate(theirs.layers):
            layer.register_forward_pre_hook(keep(f"{stack}.blocks.{i}.hook_resid_pre")[0])
            for point, (path, side) in places.items():
                given, returned = keep(f"{stack}.blocks.{i}.{point}")
                module = layer.get_submodule(path)
                _ = module.register_forward_pre_hook(given) if side == "in" else module.register_forward_hook(returned)
    return seen


NOT_IN_THE_ORACLE = ("hook_attn_scores", "hook_pattern", "hook_result", "hook_scale")


@pytest.mark.parametrize(
    ("shape", "tied", "learned"), [(shape, tied, not tied) for shape in SHAPES for tied in (True, False)]
)
def test_every_point_equals_the_oracle(shape, tied, learned):
    """With padding on the right of sources and targets, at every real token."""
    oracle = oracle_for(shape, tied, learned)
    model = from_hf(oracle, learned)
    source, tokens = ids(model, 3, 9), ids(model, 3, 7, seed=2)
    masks = {"encoder": torch.arange(9) < torch.tensor([[9], [5], [1]])}
    masks["decoder"] = torch.arange(7) < torch.tensor([[4], [7], [2]])
    seen = watch(oracle)
    with torch.no_grad():
        theirs = oracle(
            source, masks["encoder"], tokens, masks["decoder"], use_cache=False, output_hidden_states=True,
            output_attentions=True,
        )  # fmt: skip
        logits, cache = model.run_with_cache(source, tokens, masks["encoder"], masks["decoder"])
    assert error(logits[masks["decoder"]], theirs.logits[masks["decoder"]]) <= 1e-5
    assert {name for name in cache if not name.endswith(NOT_IN_THE_ORACLE)} == set(seen)
    for name, x in seen.items():
        ours, n_positions = cache[name], cache[name].shape[1]
        real = masks["encoder" if n_positions == 9 else "decoder"]
        x = x.expand(len(ours), *x.shape[-2:]).reshape(ours.shape)
        assert error(ours[real], x[real]) <= 1e-5, name
    for stack, attentions in (("encoder", theirs.encoder_attentions), ("decoder", theirs.decoder_attentions)):
        for i, pattern in enumerate(attentions):
            ours = cache[f"{stack}.blocks.{i}.attn.hook_pattern"].transpose(1, 2)[masks[stack]]
            assert error(ours, pattern.transpose(1, 2)[masks[stack]]) <= 1e-5
    for i, pattern in enumerate(theirs.cross_attentions):
        ours = cache[f"decoder.blocks.{i}.cross_attn.hook_pattern"].transpose(1, 2)[masks["decoder"]]
        assert error(ours, pattern.transpose(1, 2)[masks["decoder"]]) <= 1e-5
    last = {"encoder": theirs.encoder_hidden_states[-1], "decoder": theirs.decoder_hidden_states[-1]}
    for stack, norm in (("encoder", "ln2"), ("decoder", "ln3")):
        n_layers = len(cast(nn.ModuleList, model.get_submodule(f"{stack}.blocks")))
        ours = cache[f"{stack}.blocks.{n_layers - 1}.{norm}.hook_normalized"]
        assert error(ours[masks[stack]], last[stack][masks[stack]]) <= 1e-5


def compare(padded, plain, points, rows, columns, sources) -> None:
    """Every point at the real places of the first row of `padded` against the same of `plain`."""
    for name, x in padded.items():
        length = columns if name.startswith("decoder") else sources
        places = {"L": length, "M": length, "S": sources}
        for axis, letter in enumerate(points[name].axes.split()):
            chosen = rows if letter == "B" else places.get(letter)
            x = x if chosen is None else x.index_select(axis, torch.tensor(chosen))
        finite = plain[name].isfinite()
        assert torch.equal(x.isfinite(), finite), name
        assert error(x[finite], plain[name][finite]) <= 1e-5, name


@pytest.mark.parametrize(("left", "right"), [(3, 0), (0, 4), (2, 1)])
def test_padding_changes_no_point(model, left, right):
    """Left, right and both, in source and target: every point has the value of the unpadded pair."""
    source, tokens = ids(model, 1, 6), ids(model, 1, 5, seed=2)

    def padded(x: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        width = left + x.shape[1] + right
        both, mask = ids(model, 2, width, seed), torch.ones(2, width, dtype=torch.bool)
        mask[0], both[0, left : left + x.shape[1]] = False, x[0]
        mask[0, left : left + x.shape[1]] = True
        return both, mask

    (sources, source_mask), (targets, mask) = padded(source, 8), padded(tokens, 9)
    with torch.no_grad():
        _, plain = model.run_with_cache(source, tokens)
        logits, cache = model.run_with_cache(sources, targets, source_mask, mask)
    assert logits.isfinite().all()
    compare(cache, plain, model.points, [0], range(left, left + 5), range(left, left + 6))


def packed(lengths: list[int]) -> tuple[Tensor, Tensor]:
    """Position ids [1, sum] and who belongs together [1, sum, sum]."""
    owner = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    return torch.cat([torch.arange(n) for n in lengths])[None], (owner[:, None] == owner)[None]


def test_packed_pairs_equal_each_pair_alone(model):
    """Several sources and targets in one row, longer than the context, do not see each other."""
    pairs = [(ids(model, 1, n, seed=n), ids(model, 1, m, seed=50 + m)) for n, m in ((20, 3), (7, 14), (3, 11))]
    position, together = packed([s.shape[1] for s, _ in pairs])
    target_position, target_together = packed([t.shape[1] for _, t in pairs])
    cross = torch.block_diag(*(torch.ones(t.shape[1], s.shape[1]) for s, t in pairs))[None].bool()
    looking_back = target_together & torch.ones(28, 28, dtype=torch.bool).tril()
    source, tokens = (torch.cat(x, 1) for x in zip(*pairs, strict=True))
    kept: dict[str, Tensor] = {}
    with torch.no_grad(), model.hooks([(lambda name: True, lambda x, hook: kept.__setitem__(hook.name, x))]):
        memory = model.encode(source, position, together)
        logits = model.decode(tokens, memory, target_position, looking_back, cross)
    with torch.no_grad():
        fused = model.decode(tokens, model.encode(source, position, together), target_position, looking_back, cross)
        assert error(fused, logits) <= 1e-5
        starts = [0, 0]
        for s, t in pairs:
            here = [list(range(start, start + x.shape[1])) for start, x in zip(starts, (s, t), strict=True)]
            alone, cache = model.run_with_cache(s, t)
            assert error(logits[:, here[1]], alone) <= 1e-5
            compare(kept, cache, model.points, [0], here[1], here[0])
            starts = [start + x.shape[1] for start, x in zip(starts, (s, t), strict=True)]


def test_a_target_that_may_see_nothing_of_the_source_gathers_nothing(model):
    """Spare places of a packed row: finite, alike with and without listeners, and nobody else's concern."""
    source, tokens = ids(model, 1, 6), ids(model, 1, 5, seed=2)
    cross = torch.ones(1, 5, 6, dtype=torch.bool)
    cross[0, 3:] = False
    with torch.no_grad():
        memory = model.encode(source)
        fused = model.decode(tokens, memory, cross_mask=cross)
        with model.hooks([(lambda name: name.endswith("pattern"), lambda x, hook: None)]):
            explicit = model.decode(tokens, memory, cross_mask=cross)
        assert explicit.isfinite().all()
        assert error(explicit, fused) <= 1e-6
        assert error(fused[:, :3], model.decode(tokens[:, :3], memory)) <= 1e-5


def test_a_cache_makes_keys_and_values_of_the_memory_once(model):
    seen: list[str] = []
    cache = KeyValueCache(model.cfg.n_decoder_layers)
    memory = model.encode(ids(model, 1, 6))
    with model.hooks([(lambda name: "cross_attn.hook_k" in name, lambda x, hook: seen.append(hook.name))]):
        for i in range(3):
            at = torch.tensor([[i]])
            model.decode(torch.tensor([[5]]), memory, at, torch.ones(1, 1, i + 1), cache=cache)
    assert seen == [f"decoder.blocks.{i}.cross_attn.hook_k" for i in range(model.cfg.n_decoder_layers)]


def test_stopping_returns_the_input_of_that_block(model):
    source, tokens = ids(model, 2, 6), ids(model, 2, 5, seed=2)
    with torch.no_grad():
        _, cache = model.run_with_cache(source, tokens)
        memory = model.encode(source)
        for i in range(3):
            assert error(model.encode(source, stop_at_layer=i), cache[f"encoder.blocks.{i}.hook_resid_pre"]) <= 1e-6
        for i in range(2):
            name = f"decoder.blocks.{i}.hook_resid_pre"
            out, stopped = model.run_with_cache(source, tokens, points=name, stop_at_layer=i)
            assert torch.equal(out, stopped[name])
            assert error(out, cache[name]) <= 1e-6
        out = cache["decoder.blocks.1.ln3.hook_normalized"]
        assert error(model.decode(tokens, memory, stop_at_layer=2), out) <= 1e-6
        assert error(model.decode(tokens, memory, return_logits=False), out) <= 1e-6
        assert error(model.encode(source, stop_at_layer=3), memory) <= 1e-6
    for run in (lambda: model.encode(source, stop_at_layer=4), lambda: model.decode(tokens, memory, stop_at_layer=-1)):
        with pytest.raises(UsageError, match=r"stop_at_layer -?\d is not in 0\.\."):
            run()


def test_the_decoder_looks_back_only_and_sees_the_source_through_the_memory_alone(model):
    source, tokens = ids(model, 1, 6), ids(model, 1, 5, seed=2)
    other = tokens.clone()
    other[0, 3] = (other[0, 3] + 1) % model.cfg.d_vocab
    with torch.no_grad():
        plain = model(source, tokens)
        assert error(model(source, other)[:, :3], plain[:, :3]) <= 1e-6
        assert error(model(source, other)[:, 3:], plain[:, 3:]) > 1e-3
        elsewhere = model.encode(ids(model, 1, 6, seed=7))
        patch = [("encoder.blocks.2.ln2.hook_normalized", lambda x, hook: elsewhere)]
        assert error(model.run_with_hooks(source, tokens, fwd_hooks=patch), model.decode(tokens, elsewhere)) <= 1e-6
        silent = [(f"decoder.blocks.{i}.hook_cross_attn_out", lambda x, hook: torch.zeros_like(x)) for i in range(2)]
        deaf = [model.run_with_hooks(s, tokens, fwd_hooks=silent) for s in (source, ids(model, 1, 4, seed=7))]
        assert torch.equal(*deaf)


def test_weights_before_training():
    """Embeddings of sigma init_std, linear maps of Glorot's, biases 0, gains 1."""
    cfg = TransformerConfig(64, 2, 2, 96, 96, 1, 1, 64, 64, positions="learned", tie_embeddings=False, init_std=0.3)
    for name, p in Transformer(cfg).init_weights(0).named_parameters():
        if name.endswith("bias"):
            assert not p.any(), name
        elif ".ln" in name:
            assert (p == 1).all(), name
        else:
            sigma = 0.3 if "embed" in name else (2 / sum(p.shape)) ** 0.5
            assert abs(p.std().item() / sigma - 1) < 0.05, name
            assert p.abs().max() <= 3 * sigma * 1.0001, name
    unit = Transformer(replace(cfg, init_std=1.0)).init_weights(0).embed.weight.bfloat16()
    assert torch.equal(Transformer(cfg).bfloat16().init_weights(0).embed.weight, unit * 0.3)  # rounded, then scaled


SOURCE, TARGET = torch.zeros(2, 6, dtype=torch.long), torch.zeros(2, 5, dtype=torch.long)


@pytest.mark.parametrize(
    ("run", "match"),
    [
        (lambda m: m("the keys", TARGET), "to_tokens"),
        (lambda m: m(SOURCE[0], TARGET), "int64"),
        (lambda m: m(SOURCE, TARGET.float()), "int64"),
        (lambda m: m(SOURCE + 31, TARGET), r"0\.\.30"),
        (lambda m: m(torch.zeros(2, 25, dtype=torch.long), TARGET), "25 tokens do not fit a context of 24"),
        (lambda m: m(SOURCE, TARGET[:1]), r"memory is the output of encode\(source\), \[1, S, 32\]; got \[2, 6, 32\]"),
        (lambda m: m(SOURCE, TARGET, torch.ones(2, 5)), r"attention_mask is \[2, 6\]"),
        (lambda m: m(SOURCE, TARGET, torch.ones(2, 6, 6)), r"source_mask is \[B, S\]"),
        (lambda m: m(SOURCE, TARGET, None, torch.ones(2, 6)), r"attention_mask is \[2, 5\]"),
        (lambda m: m.encode(torch.zeros(1, 30, dtype=torch.long), None, torch.ones(1, 30, 30)), "30 tokens do not fit"),
        (lambda m: m.encode(SOURCE, SOURCE + 24), "position 24 is outside the context, 0..23"),
        (lambda m: m.encode(SOURCE, SOURCE[:, :3]), r"position_ids are \[2, 6\]"),
        (lambda m: m.decode(TARGET, torch.zeros(2, 6, 32), TARGET + 30), "position 30 is outside the context, 0..23"),
        (lambda m: m.decode(TARGET, torch.zeros(2, 6, 32), cross_mask=torch.ones(2, 5)), r"cross_mask is \[2, 6\] or"),
        (
            lambda m: m.decode(TARGET, torch.zeros(2, 6, 32), cross_mask=torch.tensor([[1] * 6, [0] * 6])),
            "let each target see a source token",
        ),
        (lambda m: m.decode(TARGET, torch.zeros(2, 6, 32), cache=KeyValueCache(2)), "with a cache, give position_ids"),
        (
            lambda m: m.decode(
                TARGET[:, :1], torch.zeros(2, 6, 32), TARGET[:, :1], torch.ones(2, 1, 1), cache=KeyValueCache(1)
            ),
            "the cache has 1 layer, and the decoder 2",
        ),
    ],
)
def test_impossible_input(model, run, match):
    with pytest.raises(UsageError, match=match):
        run(model)


@pytest.mark.parametrize("positions", [-1, 0, [0, -1], slice(1, 3)])
def test_positions_are_those_of_each_stack_and_the_source_of_cross_attention_stays_whole(model, positions):
    tokens, targets = ids(model, 2, 6, seed=1), ids(model, 2, 4, seed=2)
    _, whole = model.run_with_cache(tokens, targets)
    _, some = model.run_with_cache(tokens, targets, positions=positions)
    for name, x in whole.items():
        axes = model.points[name].axes.split()
        if "L" not in axes:
            assert axes == ["B", "S", "H", "K"]
            assert torch.equal(some[name], x)
        else:
            assert torch.equal(some[name], x[:, :, positions] if axes[1] == "H" else x[:, positions]), name


def test_a_position_that_one_stack_lacks_is_an_error_that_names_the_point(model):
    with pytest.raises(UsageError, match=r"decoder\.\S+ has 4 positions, -4\.\.3; got 5"):
        model.run_with_cache(ids(model, 2, 6, seed=1), ids(model, 2, 4, seed=2), positions=5)

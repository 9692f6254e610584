"""Toy models in TransformerLens's files, against the equations on the file's own tensors, in float64.

So are the functions of the page that makes such files: of Tracr's parameters, and of a GPT-2 that hides its norms.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pages
import pytest
import torch
import transformers
from safetensors.torch import save_file
from tiny_configs import SIZES
from torch import Tensor

import probekit as pk
from probekit.errors import DataError, UsageError
from probekit.models.families.hooked_transformer import HookedTransformerConfig
from probekit.worlds.compiled import NAMES, compiled_model
from probekit.worlds.compiled.program import compile_program

TINY = {
    "hooked": HookedTransformerConfig(**SIZES, d_head=12),
    "hooked-normless": HookedTransformerConfig(**SIZES, d_head=6, normalization_type=None, attn_scale=1.0),
    "hooked-pre-bidirectional": HookedTransformerConfig(
        **SIZES, d_head=8, normalization_type="LNPre", attention_dir="bidirectional", activation="gelu_new"
    ),
    "hooked-attention": HookedTransformerConfig(**SIZES, d_head=8, attn_only=True),
    "hooked-attention-normless-bidirectional": HookedTransformerConfig(
        **SIZES, d_head=8, attn_only=True, normalization_type=None, attention_dir="bidirectional"
    ),
}

BASE: dict[str, Any] = {
    "model_type": "hooked_transformer", "n_layers": 3, "d_model": 20, "n_ctx": 24, "d_head": 6, "n_heads": 4,
    "d_mlp": 28, "d_vocab": 61, "act_fn": "relu", "normalization_type": "LN", "eps": 1e-5,
}  # fmt: skip
IMPOSSIBLE = [
    (BASE | change, match)
    for change, match in [
        ({"normalization_type": "RMS"}, "normalization_type 'RMS'"),
        ({"positional_embedding_type": "rotary"}, "positional_embedding_type = 'rotary' is not implemented"),
        ({"attention_dir": "both"}, "attention_dir 'both'"),
        ({"act_fn": None}, "act_fn"),
        ({"act_fn": "solu_ln"}, "act_fn"),
        ({"d_vocab_out": 3}, "d_vocab_out = 3 is not implemented"),
        ({"gated_mlp": True}, "gated_mlp"),
        ({"parallel_attn_mlp": True}, "parallel_attn_mlp"),
        ({"use_local_attn": True}, "use_local_attn"),
        ({"attn_scores_soft_cap": 30.0}, "attn_scores_soft_cap"),
        ({"use_attn_scale": "no"}, "use_attn_scale must be true or false"),
        ({"attn_scale": 0}, "attn_scale must be a positive number"),
        ({"d_head": None}, "d_head must be a whole number"),
    ]
]
TOKENS = torch.randint(61, (3, 11), generator=torch.Generator().manual_seed(1))
KINDS: dict[str, dict[str, Any]] = {
    "LN": {},
    "LNPre, gelu": {"normalization_type": "LNPre", "act_fn": "gelu_new", "attn_scale": -1.0, "d_vocab_out": 61},
    "no norms": {"normalization_type": None, "attn_scale": 3.5},
    "bidirectional": {"attention_dir": "bidirectional", "use_attn_scale": False},
    "bidirectional LNPre": {"attention_dir": "bidirectional", "normalization_type": "LNPre"},
    "bidirectional, no norms": {"attention_dir": "bidirectional", "normalization_type": None},
    "attention": {"attn_only": True, "d_mlp": None, "act_fn": None},
    "attention, no norms": {"attn_only": True, "act_fn": None, "normalization_type": None},
    "bidirectional attention": {"attn_only": True, "attention_dir": "bidirectional", "normalization_type": "LNPre"},
}


def state_of(hf: dict[str, Any]) -> dict[str, Tensor]:
    """Random weights under TransformerLens's names, float32, with its two buffers."""
    generator = torch.Generator().manual_seed(0)
    V, D, H, K, F = (hf[x] for x in ("d_vocab", "d_model", "n_heads", "d_head", "d_mlp"))
    shapes: dict[str, tuple[int, ...]] = {"embed.W_E": (V, D), "pos_embed.W_pos": (hf["n_ctx"], D)}
    has_norms = hf["normalization_type"] == "LN"
    for i in range(hf["n_layers"]):
        for x in "QKV":
            shapes |= {f"blocks.{i}.attn.W_{x}": (H, D, K), f"blocks.{i}.attn.b_{x}": (H, K)}
        shapes |= {f"blocks.{i}.attn.W_O": (H, K, D), f"blocks.{i}.attn.b_O": (D,)}
        if not hf.get("attn_only"):
            shapes |= {f"blocks.{i}.mlp.W_in": (D, F), f"blocks.{i}.mlp.b_in": (F,)}
            shapes |= {f"blocks.{i}.mlp.W_out": (F, D), f"blocks.{i}.mlp.b_out": (D,)}
        for norm in ("ln1",) if hf.get("attn_only") else ("ln1", "ln2"):
            shapes |= {f"blocks.{i}.{norm}.{x}": (D,) for x in "wb" if has_norms}
    shapes |= {f"ln_final.{x}": (D,) for x in "wb" if has_norms} | {"unembed.W_U": (D, V), "unembed.b_U": (V,)}
    state = {name: 0.2 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    for i in range(hf["n_layers"]):
        n = hf["n_ctx"]
        state[f"blocks.{i}.attn.mask"] = torch.ones(n, n, dtype=torch.bool).tril()
        state[f"blocks.{i}.attn.IGNORE"] = torch.tensor(-math.inf)
    return state


def written(folder: Path, hf: dict[str, Any], state: dict[str, Tensor]) -> Path:
    folder.mkdir(exist_ok=True)
    save_file(state, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(hf))
    return folder


def by_the_equations(hf: dict[str, Any], state: dict[str, Tensor], tokens: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits [B, L, V] and points, in float64, from the file's tensors; no code of the package."""
    w = {name: x.double() for name, x in state.items()}
    acts = {"relu": torch.relu, "gelu_new": lambda x: torch.nn.functional.gelu(x, approximate="tanh")}
    length, kind, points = tokens.shape[1], hf["normalization_type"], {}

    def norm(x: Tensor, name: str) -> Tensor:
        if kind is None:
            return x
        x = x - x.mean(-1, keepdim=True)
        x = x / (x.pow(2).mean(-1, keepdim=True) + hf["eps"]).sqrt()
        return x * w[f"{name}.w"] + w[f"{name}.b"] if kind == "LN" else x

    divisor = hf.get("attn_scale", -1)
    divisor = math.sqrt(hf["d_head"]) if divisor == -1 else divisor
    divisor = divisor if hf.get("use_attn_scale", True) else 1
    x = w["embed.W_E"][tokens] + w["pos_embed.W_pos"][:length]
    for i in range(hf["n_layers"]):
        points[f"resid_pre.{i}"] = x
        at = f"blocks.{i}.attn."
        h = norm(x, f"blocks.{i}.ln1")
        q, k, v = (torch.einsum("bld,hdk->blhk", h, w[f"{at}W_{c}"]) + w[f"{at}b_{c}"] for c in "QKV")
        scores = torch.einsum("blhk,bmhk->bhlm", q, k) / divisor
        if hf.get("attention_dir", "causal") == "causal":
            scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), -math.inf)
        pattern = scores.softmax(-1)
        z = torch.einsum("bhlm,bmhk->blhk", pattern, v)
        result = torch.einsum("blhk,hkd->blhd", z, w[f"{at}W_O"])
        points |= {f"q.{i}": q, f"k.{i}": k, f"v.{i}": v, f"attn_scores.{i}": scores, f"attn_pattern.{i}": pattern}
        attn_out = result.sum(2) + w[f"{at}b_O"]
        points |= {f"z.{i}": z, f"result.{i}": result, f"attn_out.{i}": attn_out}
        x = x + attn_out
        if not hf.get("attn_only"):
            pre = norm(x, f"blocks.{i}.ln2") @ w[f"blocks.{i}.mlp.W_in"] + w[f"blocks.{i}.mlp.b_in"]
            post = acts[hf["act_fn"]](pre)
            out = post @ w[f"blocks.{i}.mlp.W_out"] + w[f"blocks.{i}.mlp.b_out"]
            points |= {f"resid_mid.{i}": x, f"mlp_pre.{i}": pre, f"mlp_post.{i}": post, f"mlp_out.{i}": out}
            x = x + out
        points[f"resid_post.{i}"] = x
    points["ln_final"] = norm(x, "ln_final")
    return points["ln_final"] @ w["unembed.W_U"] + w["unembed.b_U"], points


def error(got: Tensor, wanted: Tensor) -> float:
    finite = wanted.isfinite()
    assert torch.equal(got.isfinite(), finite)
    return float((got[finite] - wanted[finite]).abs().max() / wanted[finite].abs().max())


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_every_point_follows_from_the_tensors_of_the_file(kind, tmp_path):
    hf = BASE | KINDS[kind]
    state = state_of(BASE | KINDS[kind] | {"d_mlp": 28})
    model = pk.load_model(written(tmp_path, hf, state), device="cpu")
    logits, points = by_the_equations(hf, state, TOKENS)
    ours, cache = model.run_with_cache(TOKENS)
    assert error(ours, logits) <= 1e-5
    assert error(model(TOKENS), logits) <= 1e-5
    for name, wanted in points.items():
        assert error(cache[name], wanted) <= 1e-5, name
    names = {short for short in ("resid_mid", "mlp_out", "ln1_normalized", "ln2_scale") if (short, 0) in cache}
    normed = {"ln1_normalized", "ln2_scale"} if hf["normalization_type"] else set()
    assert names == (normed - {"ln2_scale"} if hf.get("attn_only") else {"resid_mid", "mlp_out"} | normed)


@torch.no_grad()
def test_the_direction_of_attention_decides_who_sees_whom(tmp_path):
    """In the model, its batches, and generation; a bidirectional model refuses to continue a text."""
    tokens = TOKENS[:1, :9]
    other = tokens.clone()
    other[:, 5] = (other[:, 5] + 1) % 61
    for direction in ("causal", "bidirectional"):
        hf = BASE | {"attention_dir": direction, "normalization_type": None}
        model = pk.load_model(written(tmp_path / direction, hf, state_of(hf)), device="cpu")
        assert model.causal == (direction == "causal")
        changed = (model(tokens) - model(other)).abs().amax((0, 2)) > 1e-6
        assert changed[5:].all()
        assert changed[:5].all() == (not model.causal)
        assert changed[:5].any() == (not model.causal)
        if model.causal:
            assert len(model.generate([1, 2, 3], max_new_tokens=2, temperature=0)) >= 1
        else:
            with pytest.raises(UsageError, match="both directions and cannot continue"):
                model.generate([1, 2, 3], max_new_tokens=2)


def test_what_a_config_leaves_out_is_transformerlens_default():
    silent = {name: BASE[name] for name in BASE if name not in ("d_mlp", "normalization_type", "eps")}
    cfg = HookedTransformerConfig.from_hf(silent)
    assert (cfg.d_mlp, cfg.normalization_type, cfg.ln_eps, cfg.causal) == (80, "LN", 1e-5, True)
    of_a_model = {"init_mode": "gpt2", "device": "cpu", "seed": None, "dtype": "torch.float32", "n_params": 9_000}
    of_a_model |= {"attn_scale": math.sqrt(6), "d_vocab_out": 61, "initializer_range": 0.02, "use_attn_result": False}
    assert HookedTransformerConfig.from_hf(silent | of_a_model) == cfg
    alone = HookedTransformerConfig.from_hf(silent | {"attn_only": True, "act_fn": "relu", "d_mlp": 80})
    assert (alone.d_mlp, alone.activation) == (None, None)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"blocks.1.attn.W_O": None}, r"missing: blocks\.1\.attn\.W_O \[4, 6, 20\]"),
        ({"unembed.W_U": torch.ones(61, 20)}, r"unembed\.W_U \(expected \[20, 61\], found \[61, 20\]\)"),
        ({"blocks.0.attn.W_Q": torch.ones(24, 20)}, r"blocks\.0\.attn\.W_Q \(expected \[4, 20, 6\], found \[24, 20\]"),
        ({"blocks.0.mlp.W_gate": torch.ones(20, 28)}, r"unexpected: blocks\.0\.mlp\.W_gate"),
        ({"blocks.0.attn.rotary_sin": torch.ones(24, 6)}, r"unexpected: blocks\.0\.attn\.rotary_sin"),
    ],
)
def test_weights_that_do_not_fit_are_named(change, match, tmp_path):
    state = {name: x for name, x in (state_of(BASE) | change).items() if x is not None}
    with pytest.raises(DataError, match=match):
        pk.load_model(written(tmp_path, BASE, state), device="cpu")


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """The functions that docs/how-to/toy-models.md defines, by name."""
    scope: dict[str, Any] = {"np": np}
    for block in pages.blocks(pages.REPO / "docs/how-to/toy-models.md"):
        if block.language == "python" and "\ndef " in block.code:
            exec(block.code, scope)
    return scope


def test_a_config_of_transformerlens_is_written_with_its_words(page, tmp_path):
    """Its `to_dict` has a dtype, a number of numpy and defaults spelled out; a BOS has its id in the config."""
    of_theirs = {"dtype": torch.float32, "device": "cpu", "initializer_range": np.float64(0.1), "attn_types": None}
    of_theirs |= {"attn_scale": np.sqrt(6), "d_vocab_out": 61, "n_params": 12, "use_hook_tokens": False, "seed": None}
    spelled = ["BOS", *(f"w{i}" for i in range(60))]
    page["save_toy"](tmp_path / "toy", BASE | of_theirs | {"bos_token_id": 0}, state_of(BASE), spelled)
    model = pk.load_model(tmp_path / "toy", device="cpu")
    assert model.cfg == HookedTransformerConfig.from_hf(BASE | {"bos_token_id": 0})
    assert model.to_tokens("w3 w59", bos=True).tolist() == [[0, 4, 60]]
    with pytest.raises(DataError, match="unseen"):
        model.to_tokens("w3 unseen")


@torch.no_grad()
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"attn_only": True, "act_fn": None},
        {"d_model": 6, "d_head": 16, "n_heads": 2, "act_fn": "gelu_new"},
        {"d_model": 33, "d_head": 2, "n_heads": 5},
        {"attn_scale": -1.0},
        {"attn_scale": 0.1},
        {"use_attn_scale": False, "attn_scale": 3.5, "d_head": 16},
    ],
)
def test_a_gpt2_hides_its_norms_from_a_model_without(change, page, tmp_path):
    """In this package and in transformers; as near as var(x) / 2e8 and the rounding of float32 are."""
    hf = BASE | {"normalization_type": None} | change
    state = state_of(hf)
    logits = by_the_equations(hf, state, TOKENS)[0]
    config, tensors = page["as_gpt2"](hf, state)
    (tmp_path / "gpt2").mkdir()
    (tmp_path / "gpt2/config.json").write_text(json.dumps(config))
    save_file(tensors, tmp_path / "gpt2/model.safetensors", metadata={"format": "pt"})
    disguised = pk.load_model(tmp_path / "gpt2", device="cpu")
    theirs = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "gpt2").eval()
    plain = pk.load_model(written(tmp_path / "plain", hf, state), device="cpu")
    assert error(plain(TOKENS), logits) <= 1e-5
    assert error(disguised(TOKENS), logits) <= 1e-4
    assert error(theirs(TOKENS).logits, logits) <= 1e-4


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_a_gpt2_computes_what_a_compiled_model_does(name, page):
    """Its scores of 30 are not divided. A bidirectional model and one with norms are refused."""
    made = compiled_model(name)
    hf, arrays = compile_program(made.program)
    state = {at: torch.from_numpy(x) for at, x in arrays.items()}
    if not made.program.causal or made.program.norm:
        with pytest.raises(ValueError, match=r"keep the file as hooked_transformer$"):
            page["as_gpt2"](hf, state)
        return
    config, tensors = page["as_gpt2"](hf, state)
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**config)).eval()
    theirs.load_state_dict(tensors, strict=True)
    words = list(made.program.words)
    texts = [text.words for text in made.texts(np.random.default_rng(0), "train")]
    texts += np.random.default_rng(0).choice(words, (20, hf["n_ctx"])).tolist()
    for text in texts:
        tokens = torch.tensor([[words.index(word) for word in text]])
        wanted = by_the_equations(hf, state, tokens)[0]
        assert (theirs(tokens).logits - wanted).abs().max() <= 1e-4 * max(1, wanted.abs().max())


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"attention_dir": "bidirectional", "normalization_type": None}, "attention_dir"),
        ({"normalization_type": "LNPre"}, "normalization_type"),
        ({"normalization_type": "LN"}, "normalization_type"),
        ({}, "normalization_type"),  # TransformerLens's default is LN
    ],
)
def test_a_gpt2_is_not_made_of_what_it_cannot_compute(change, named, page):
    hf = {name: BASE[name] for name in BASE if name != "normalization_type"} | change
    with pytest.raises(ValueError, match=f"^{named} is [^\n]*$"):
        page["as_gpt2"](hf, state_of({"normalization_type": "LN"} | hf))


def compiled(n_layers: int, d_model: int, n_heads: int, size: int, hidden: int) -> dict[str, dict[str, np.ndarray]]:
    """Random Haiku parameters under the names that Tracr gives them."""
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.normal(size=shape, scale=0.3).astype(np.float32)  # noqa: E731
    params = {"token_embed": {"embeddings": draw(4, d_model)}, "pos_embed": {"embeddings": draw(6, d_model)}}
    shapes = {f"attn/{x}": (d_model, n_heads * size) for x in ("query", "key", "value")}
    shapes |= {"attn/linear": (n_heads * size, d_model), "mlp/linear_1": (d_model, hidden)}
    shapes |= {"mlp/linear_2": (hidden, d_model)}
    for i in range(n_layers):
        for module, (d_in, d_out) in shapes.items():
            params[f"transformer/layer_{i}/{module}"] = {"w": draw(d_in, d_out), "b": draw(d_out)}
    return params


def as_haiku_computes(params: dict[str, dict[str, np.ndarray]], n_heads: int, ids: list[int], causal: bool) -> Any:
    """The last stream [L, D] as Tracr's Transformer and MultiHeadAttention compute it, in float64."""
    linear = lambda x, at: x @ params[at]["w"].astype(np.float64) + params[at]["b"]  # noqa: E731
    x = params["token_embed"]["embeddings"].astype(np.float64)[ids] + params["pos_embed"]["embeddings"][: len(ids)]
    for i in range(sum(name.endswith("attn/query") for name in params)):
        at = f"transformer/layer_{i}"
        q, k, v = (linear(x, f"{at}/attn/{part}").reshape(len(ids), n_heads, -1) for part in ("query", "key", "value"))
        scores = np.einsum("thd,Thd->htT", q, k) / np.sqrt(q.shape[-1])
        if causal:
            scores = np.where(np.tril(np.ones((len(ids), len(ids)))), scores, -1e30)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("htT,Thd->thd", weights / weights.sum(-1, keepdims=True), v).reshape(len(ids), -1)
        x = x + linear(mixed, f"{at}/attn/linear")
        x = x + linear(np.maximum(linear(x, f"{at}/mlp/linear_1"), 0), f"{at}/mlp/linear_2")
    return x


@torch.no_grad()
@pytest.mark.parametrize("causal", [False, True])
def test_a_program_compiled_by_tracr_computes_the_same_here(causal, page, tmp_path):
    """Its output is one of the words, or a value that no input has; other words are no output."""
    params, spelled = compiled(2, 7, 3, 5, 9), ["BOS", "a", "b", "c", "none"]
    labels = ["indices:0", "out:b", "out:a", "out:none", "tokens:a", "tokens:b", "one"]
    state = page["from_tracr"](params, 3, labels, "out", spelled)
    config = {
        "n_layers": 2, "d_model": 7, "n_heads": 3, "d_head": 5, "d_mlp": 9, "n_ctx": 6, "d_vocab": 5, "act_fn": "relu",
        "normalization_type": None, "attention_dir": "causal" if causal else "bidirectional",
    }  # fmt: skip
    page["save_toy"](tmp_path / "program", config, state, spelled)
    model = pk.load_model(tmp_path / "program", device="cpu")
    wanted = as_haiku_computes(params, 3, [0, 2, 1, 3, 2], causal)
    logits, cache = model.run_with_cache(model.to_tokens("BOS b a c b"))
    assert error(cache["resid_post", 1][0], torch.from_numpy(wanted)) <= 1e-5
    assert error(logits[0][:, [2, 1, 4]], torch.from_numpy(wanted[:, 1:4])) <= 1e-5
    assert (logits[0][:, [0, 3]] == -100).all()

"""The last block that runs computes what is read alone: the same numbers, in every family, from fewer rows."""

from typing import Any

import numpy as np
import pytest
import torch
from store_cases import plan_of
from tiny_configs import LIKE_ANOTHER, new_model, tiny_configs

from probekit.activations.run.forward import batch_inputs
from probekit.errors import UsageError
from probekit.models.base import LanguageModel
from probekit.models.decoder import DecoderOnly
from probekit.models.families import family_of
from probekit.models.families.bert import Bert, BertConfig
from probekit.models.families.gpt2 import GPT2, GPT2Config
from probekit.models.families.gptneox import GPTNeoX, GPTNeoXConfig
from probekit.models.families.llama import Llama, LlamaConfig
from probekit.models.families.modernbert import ModernBert, ModernBertConfig
from probekit.models.families.olmo import Olmo, OlmoConfig
from probekit.models.families.transformer import Transformer, TransformerConfig
from probekit.models.layers import Linear
from probekit.tasks.base import Task
from probekit.verbs.extract import extract

SIZES: dict[str, Any] = {"d_model": 16, "n_heads": 2, "d_mlp": 24, "n_layers": 3, "n_ctx": 12, "d_vocab": 9}
PAIR: dict[str, Any] = {"n_decoder_heads": 2, "d_decoder_mlp": 24, "n_decoder_layers": 3, "decoder_start_token_id": 0}
PRE_NORM = ["q", "k", "v", "z", "result", "attn_out", "resid_mid", "ln2_normalized", "mlp_pre", "mlp_post", "mlp_out"]
WINDOWS: dict[str, Any] = {
    "sliding_window": 3,
    "layer_types": ("sliding_attention", "full_attention", "full_attention"),
}
MADE: dict[str, Any] = {
    "gpt2": lambda: GPT2(GPT2Config(**SIZES, init_std=0.3)),
    "llama": lambda: Llama(LlamaConfig(**SIZES, n_kv_heads=1, d_head=8, init_std=0.3, sliding_window=4, qkv_bias=True)),
    "qwen3": lambda: Llama(
        LlamaConfig(
            **SIZES, n_kv_heads=1, d_head=8, init_std=0.3, sliding_window=3, n_full_layers=1, model_type="qwen3"
        )
    ),
    "olmo": lambda: Olmo(OlmoConfig(**SIZES, **WINDOWS, n_kv_heads=1, d_head=8, init_std=0.3, model_type="olmo3")),
    "gptneox": lambda: GPTNeoX(GPTNeoXConfig(**SIZES, rotary_pct=0.5, init_std=0.3)),
    "bert": lambda: Bert(BertConfig(**SIZES, init_std=0.3)),
    "modernbert": lambda: ModernBert(ModernBertConfig(**SIZES, **WINDOWS, init_std=0.3)),
    "encoder": lambda: Transformer(TransformerConfig(**SIZES, **PAIR)),
}
MADE["decoder"] = MADE["encoder"]
POINTS = {
    "gpt2": ["resid_pre", "ln_final", *PRE_NORM],
    "llama": ["resid_pre", "ln_final", "rot_q", *PRE_NORM],
    "qwen3": ["resid_pre", "ln_final", "q_norm", "k_norm", "rot_q", *PRE_NORM],
    "olmo": ["resid_pre", "q_norm", "rot_q", "ln1_post_normalized", *(x for x in PRE_NORM if x != "ln2_normalized")],
    "gptneox": ["resid_pre", "ln_final", "rot_q", *(point for point in PRE_NORM if point != "resid_mid")],
    "bert": ["resid_pre", "ln1_normalized", "ln2_normalized", *PRE_NORM],
    "modernbert": ["resid_pre", "ln_final", "rot_q", *PRE_NORM],
    "encoder": ["encoder.resid_pre", *(f"encoder.{point}" for point in PRE_NORM)],
    "decoder": ["decoder.resid_pre", "decoder.cross_attn_out", *(f"decoder.{point}" for point in PRE_NORM)],
}


@pytest.fixture
def task() -> Task:
    """Texts that share prefixes, with words within them."""
    rng = np.random.default_rng(0)
    texts = [rng.integers(1, 4, size=rng.integers(2, 11)).tolist() for _ in range(40)]
    labels = {"none": np.zeros(len(texts), dtype=np.int64)}
    targets = [[0, *ids] for ids in texts]
    return Task("texts", texts, labels, {"none": ["none"]}, np.full(len(texts), "train"), "none", targets=targets)


def rows_of_last_mlp(model: LanguageModel, family: str, layer: int) -> tuple[list[int], Any]:
    """The rows that the MLP of a block takes, batch by batch, as they come, and the way to stop counting."""
    stack: Any = getattr(model, family, model)
    rows: list[int] = []
    handle = stack.blocks[layer].mlp.register_forward_hook(lambda _, args, __: rows.append(args[0][..., 0].numel()))
    return rows, handle


@pytest.mark.parametrize("family", MADE)
@pytest.mark.parametrize("layers", ["all", "0", "1"])
@pytest.mark.parametrize("position", ["last", ["first", "last"], "first"])
def test_what_is_read_equals_what_all_nodes_give(task: Task, family: str, layers: str, position: Any) -> None:
    model = MADE[family]().init_weights(0)
    how: dict[str, Any] = {"points": POINTS[family], "layers": layers, "block_nodes": 64}
    everything = extract(model, task, position="all", **how)
    acts = extract(model, task, position=position, **how)
    assert acts.keys() == everything.keys()
    for place, x in acts.items():
        wanted = [everything.at(one)[place] for one in (position if isinstance(position, list) else [position])]
        whole = wanted[0] if len(wanted) == 1 else torch.stack(wanted, 1)
        assert (x - whole).abs().max() <= 5e-6 * whole.abs().max(), place


@pytest.mark.parametrize("family", MADE)
def test_the_last_block_runs_on_fewer_rows(task: Task, family: str) -> None:
    model, how = MADE[family]().init_weights(0), {"points": POINTS[family][:1], "layers": "2", "share": False}
    nodes = plan_of(model, task, **how, position="last").packing.nodes
    rows, handle = rows_of_last_mlp(model, family, 1)
    extract(model, task, **how, position="last")
    handle.remove()
    assert len(task) <= sum(rows) <= nodes / 2


@pytest.mark.parametrize("family", MADE)
@pytest.mark.parametrize("what", ["a hook of the user's", "patterns", "every token", "the mean"])
def test_the_last_block_runs_on_all_rows_where_they_are_needed(task: Task, family: str, what: str) -> None:
    model = MADE[family]().init_weights(0)
    stack = POINTS[family][0].rpartition("resid_pre")[0]
    points = [f"{stack}resid_post", *([f"{stack}attn_pattern"] if what == "patterns" else [])]
    position = {"every token": "all", "the mean": "mean"}.get(what, "first")
    hooks: Any = [((f"{stack}resid_post", 1), lambda x, hook: None)] if "hook" in what else []
    planned = plan_of(model, task, points=points, layers="1", position=position)
    rows, handle = rows_of_last_mlp(model, family, 1)
    with model.hooks(hooks):
        extract(model, task, points=points, layers="1", position=position)
    handle.remove()
    assert sum(rows) >= (sum(map(len, task.inputs)) if hooks else planned.packing.nodes)


def test_reading_needs_a_row_for_each_text(task: Task) -> None:
    model = MADE["gpt2"]().init_weights(0)
    planned = plan_of(model, task, points="resid_pre")
    tokens, packed = batch_inputs(model, planned.packing.batch(planned.batches[0]))
    read = torch.tensor([[1, 0]]).expand(len(tokens), 2)
    with torch.inference_mode(), model.reading(read):
        assert model(tokens, **packed).shape == (len(tokens), 2, 9)
        with pytest.raises(UsageError, match=r"within reading\(...\), give position_ids"):
            model(tokens[:, :5].repeat(2, 1))
        with model.reading(None):
            assert model(tokens, **packed).shape == (*tokens.shape, 9)
        assert model(tokens, **packed).shape == (len(tokens), 2, 9)
    with torch.inference_mode():
        logits = model(tokens, **packed)
        assert logits.shape == (*tokens.shape, 9)
        with model.reading(read):
            torch.testing.assert_close(model(tokens, **packed), logits[:, [1, 0]], rtol=1e-5, atol=1e-5)


DECODERS = [name for name, cfg in tiny_configs().items() if issubclass(family_of(cfg).model, DecoderOnly)]
DECODERS = [name for name in DECODERS if getattr(tiny_configs()[name], "causal", True)]


@pytest.mark.parametrize("name", [name for name in DECODERS if name not in LIKE_ANOTHER])
def test_a_text_in_each_row_needs_no_mask(task: Task, name: str) -> None:
    """What the kernel that skips the keys after a query gives equals what the mask of the same batch gives."""
    model = new_model(name)
    how: dict[str, Any] = {"points": "resid_pre", "position": "all", "share": False}
    planned = plan_of(model, task, **how, block_nodes=1)
    batch = planned.packing.batch(max(planned.batches, key=len))
    tokens, packed = batch_inputs(model, batch)
    masked = {**packed, "attention_mask": batch.mask(model.device)}
    assert "attention_mask" not in packed
    assert min(batch.lengths) < max(batch.lengths), "no row is filled up"
    read = torch.from_numpy(batch.lengths)[:, None] - 1
    with torch.inference_mode():
        bare, whole = model(tokens, **packed), model(tokens, **masked)
        for row, length in enumerate(batch.lengths):
            torch.testing.assert_close(bare[row, :length], whole[row, :length], rtol=1e-5, atol=1e-5)
        with model.reading(read):
            torch.testing.assert_close(model(tokens, **packed), model(tokens, **masked), rtol=1e-5, atol=1e-5)
            for wrong in (packed["position_ids"] + 1, packed["position_ids"].flip(1)):  # no text begins its row
                with pytest.raises(UsageError, match="within reading"):
                    model(tokens, position_ids=wrong)
        with model.reading(read + tokens.shape[1]), pytest.raises(UsageError, match="within reading"):
            model(tokens, **packed)


def test_no_weights_are_left_out(task: Task) -> None:
    """GPT-2's queries, keys and values are one map, of which the read nodes take a third."""
    model = MADE["gpt2"]().init_weights(0)
    assert all(isinstance(block.attn.qkv, Linear) for block in model.blocks)
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.bias.normal_()
    last, everything = (extract(model, task, points="resid_post", position=p) for p in ("last", "all"))
    x, wanted = last["resid_post", 2], everything.at("last")["resid_post", 2]
    assert (x - wanted).abs().max() <= 5e-6 * wanted.abs().max()

"""Every family compared with `transformers`: how far apart, and how fast: python benchmarks/families.py --help

    python benchmarks/families.py --dataset data/sst2 --tokenizer TOKENIZER --texts 1000
    python benchmarks/families.py ... --families gptj,bloom --via transformers

Models of random weights (about a hundred million with the default width and depth) read SST-2's phrases as token ids,
last token, every layer. Both sides read the same folder and keep the same hidden states without computing the head;
`transformers` in batches of 32, padded on the right, in the order of the data and sorted by length. With `--via
transformers` ours is the adapter, so the ratio to sorted batches is that to a loop written by hand around the same
class. A round is one run of each; ratios are taken round by round, then their median. The error is max |a - b| / max
|b| over the texts, in the worst layer.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from texts import Texts, neighbours, sst2
from torch import Tensor
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

import probekit as pk
from probekit.models.base import LanguageModel
from probekit.models.families import families, family_of
from probekit.models.weights import save_hf
from probekit.tasks import Task

D_VOCAB, START, BATCH = 50257, 50256, 32
Fields = dict[str, Any]


def decoder(width: int, depth: int) -> Fields:
    """Grouped heads of 64, a gated MLP."""
    heads = width // 64
    return {
        "hidden_size": width, "num_hidden_layers": depth, "num_attention_heads": heads, "head_dim": 64,
        "num_key_value_heads": max(1, heads // 3), "intermediate_size": 8 * width // 3 // 64 * 64,
        "vocab_size": D_VOCAB, "max_position_embeddings": 512, "tie_word_embeddings": False,
        "bos_token_id": START, "eos_token_id": START, "pad_token_id": None,
    }  # fmt: skip


def latents(width: int, depth: int) -> Fields:
    """Heads of 32 + 32 for queries and keys, 32 for values, from latents of a third and a quarter of the width."""
    fields = decoder(width, depth)
    ranks = {"q_lora_rank": width // 3, "kv_lora_rank": width // 4}
    heads = {"qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "head_dim": 32, "v_head_dim": 32}
    return fields | ranks | heads | {"num_key_value_heads": fields["num_attention_heads"]}


def deltas(width: int, depth: int) -> Fields:
    """The same heads in every fourth layer, DeltaNet with heads of 64 in the others."""
    n_keys = max(1, width // 128)
    heads = {"linear_num_key_heads": n_keys, "linear_num_value_heads": 2 * n_keys, "linear_conv_kernel_dim": 4}
    return decoder(width, depth) | heads | {"linear_key_head_dim": 64, "linear_value_head_dim": 64}


def gemma4(width: int, depth: int) -> Fields:
    """Full attention, with heads of 128, in every third layer; the last two borrow keys and values."""
    kinds = ["full_attention" if (depth - i) % 3 == 1 else "sliding_attention" for i in range(depth)]
    of_layers = {"layer_types": kinds, "num_kv_shared_layers": 2, "global_head_dim": 128}
    tables = {"hidden_size_per_layer_input": 64, "vocab_size_per_layer_input": D_VOCAB}
    return decoder(width, depth) | of_layers | tables | {"tie_word_embeddings": True}


def encoder(width: int, depth: int) -> Fields:
    """As many heads of keys, a plain MLP; no text contains the padding id."""
    grouped = ("head_dim", "num_key_value_heads", "tie_word_embeddings", "bos_token_id", "eos_token_id")
    fields = {name: x for name, x in decoder(width, depth).items() if name not in grouped}
    return fields | {"intermediate_size": 4 * width, "pad_token_id": START}


def gpt2(width: int, depth: int) -> Fields:
    """The names of GPT-2 and its relatives."""
    sizes = {"n_embd": width, "n_layer": depth, "n_head": width // 64}
    return sizes | {"n_positions": 512, "vocab_size": D_VOCAB, "bos_token_id": START, "eos_token_id": START}


def pairs(width: int, depth: int) -> Fields:
    """Half as many layers on either side."""
    sizes: Fields = {"d_model": width, "vocab_size": D_VOCAB, "max_position_embeddings": 512}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_layers": depth // 2, f"{side}_attention_heads": width // 64, f"{side}_ffn_dim": 4 * width}
    return sizes | {"pad_token_id": START, "eos_token_id": 0, "decoder_start_token_id": START}


def distilbert(width: int, depth: int) -> Fields:
    """Its own names."""
    sizes = {"dim": width, "hidden_dim": 4 * width, "n_layers": depth, "n_heads": width // 64}
    return sizes | {"vocab_size": D_VOCAB, "max_position_embeddings": 512, "pad_token_id": START}


WINDOW = {"sliding_window": 16}  # shorter than the longest texts
EIGHT: Fields = {"num_experts": 8, "num_experts_per_tok": 2}
SHARED: Fields = {**EIGHT, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512}
IN_GROUPS: Fields = {
    "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512, "n_group": 2, "topk_group": 1,
    "first_k_dense_replace": 1, "n_shared_experts": 1,
}  # fmt: skip
MADE: dict[str, tuple[str, Callable[[int, int], Fields], Fields]] = {  # name -> model_type, sizes, other fields
    "gpt2": ("gpt2", gpt2, {}),
    "gptneox": ("gpt_neox", encoder, {"pad_token_id": None, "tie_word_embeddings": False}),
    "llama": ("llama", decoder, {}),
    "qwen3": ("qwen3", decoder, {}),
    "phi3": ("phi3", decoder, {}),
    "gemma2": ("gemma2", decoder, {**WINDOW, "query_pre_attn_scalar": 64, "tie_word_embeddings": True}),
    "gemma3": ("gemma3_text", decoder, {**WINDOW, "query_pre_attn_scalar": 64, "tie_word_embeddings": True}),
    "olmo2": ("olmo2", decoder, {}),
    "olmo3": ("olmo3", decoder, WINDOW),
    "mixtral": ("mixtral", decoder, {"num_local_experts": 8, "num_experts_per_tok": 2}),
    "qwen3-moe": ("qwen3_moe", decoder, {**EIGHT, "moe_intermediate_size": 512, "norm_topk_prob": True}),
    "qwen2-moe": ("qwen2_moe", decoder, SHARED),
    "olmoe": ("olmoe", decoder, EIGHT),
    "gpt-oss": ("gpt_oss", decoder, {**WINDOW, "num_local_experts": 8, "num_experts_per_tok": 2}),
    "glm-4.5": ("glm4_moe", decoder, IN_GROUPS),
    "deepseek-v2": ("deepseek_v2", latents, {**IN_GROUPS, "topk_method": "group_limited_greedy"}),
    "deepseek-v3": ("deepseek_v3", latents, IN_GROUPS),
    "qwen3-next": ("qwen3_next", deltas, SHARED),
    "qwen3.5": ("qwen3_5_text", deltas, {}),
    "qwen3.5-moe": ("qwen3_5_moe_text", deltas, SHARED),
    "gemma4": ("gemma4_text", gemma4, WINDOW),
    "bert": ("bert", encoder, {}),
    "roberta": ("roberta", encoder, {"max_position_embeddings": 514, "pad_token_id": 1}),
    "distilbert": ("distilbert", distilbert, {}),
    "modernbert": ("modernbert", encoder, {"local_attention": 16}),
    "encoder": ("marian", pairs, {}),
    "decoder": ("marian", pairs, {}),
}
ADAPTED: dict[str, tuple[str, Callable[[int, int], Fields], Fields]] = {
    "gptj": ("gptj", gpt2, {"rotary_dim": 32}),
    "bloom": ("bloom", lambda width, depth: {"hidden_size": width, "n_layer": depth, "n_head": width // 64}, {}),
    "opt": ("opt", encoder, {"ffn_dim": 3072, "pad_token_id": 1}),
    "falcon": ("falcon", encoder, {"alibi": False, "pad_token_id": None}),
    "starcoder2": ("starcoder2", decoder, {}),
    "cohere": ("cohere", decoder, {"tie_word_embeddings": True}),
    "stablelm": ("stablelm", decoder, {}),
    "gpt_bigcode": ("gpt_bigcode", gpt2, {}),
}


class Theirs:
    """Hidden states of `transformers` at the last real token, [N, places, D]."""

    def __init__(self, which: str, model: Any, texts: Texts):
        self.which, self.texts = which, texts
        self.model = model.get_encoder() if which == "encoder" else model.base_model

    def __call__(self, order: np.ndarray) -> Tensor:
        found: list[Any] = [None] * len(self.texts)
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            for row, states in zip(rows, self._batch([self.texts[i] for i in rows]), strict=True):
                found[row] = states
        return torch.stack(found)

    @torch.inference_mode()
    def _batch(self, texts: Texts) -> Tensor:
        tokens, mask = _padded(texts)
        inputs = {"input_ids": tokens, "attention_mask": mask, "output_hidden_states": True}
        last = mask.sum(1) - 1
        if self.which == "decoder":
            targets, target_mask = _padded([[START, *ids] for ids in texts])
            inputs |= {"decoder_input_ids": targets, "decoder_attention_mask": target_mask}
            last, output = target_mask.sum(1) - 1, self.model(**inputs).decoder_hidden_states
        else:
            output = self.model(**inputs).hidden_states
        return torch.stack([states[torch.arange(len(texts)), last] for states in output], 1)


def _padded(texts: Texts) -> tuple[Tensor, Tensor]:
    width = max(map(len, texts))
    tokens = torch.tensor([ids + [0] * (width - len(ids)) for ids in texts])
    return tokens, torch.tensor([[1] * len(ids) + [0] * (width - len(ids)) for ids in texts])


def ours(which: str, model: LanguageModel, texts: Texts) -> Callable[[], Tensor]:
    """The same from `pk.extract`; models with a final norm end with it, as `hidden_states` do."""
    splits, labels = np.full(len(texts), "train"), np.zeros(len(texts), dtype=np.int64)
    targets = [[START, *ids] for ids in texts]
    task = Task("texts", texts, {"none": labels}, {"none": ["none"]}, splits, "none", targets=targets)
    point = f"{which}.resid_pre" if which in ("encoder", "decoder") else "resid_pre"
    end = ["ln_final"] if "ln_final.hook_normalized" in model.points else []

    def run() -> Tensor:
        acts = pk.extract(model, task, points=[point, *end], progress=False)
        places = [place for place in acts if place[0] != "resid_post"]
        return torch.stack([acts[place] for place in places], 1)

    return run


def timed(run: Callable[[], Tensor]) -> tuple[float, Tensor]:
    """Seconds, of the CPU where one thread computes, so that other processes count less."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    x = run()
    return clock() - start, x


def made(which: str, folder: str, width: int, depth: int, via: Any) -> tuple[LanguageModel, Any]:
    """Ours and that of `transformers`, of one folder with random weights."""
    model_type, sizes, more = (ADAPTED if via == "transformers" else MADE)[which]
    fields = sizes(width, depth) | more
    if via == "transformers":
        config = CONFIG_MAPPING[model_type](**{"vocab_size": D_VOCAB, **fields})
        torch.manual_seed(0)
        model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
        name = model_class.__name__
        getattr(transformers, name)(config).save_pretrained(folder)
    else:
        family = families()[model_type]
        cfg = family.config.from_hf({"model_type": model_type, **fields})
        save_hf(family.model(cfg).init_weights(0), folder)
        hf_model = family_of(cfg).hf_model(cfg)
        assert hf_model
        name = hf_model.model
    return pk.load_model(folder, device="cpu", via=via), getattr(transformers, name).from_pretrained(folder).eval()


def measure(which: str, texts: Texts, args: argparse.Namespace) -> str:
    """One line of the table."""
    with tempfile.TemporaryDirectory() as tmp:
        model, theirs = made(which, tmp, args.width, args.depth, args.via)
    reader, own = Theirs(which, theirs, texts), ours(which, model, texts)
    lengths = np.array([len(ids) for ids in texts])
    in_order, in_length = np.arange(len(texts)), np.argsort(lengths, kind="stable")
    own()  # warm
    ratios, error = [], 0.0
    for _ in range(args.rounds):
        seconds, x = timed(own)
        ordered, y = timed(lambda: reader(in_order))
        sorted_seconds, _ = timed(lambda: reader(in_length))
        ratios.append((ordered / seconds, sorted_seconds / seconds, lengths.sum() / seconds))
        worst = [(x[:, i] - y[:, i]).abs().max() / y[:, i].abs().max() for i in range(x.shape[1])]
        error = max(error, float(max(worst)))
    order, by_length, speed = (statistics.median(column) for column in zip(*ratios, strict=True))
    size = sum(p.numel() for p in model.parameters()) / 1e6
    return f"| {which} | {size:.0f}M | {error:.1e} | {speed:,.0f} | {order:.1f} | {by_length:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="sst2")
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder of GPT-2's tokenizer")
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--width", type=int, default=768, help="a multiple of 64")
    parser.add_argument("--depth", type=int, default=12, help="layers, an even number")
    parser.add_argument("--via", choices=("probekit", "transformers"), default="probekit")
    parser.add_argument("--families", help="names with commas; all of them without")
    args = parser.parse_args()
    texts = neighbours(sst2(args.dataset, args.tokenizer), args.texts, runs=10)
    texts = [[2 if i == 1 else i for i in ids] for ids in texts]  # 1 is RoBERTa's padding
    print("| family | weights | worst layer | tokens/s | x in order | x sorted |\n|---|---|---|---|---|---|")
    for which in (args.families or ",".join(ADAPTED if args.via == "transformers" else MADE)).split(","):
        print(measure(which, texts, args), flush=True)


if __name__ == "__main__":
    main()

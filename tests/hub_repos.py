"""What the loopback Hub serves: a tiny random GPT-2 and a tiny made-up SST-2, in the layout of the real ones."""

import io
import json
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import save
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

N_LAYER, N_HEAD, N_EMBD, N_CTX = 3, 4, 32, 64
END = "<|endoftext|>"

GOOD = ["a charming film", "warm and funny", "a delight", "moving and wise", "brilliant acting", "a joy to watch"]
BAD = ["a dull film", "cold and clumsy", "a mess", "boring and false", "wooden acting", "a chore to watch"]
START = ["", "it is ", "this is ", "on the whole , ", "the director made ", "here is ", "for two hours , "]
END_OF_TEXT = ["", ".", "from start to finish", "for everyone", "in every way .", "once again"]


@cache
def repos() -> dict[str, dict[str, bytes]]:
    """Everything that is served; see `hub_server.HubServer`."""
    return {"models/openai-community/gpt2": tiny_gpt2(), "datasets/stanfordnlp/sst2": tiny_sst2()}


def sentences(seed: int, n: int) -> list[tuple[str, int]]:
    """(sentence, label), distinct, each sentence ending in a blank as the real ones do."""
    everything = [
        (" ".join(f"{start}{core} {end}".split()) + " ", label)
        for start in START
        for label, cores in enumerate([BAD, GOOD])
        for core in cores
        for end in END_OF_TEXT
    ]
    order = np.random.default_rng(seed).permutation(len(everything))
    return [everything[i] for i in order[:n]]


def tiny_sst2(n: int = 400) -> dict[str, bytes]:
    rows = sentences(seed=0, n=n)
    a, b = n * 3 // 4, n * 9 // 10
    parts = {"train": rows[:a], "validation": rows[a:b], "test": [(text, -1) for text, _ in rows[b:]]}
    files = {f"data/{name}-00000-of-00001.parquet": _parquet(part) for name, part in parts.items()}
    splits = "".join(
        f"  - name: {name}\n    num_bytes: {sum(len(text) + 16 for text, _ in part)}\n    num_examples: {len(part)}\n"
        for name, part in parts.items()
    )
    data_files = "".join(f"  - split: {name}\n    path: data/{name}-*\n" for name in parts)
    card = f"""---
dataset_info:
  features:
  - name: idx
    dtype: int32
  - name: sentence
    dtype: string
  - name: label
    dtype:
      class_label:
        names:
          '0': negative
          '1': positive
  splits:
{splits}  download_size: {sum(map(len, files.values()))}
  dataset_size: {sum(len(text) + 16 for text, _ in rows)}
configs:
- config_name: default
  data_files:
{data_files}---
"""
    return {"README.md": card.encode(), **files}


def _parquet(rows: list[tuple[str, int]]) -> bytes:
    table = pa.table(
        {
            "idx": pa.array(range(len(rows)), pa.int32()),
            "sentence": pa.array([text for text, _ in rows], pa.string()),
            "label": pa.array([label for _, label in rows], pa.int64()),
        }
    )
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()


@cache
def byte_level_bpe(words: str = "") -> Tokenizer:
    """A small tokenizer of GPT-2's kind, with tokens for these words; as there, the end of text has the last id."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([text for text, _ in sentences(seed=0, n=400)] + [words] * 100, trainer)
    tokenizer.add_special_tokens([END])
    return tokenizer


def tiny_gpt2(n_layer: int = N_LAYER, words: str = "") -> dict[str, bytes]:
    tokenizer = byte_level_bpe(words)
    bpe = json.loads(tokenizer.to_str())["model"]
    vocab = {**bpe["vocab"], END: tokenizer.token_to_id(END)}
    merges = "\n".join(["#version: 0.2", *(" ".join(pair) for pair in bpe["merges"]), ""])
    return {
        "README.md": b"---\nlicense: mit\n---\n",
        "config.json": json.dumps(_config(len(vocab), n_layer), indent=2).encode(),
        "merges.txt": merges.encode(),
        "model.safetensors": save(tiny_weights(len(vocab), n_layer), metadata={"format": "pt"}),
        "pytorch_model.bin": b"never to be read",
        "tokenizer.json": tokenizer.to_str().encode(),
        "tokenizer_config.json": b'{"model_max_length": 64}',
        "vocab.json": json.dumps(vocab).encode(),
    }


def _config(n_vocab: int, n_layer: int) -> dict[str, object]:
    return {
        "activation_function": "gelu_new",
        "architectures": ["GPT2LMHeadModel"],
        "attn_pdrop": 0.1,
        "bos_token_id": n_vocab - 1,
        "embd_pdrop": 0.1,
        "eos_token_id": n_vocab - 1,
        "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-05,
        "model_type": "gpt2",
        "n_ctx": N_CTX,
        "n_embd": N_EMBD,
        "n_head": N_HEAD,
        "n_layer": n_layer,
        "n_positions": N_CTX,
        "resid_pdrop": 0.1,
        "summary_activation": None,
        "summary_first_dropout": 0.1,
        "summary_proj_to_labels": True,
        "summary_type": "cls_index",
        "summary_use_proj": True,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
        "vocab_size": n_vocab,
    }


def tiny_weights(n_vocab: int, n_layer: int = N_LAYER) -> dict[str, np.ndarray]:
    """As in the real file: no `transformer.` before the names, no head, and the causal masks as buffers."""
    random = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return (random.standard_normal(shape) * 0.1).astype(np.float32)

    def norm(name: str) -> dict[str, np.ndarray]:
        return {f"{name}.weight": 1 + normal(N_EMBD), f"{name}.bias": normal(N_EMBD)}

    weights = {"wte.weight": normal(n_vocab, N_EMBD), "wpe.weight": normal(N_CTX, N_EMBD), **norm("ln_f")}
    for i in range(n_layer):
        weights |= norm(f"h.{i}.ln_1") | norm(f"h.{i}.ln_2")
        weights[f"h.{i}.attn.bias"] = np.tril(np.ones((1, 1, N_CTX, N_CTX), np.float32))
        shapes = {"attn.c_attn": (1, 3), "attn.c_proj": (1, 1), "mlp.c_fc": (1, 4), "mlp.c_proj": (4, 1)}
        for name, (d_in, d_out) in shapes.items():
            weights[f"h.{i}.{name}.weight"] = normal(d_in * N_EMBD, d_out * N_EMBD)
            weights[f"h.{i}.{name}.bias"] = normal(d_out * N_EMBD)
    return weights

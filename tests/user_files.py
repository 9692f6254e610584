"""A tiny GPT-2 with a tokenizer of single bytes, and a small file of texts, as a user would have them on disk."""

import json
from pathlib import Path

from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from probekit.models.families.gpt2 import FAMILY, GPT2, GPT2Config

N_LAYERS = 3


def write_model(folder: Path, n_layers: int = N_LAYERS, **config: object) -> Path:
    """Write a random GPT-2 in Hugging Face format; `config` overrides fields of its config.json."""
    cfg = GPT2Config(d_model=16, n_heads=2, d_mlp=32, n_layers=n_layers, n_ctx=48, d_vocab=257, bos_token_id=256)
    weights = GPT2(cfg).init_weights(seed=0).state_dict()
    names = FAMILY.hf_names(cfg)
    folder.mkdir()
    tensors = {there.name: weights[ours].T if there.transposed else weights[ours] for ours, there in names.items()}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**cfg.to_hf(), **config}))
    vocab = {byte: i for i, byte in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab={**vocab, "<|endoftext|>": 256}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def write_texts(path: Path, n: int = 90) -> Path:
    """Write a CSV whose two classes differ in the last character."""
    rows = [f"text number {i} {'good' if i % 2 else 'bad'},{i % 2}" for i in range(n)]
    path.write_text("\n".join(["text,label", *rows]) + "\n")
    return path

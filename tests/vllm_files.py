"""What vLLM would extract of a table of texts: tokens and hidden states, by transformers."""

import csv
import io
from pathlib import Path
from typing import Any

import torch

import probekit as pk


def token_lists(model_folder: Path, table: Path) -> list[list[int]]:
    tokenizer = pk.load_model(model_folder).tokenizer
    assert tokenizer is not None
    texts = [row["text"] for row in csv.DictReader(io.StringIO(table.read_text()))]
    return [list(ids) for ids in tokenizer.encode_batch(texts)]


def run(hf: Any, ids: list[int]) -> tuple[list[int], torch.Tensor]:
    last: list[torch.Tensor] = []
    hook = hf.ln_f.register_forward_pre_hook(lambda module, args: last.append(args[0]))
    with torch.no_grad():
        hidden = hf(torch.tensor([ids]), output_hidden_states=True).hidden_states
    hook.remove()
    return ids, torch.stack([*hidden[:-1], last[0]], 2)[0]

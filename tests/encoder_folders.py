"""Folders of encoders as `transformers` writes them, with random weights, and comparison with it on the same files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers_twins import error

from probekit.models import load_model


def hf_folder(folder: Path, kind: Any, config: Any, old_fields: dict[str, Any] | None = None) -> Path:
    """What `kind(config).save_pretrained` writes, with weights so large that every term of the arithmetic shows.

    `old_fields` are entered in config.json; None removes a field.
    """
    torch.manual_seed(0)
    oracle = kind(config)
    with torch.no_grad():
        for p in oracle.parameters():
            p.add_(torch.randn_like(p) * 0.2)
    assert sum(p.numel() for p in oracle.parameters()) < 50_000
    oracle.save_pretrained(folder)
    return rewrite(folder, **(old_fields or {}))


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]] = dict, **fields: Any) -> Path:
    """The folder with `change(weights)` as weights, and other fields in its config.json; None takes one out."""
    weights = change(load_file(folder / "model.safetensors"))
    save_file({name: x.clone() for name, x in weights.items()}, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text()) | fields
    (folder / "config.json").write_text(json.dumps({key: x for key, x in config.items() if x is not None}))
    return folder


def load(folder: Path) -> Any:
    return load_model(folder, device="cpu")


def read_by(kind: Any, folder: Path) -> Any:
    """The folder in `transformers`, which computes patterns only step by step."""
    return kind.from_pretrained(folder, attn_implementation="eager").eval()


@torch.no_grad()
def assert_equal_to(oracle: Any, model: Any, length: int = 12) -> None:
    """Every layer, pattern and logit on two texts, the second padded on the right to the first's length."""
    pad = oracle.config.pad_token_id
    tokens = torch.randint(5, model.cfg.d_vocab, (2, length), generator=torch.Generator().manual_seed(1))
    mask = torch.ones(2, length, dtype=torch.bool)
    tokens[1, length // 2 :], mask[1, length // 2 :] = pad, False
    theirs = oracle(tokens, attention_mask=mask, output_hidden_states=True, output_attentions=True)
    output, cache = model.run_with_cache(tokens, attention_mask=mask, return_logits=False)
    for i in range(model.cfg.n_layers):
        assert error(cache["resid_pre", i][mask], theirs.hidden_states[i][mask]) <= 1e-5, i
        for b, real in enumerate(mask):
            ours, hf = (x[b][:, real][:, :, real] for x in (cache["attn_pattern", i], theirs.attentions[i]))
            assert error(ours, hf) <= 1e-5, i
    assert error(output[mask], theirs.hidden_states[-1][mask]) <= 1e-5
    if model.has_logits and hasattr(theirs, "logits"):
        assert error(model.logits(output)[mask], theirs.logits[mask]) <= 1e-5

"""Tiny random models of `transformers`, and ours with the same weights: a config.json's fields make both."""

import json
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from probekit.models.families import families
from probekit.models.family import Family
from probekit.models.weights import our_part


def error(ours: Tensor, theirs: Tensor) -> float:
    """Largest difference, relative to the largest value of the reference."""
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


def hf_config(hf: dict[str, Any], **options: Any) -> Any:
    fields = json.loads(json.dumps({name: value for name, value in hf.items() if name != "model_type"}))
    config: Any = CONFIG_MAPPING[hf["model_type"]]
    return config(**fields, attn_implementation="eager", **options)


def our_weights(family: Family, cfg: Any, tensors: dict[str, Any]) -> dict[str, Tensor]:
    """Tensors of transformers' model by our names."""
    named = {family.hf_renamed(name): x for name, x in tensors.items()}
    return {ours: our_part(named[at.name], at) for ours, at in family.hf_names(cfg, named).items() if at.name in named}


def make_twins(hf: dict[str, Any]) -> tuple[Any, Any]:
    """A random model of transformers, and ours with its config and weights."""
    family = families()[hf["model_type"]]
    found = family.hf_model(family.config.from_hf(hf))
    assert found is not None
    torch.manual_seed(0)
    config = hf_config(hf, **found.options)
    oracle = getattr(transformers, found.model)(config).eval()
    with torch.no_grad():  # larger than at initialisation, so that every term of the arithmetic shows
        buffers = (x for name, x in oracle.named_buffers() if name in oracle.state_dict())  # those of a file
        for x in (*oracle.parameters(), *buffers):
            x.add_(torch.randn_like(x) * 0.2)
    assert sum(p.numel() for p in oracle.parameters()) < 100_000
    model = family.model(family.config.from_hf(config.to_dict())).eval()
    model.load_state_dict(our_weights(family, model.cfg, oracle.state_dict()))
    return oracle, model


_MADE: dict[str, tuple[Any, Any]] = {}


def twins(hf: dict[str, Any]) -> tuple[Any, Any]:
    """`make_twins`, once for each config; no test changes them."""
    key = json.dumps(hf, sort_keys=True)
    if key not in _MADE:
        _MADE[key] = make_twins(hf)
    return _MADE[key]


def tokens_for(model: Any, batch: int = 3, length: int = 9, seed: int = 1) -> Tensor:
    """Random ids, without 0: the padding of transformers' configs, whose row gets no gradient there."""
    return torch.randint(1, model.cfg.d_vocab, (batch, length), generator=torch.Generator().manual_seed(seed))


def logits_of(out: Any) -> Tensor:
    return out.prediction_logits if hasattr(out, "prediction_logits") else out.logits

"""Tiny Marian models of `transformers` with random weights, and our encoder-decoder with the same weights."""

import torch
from torch import Tensor
from transformers import MarianConfig, MarianMTModel

from probekit.models.families.transformer import FAMILY, Transformer, TransformerConfig

IDS = {
    "pad_token_id": 0,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
    "bos_token_id": None,
    "forced_eos_token_id": 1,
}
SHAPES = [
    {"d_model": 32, "encoder_attention_heads": 4, "decoder_attention_heads": 2, "encoder_ffn_dim": 40,
     "decoder_ffn_dim": 48, "encoder_layers": 3, "decoder_layers": 2, "vocab_size": 31, "max_position_embeddings": 24,
     "activation_function": "swish", "scale_embedding": True},
    {"d_model": 24, "encoder_attention_heads": 3, "decoder_attention_heads": 4, "encoder_ffn_dim": 20,
     "decoder_ffn_dim": 30, "encoder_layers": 1, "decoder_layers": 3, "vocab_size": 17, "max_position_embeddings": 16,
     "activation_function": "relu", "scale_embedding": False},
    {"d_model": 16, "encoder_attention_heads": 1, "decoder_attention_heads": 8, "encoder_ffn_dim": 64,
     "decoder_ffn_dim": 12, "encoder_layers": 2, "decoder_layers": 1, "vocab_size": 23, "max_position_embeddings": 12,
     "activation_function": "gelu", "scale_embedding": True},
]  # fmt: skip


def oracle_for(shape: dict, tied: bool = True, learned: bool = False, seed: int = 0) -> MarianMTModel:
    torch.manual_seed(seed)
    config = MarianConfig(**shape, **IDS, tie_word_embeddings=tied, share_encoder_decoder_embeddings=tied)
    config._attn_implementation = "eager"
    oracle = MarianMTModel(config).eval()
    with torch.no_grad():  # larger than at initialisation, so that every term of the arithmetic shows
        for name, p in oracle.named_parameters():
            if learned or "embed_positions" not in name:
                p.add_(torch.randn_like(p) * 0.2)
        oracle.final_logits_bias.copy_(torch.randn_like(oracle.final_logits_bias))
    assert sum(p.numel() for p in oracle.parameters()) < 100_000
    return oracle


def from_hf(oracle: MarianMTModel, learned: bool = False) -> Transformer:
    weights = oracle.state_dict()
    names = [name for name in weights if learned or "embed_positions" not in name]
    cfg = FAMILY.hf_parts(TransformerConfig.from_hf(oracle.config.to_dict()), names)
    model = Transformer(cfg)
    model.load_state_dict({ours: weights[theirs.name] for ours, theirs in FAMILY.hf_names(cfg).items()})
    return model.eval()


def ids(model: Transformer, batch: int = 3, length: int = 9, seed: int = 1) -> Tensor:
    return torch.randint(model.cfg.d_vocab, (batch, length), generator=torch.Generator().manual_seed(seed))

"""A transformer language model in 60 lines, all from the leaves of `probekit.models.layers`; trained, then probed.

    python experiments/transformer_lm.py              # the world `brackets`: about half a minute on one core
    python experiments/transformer_lm.py dialogue

Pre-norm blocks (RMSNorm, Zhang and Sennrich 2019) of causal attention with rotary positions (Su et al. 2021, the
interleaved pairing of the paper) and SwiGLU (Shazeer 2020). Because its points have the usual names, `extract` and
`train_probes` work on it as on any model of the package. It prints what the model has learned, and the probe's accuracy
by layer.

Axes: B batch, L query position, M key position, D d_model, H heads, K d_head.
"""

import argparse
from dataclasses import dataclass, replace
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

import probekit as pk
from probekit.evaluation import ProbeResults
from probekit.hooks import HookPoint
from probekit.machine.progress import progress_bar
from probekit.models.base import LanguageModel, stopped
from probekit.models.examples import Example
from probekit.models.layers import (
    Embedding,
    Linear,
    RMSNorm,
    SwiGLU,
    attention,
    causal_mask,
    init_embedding,
    init_linear,
)
from probekit.models.positional import Rotary, rotate_interleaved
from probekit.models.training import train
from probekit.worlds import world
from probekit.worlds.definition import World, tokenizer_of
from probekit.worlds.train import examine


@dataclass(frozen=True)
class LMConfig:
    d_vocab: int
    d_model: int = 64
    n_heads: int = 4
    n_layers: int = 3
    n_ctx: int = 64

    @property
    def d_head(self) -> int:
        return self.d_model // self.n_heads

    @property
    def d_mlp(self) -> int:
        return max(64, 64 * round(8 * self.d_model / (3 * 64)))


class Attention(nn.Module):
    def __init__(self, cfg: LMConfig):
        super().__init__()
        self.n_heads = cfg.n_heads
        self.q, self.k, self.v, self.out = (Linear(cfg.d_model, cfg.d_model, bias=False) for _ in range(4))
        self.hook_z = HookPoint("B L H K")

    def forward(self, x_BLD: Tensor, rotation: tuple[Tensor, Tensor], mask_BLM: Tensor) -> Tensor:
        q, k, v = (rearrange(part(x_BLD), "b l (h k) -> b l h k", h=self.n_heads) for part in (self.q, self.k, self.v))
        q, k = rotate_interleaved(q, rotation), rotate_interleaved(k, rotation)
        return self.out(self.hook_z(attention(q, k, v, mask_BLM)).flatten(2))


class Block(nn.Module):
    def __init__(self, cfg: LMConfig):
        super().__init__()
        self.ln1, self.ln2 = (RMSNorm(cfg.d_model, eps=1e-6) for _ in range(2))
        self.attn, self.mlp = Attention(cfg), SwiGLU(cfg.d_model, cfg.d_mlp)
        self.hook_resid_pre, self.hook_resid_mid, self.hook_resid_post = (HookPoint("B L D") for _ in range(3))
        self.hook_attn_out, self.hook_mlp_out = (HookPoint("B L D") for _ in range(2))

    def forward(self, resid_BLD: Tensor, rotation: tuple[Tensor, Tensor], mask_BLM: Tensor) -> Tensor:
        resid_pre = self.hook_resid_pre(resid_BLD)
        attn_out = self.hook_attn_out(self.attn(self.ln1(resid_pre), rotation, mask_BLM))
        resid_mid = self.hook_resid_mid(resid_pre + attn_out)
        mlp_out = self.hook_mlp_out(self.mlp(self.ln2(resid_mid)))
        return self.hook_resid_post(resid_mid + mlp_out)


class TransformerLM(LanguageModel):
    def __init__(self, cfg: LMConfig):
        super().__init__()
        self.cfg = cfg
        self.embed, self.unembed = Embedding(cfg.d_vocab, cfg.d_model), Linear(cfg.d_model, cfg.d_vocab, bias=False)
        self.rotary = Rotary(cfg.n_ctx, cfg.d_head)
        self.hook_embed = HookPoint("B L D")
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.n_layers))
        self.ln_final = RMSNorm(cfg.d_model, eps=1e-6)

    def forward(
        self,
        tokens: Tensor,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        stop_at_layer: int | None = None,
        return_logits: bool = True,
    ) -> Tensor:
        tokens = self.check_tokens(tokens, position_ids, attention_mask)
        stop = self.check_stop(stop_at_layer, self.cfg.n_layers)
        mask, position_ids = self.mask_and_positions(tokens, attention_mask, position_ids)
        mask_BLM = mask if isinstance(mask, Tensor) else causal_mask(torch.ones_like(tokens))
        resid_BLD, rotation = self.hook_embed(self.embed(tokens)), self.rotary(position_ids)
        for block in self.blocks[:stop]:
            resid_BLD = block(resid_BLD, rotation, mask_BLM)
        if stop_at_layer is not None:
            return stopped(self.blocks, resid_BLD, stop)
        normalized_BLD = self.ln_final(resid_BLD)
        return self.unembed(normalized_BLD) if return_logits else normalized_BLD

    def drawn(self, name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
        return (init_embedding if name.startswith("embed") else init_linear)(shape, generator)


def trained(one: World, cfg: LMConfig) -> TransformerLM:
    """The model after the training that the world's settings describe."""
    settings = one.settings
    model = TransformerLM(cfg).init_weights(settings.seed)
    model.name, model.tokenizer = "transformer-lm", tokenizer_of(one)

    def draw(step: int) -> list[Example]:
        return one.examples("train", settings.batch_size, [settings.seed, step])

    with progress_bar("train", "steps") as bar:
        train(model, draw, settings, on_progress=bar.set)
    return model.eval()


def probed(model: TransformerLM, task: str, **options: Any) -> ProbeResults:
    """A logistic probe at the input of every block, and at the output of the last."""
    acts = pk.extract(model, pk.load_task(task, **options), points="resid_pre")
    return pk.train_probes(acts, controls=0, codelength=False)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("world", nargs="?", default="brackets", choices=("brackets", "dialogue", "counting"))
    parser.add_argument("--steps", type=int, help="of training; default: the world's")
    parser.add_argument("--limit", type=int, help="texts of each split; default: all")
    args = parser.parse_args(arguments)
    one = world(args.world)
    if args.steps is not None:
        warm_up = min(args.steps, one.settings.warm_up_steps)
        one = replace(one, settings=replace(one.settings, steps=args.steps, warm_up_steps=warm_up))
    model = trained(one, LMConfig(len(one.vocabulary)))
    print(f"exact on held-out examples: {examine(model, one)['exact']:.1%}")
    for layer in probed(model, one.task, limit=args.limit).layers:
        print(f"{layer.point}.{layer.layer}: test accuracy {layer.metrics['test']['accuracy']:.3f}")


if __name__ == "__main__":
    main()

"""How far the hand-written GPT-2 is from `transformers`: python benchmarks/exactness.py

Random weights in the shape of GPT-2 small, float32; the largest difference over the largest value of the reference.
"""

import torch
from torch import Tensor
from transformers import GPT2Config as HfConfig
from transformers import GPT2LMHeadModel

from probekit.models.gpt2 import GPT2, GPT2Config, hf_names


def twins() -> tuple[GPT2LMHeadModel, GPT2]:
    torch.manual_seed(0)
    config = HfConfig()
    config._attn_implementation = "eager"
    oracle = GPT2LMHeadModel(config).eval()
    cfg = GPT2Config.from_hf(config.to_dict())
    weights = oracle.state_dict()
    model = GPT2(cfg)
    for ours, (theirs, transposed) in hf_names(cfg).items():
        model.get_parameter(ours).data = weights[theirs].T if transposed else weights[theirs]
    return oracle, model.eval()


def error(ours: Tensor, theirs: Tensor) -> float:
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


@torch.no_grad()
def main() -> None:
    oracle, model = twins()
    layers = range(model.cfg.n_layers)
    tokens = torch.randint(model.cfg.d_vocab, (4, 64))
    theirs = oracle(tokens, output_hidden_states=True, output_attentions=True)
    logits, cache = model.run_with_cache(tokens)
    print(f"logits            {error(logits, theirs.logits):.1e}")
    print(f"resid_pre         {max(error(cache['resid_pre', i], theirs.hidden_states[i]) for i in layers):.1e}")
    print(f"ln_final          {error(cache['ln_final'], theirs.hidden_states[-1]):.1e}")
    print(f"attn_pattern      {max(error(cache['attn_pattern', i], theirs.attentions[i]) for i in layers):.1e}")
    for side, pad in (("left", (17, 0)), ("right", (0, 17))):
        mask = torch.nn.functional.pad(torch.ones_like(tokens), pad)
        padded = model(torch.nn.functional.pad(tokens, pad), attention_mask=mask, stop_at_layer=model.cfg.n_layers)
        real = padded[:, pad[0] : pad[0] + tokens.shape[1]]
        print(f"padded, {side:<10}{error(real, cache['resid_post', model.cfg.n_layers - 1]):.1e}")


if __name__ == "__main__":
    main()

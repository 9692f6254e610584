"""Train a TopK sparse autoencoder (Gao et al. 2024, arXiv 2406.04093) on a model's activations, in SAELens's files.

python experiments/train_sae.py MODEL TEXT.txt OUT --place resid_post.2 --latents 1024 --k 16
"""

import json
from pathlib import Path

import torch
import typer
from safetensors.torch import save_file
from torch.nn.functional import normalize

import probekit as pk
from probekit.points import Place


def main(
    model: str, text: Path, out: Path, place: str = "resid_post.2", latents: int = 1024, k: int = 16, steps: int = 2000
) -> None:
    """Train on every token of the text; the learning rate decays over the last fifth of the steps."""
    point, layer = Place.of(place)
    assert layer is not None, "name a layer: resid_post.2"
    paragraphs = [line for line in text.read_text(encoding="utf-8").split("\n") if line.strip()]
    loaded = pk.load_model(model)
    rows = pk.extract(loaded, paragraphs, points=point, layers=layer, position="all")[point, layer].float()
    torch.manual_seed(0)
    b_dec = rows.mean(0).requires_grad_()
    W_dec = normalize(torch.randn(latents, rows.shape[1])).requires_grad_()
    W_enc, b_enc = W_dec.detach().T.clone().requires_grad_(), torch.zeros(latents, requires_grad=True)
    optimizer = torch.optim.Adam([W_enc, W_dec, b_enc, b_dec], 1e-3)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, 5 * (1 - step / steps)))
    found = loss = torch.zeros(1, 1)
    for _ in range(steps):
        x = rows[torch.randint(len(rows), (2048,))]
        values, chosen = ((x - b_dec) @ W_enc + b_enc).topk(k)
        found = torch.zeros(len(x), latents).scatter(1, chosen, values.relu())
        loss = (found @ W_dec + b_dec - x).square().sum() / (x - rows.mean(0)).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rate.step()
        with torch.no_grad():
            W_dec.copy_(normalize(W_dec))
    out.mkdir(parents=True, exist_ok=True)
    weights = {"W_enc": W_enc, "b_enc": b_enc, "W_dec": W_dec, "b_dec": b_dec}
    save_file({name: x.detach().contiguous() for name, x in weights.items()}, out / "sae_weights.safetensors")
    about = {"hook_name": f"blocks.{layer}.hook_{point}", "model_name": loaded.name}
    sizes = {"architecture": "topk", "d_in": rows.shape[1], "d_sae": latents, "k": k}
    (out / "cfg.json").write_text(json.dumps({**sizes, "apply_b_dec_to_input": True, "metadata": about}))
    print(f"{out}: variance not explained {loss.item():.3f}, {int((found != 0).any(0).sum())} latents alive in a batch")


if __name__ == "__main__":
    typer.run(main)

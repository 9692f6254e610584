"""Latents of sparse autoencoders: how large, how fast, and k-sparse probes of them next to a probe of the activations.

    python benchmarks/latents.py wide [--rows 100000]      time and peak of memory of k-sparse on 65,536 latents
    python benchmarks/latents.py tasks MODEL SAE CSV...    tasks of sae-probes (columns prompt, target): k by validation

The autoencoder of `wide` has random weights, and keeps 32 of its latents for each row of 768 numbers. Time is that of
the clock; encoding is one matrix product for each block of rows. The autoencoder of `tasks` is that of
`experiments/train_sae.py`.
"""

import resource
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import typer
from torch.nn.functional import normalize

import probekit as pk
from probekit.activations.activations import ActivationSet
from probekit.activations.latents import Latents
from probekit.evaluation import ProbeCurves
from probekit.evaluation.results.by_k import chosen_k, curves_by_k
from probekit.latents import Sae
from probekit.latents.config import SaeConfig
from probekit.points import Place

WIDTH, LATENTS, ALIVE = 768, 65_536, 32
ROWS = 1_500  # of a task, drawn
KS = [2**i for i in range(10)]
app = typer.Typer(add_completion=False)


def peak() -> str:
    """The most memory that this process had."""
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB"


@app.command()
def wide(rows: int = 100_000) -> None:
    """k-sparse with nine values of C and three control tasks."""
    draw = np.random.default_rng(0)
    labels, splits = np.arange(rows) % 2, draw.choice(["train", "validation", "test"], rows, p=[0.6, 0.2, 0.2])
    torch.manual_seed(0)
    x = torch.randn(rows, WIDTH)
    x[:, 0] += torch.from_numpy(labels)
    W = normalize(torch.randn(LATENTS, WIDTH))
    zeros = {"b_enc": torch.zeros(LATENTS), "b_dec": torch.zeros(WIDTH)}
    cfg = SaeConfig("topk", WIDTH, LATENTS, WIDTH, k=ALIVE, place=Place("resid_post", 0))
    sae = Sae(cfg, {"W_enc": W.T.contiguous(), "W_dec": W, **zeros}, "random")
    task = pk.Task("planted", [[i] for i in range(rows)], {"label": labels}, splits=splits)
    latents = Latents(ActivationSet({Place("resid_post", 0): x}, task), [sae])
    print(f"before: {peak()}")
    start = time.perf_counter()
    matrix = latents.sparse(Place("latents", 0))
    assert matrix is not None
    print(f"encode {rows:,} rows: {time.perf_counter() - start:.0f} s, {matrix.nnz:,} latents are not 0, {peak()}")
    start = time.perf_counter()
    pk.train_probes(latents, probe="k-sparse", progress=False)
    print(f"k-sparse, with all checks and the probe of the activations: {time.perf_counter() - start:.0f} s, {peak()}")


@app.command()
def tasks(model: str, sae: str, files: list[Path]) -> None:
    """For each task, the k that validation chooses, and the paired difference."""
    loaded, encoder = pk.load_model(model), pk.load_sae(sae)
    assert encoder.cfg.place is not None
    point, layer = encoder.cfg.place
    assert layer is not None
    print(
        "| task, rows | metric | best latent alone | k | k-sparse | activations | difference, 95% | bag of words | "
        "explained |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for file in files:
        table = pd.read_csv(file).drop_duplicates("prompt")
        table = table.sample(min(ROWS, len(table)), random_state=0)
        task = pk.load_task(list(zip(table["prompt"].astype(str), table["target"].astype(str), strict=True)))
        acts = pk.extract(loaded, task, points=point, layers=layer, progress=False)
        curves = pk.train_probes(
            acts.encode(encoder, force=True), probes=[f"k-sparse-{k}" for k in KS], metric="auroc", progress=False
        )
        assert isinstance(curves, ProbeCurves)
        by_k = curves_by_k([*curves.values()])
        k = chosen_k(by_k)
        assert k is not None
        chosen = by_k[k]
        paired, alone = chosen.meta["pooled"]["activations"], chosen.meta["best_latents"]["latents"][0]
        assert chosen.quoted is not None
        low, high = paired["interval"]
        words = next(one for one in chosen.baselines if one.name == "bag-of-words").metrics["test"]["auroc"]
        explained = chosen.meta["activations"]["latents"][chosen.layers[0].place]["explained"]
        print(
            f"| {file.stem}, {len(table):,} | AUROC | {alone['latent']}: {alone['score']:.3f} | {k} | "
            f"{chosen.quoted.value:.3f} | {paired['value']:.3f} | {paired['over']:+.3f} [{low:+.3f}, {high:+.3f}] | "
            f"{words:.3f} | {explained:.1%} |",
            flush=True,
        )


if __name__ == "__main__":
    app()

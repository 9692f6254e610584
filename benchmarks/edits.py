"""Extraction under edits and plain extraction, in turn: python benchmarks/edits.py [--texts 400] [--rounds 5]

A model in the shape of GPT-2 small with random weights reads random ids whose lengths are those of short phrases; half
of the texts begin alike, so that prefixes are shared. Each kind of edit is done at the input of every layer. CPU
seconds are of this process and its threads; ratios are taken round by round, then their median. Edits that depend on
the text share nothing, and are compared with a plain extraction that shares nothing either.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import probekit as pk
from probekit.interventions import Edit, add, affine, project_out, replace, swap
from probekit.models.families.gpt2 import GPT2, GPT2Config


def texts(n: int, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    begin = rng.integers(0, 50257, 8)
    made = [rng.integers(0, 50257, size=rng.integers(4, 20)) for _ in range(n)]
    return [[*begin, *ids] if i % 2 else ids.tolist() for i, ids in enumerate(made)]


def edits(n: int, width: int) -> dict[str, tuple[Edit, dict[str, Any]]]:
    rng = torch.Generator().manual_seed(0)
    direction, rows = torch.randn(width, generator=rng), torch.randn(n, width, generator=rng)
    matrix = torch.eye(width) - torch.outer(direction, direction) / direction.square().sum()
    alone = {"share": False}
    return {
        "add": (add(direction, 0.1), {}),
        "project out a direction": (project_out(direction), {}),
        "project out 16 dimensions": (project_out(torch.randn(width, 16, generator=rng)), {}),
        "affine map (LEACE)": (affine(matrix, torch.zeros(width)), {}),
        "swap a coordinate, one for each text": (swap(direction, rows), alone),
        "replace at the read token, one for each text": (replace(rows), {"edit_positions": "read", **alone}),
    }


def seconds(run: Callable[[], Any]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=12)
    args = parser.parse_args()
    model = GPT2(GPT2Config(n_layers=args.layers)).init_weights(0).eval()
    ids, width = texts(args.texts), model.cfg.d_model
    kinds = edits(args.texts, width)
    ratios: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(args.rounds):
        plain = {share: seconds(lambda share=share: pk.extract(model, ids, share=share)) for share in (True, False)}
        for name, (edit, how) in kinds.items():
            every = {("resid_pre", layer): edit for layer in range(args.layers)}
            options: dict[str, Any] = {"edit_positions": "all", "share": True, **how}
            took = seconds(lambda every=every, options=options: pk.extract(model, ids, edits=every, **options))
            ratios[name].append(took / plain[options["share"]])
    print("| edit at every layer | CPU time over plain extraction's |\n|---|---|")
    for name, found in ratios.items():
        print(f"| {name} | {statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f}) |")


if __name__ == "__main__":
    main()

"""Activation patching of every layer and position, compared with full forwards, TransformerLens and nnsight.

    python benchmarks/causal.py --python-peers PEERS/bin/python

PEERS is an environment with torch, transformers, transformer_lens and nnsight; without it probekit is compared with its
own full forwards. A model in the shape of GPT-2 small with random weights reads pairs of random texts that differ from
the first token on, so that no cell can be left out. All compute the mean recovery of the logit difference at the last
token, at resid_pre. "full forwards" are probekit's: one for each cell, all pairs in one batch, and logits of the answer
token alone. TransformerLens's is `get_act_patch_resid_pre`, which calls `generic_activation_patch`.

Every contestant is a process of its own. They take turns, round after round; ratios are taken round by
round, of CPU seconds, then their median. The error is the largest difference from the full forwards, of recoveries.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

from workers import THREADS, Worker, serve

SHAPES = {"gpt2": {}, "tiny": {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 500}}
PEERS = {"transformerlens": "transformer_lens", "nnsight": "nnsight"}
Data = dict[str, Any]


def recovered(patched: Any, clean: Any, corrupted: Any) -> list[list[float]]:
    """The recovery in each cell, from mean logit differences: layers, then positions."""
    return ((patched - corrupted) / (clean - corrupted)).tolist()


def probekit_grid(folder: Path, data: Data) -> Callable[[], list[list[float]]]:
    """`patch_grid`: one pass over the branches, and the attribution that comes with it."""
    import torch

    import probekit as pk
    from probekit.causal.behaviour.pairs import MinimalPairs
    from probekit.causal.patching.patching import patch_grid

    n, last = len(data["clean"]), len(data["clean"][0]) - 1
    own, other, at = torch.tensor(data["own"]), torch.tensor(data["other"]), torch.full((n,), last)
    pairs = MinimalPairs(data["clean"], data["corrupted"], own, other, at, at, [f"pair {i}" for i in range(n)])
    model = pk.load_model(str(folder))
    return lambda: patch_grid(model, pairs, placebos=0).recovery.tolist()


def full_forwards(folder: Path, data: Data) -> Callable[[], list[list[float]]]:
    """One forward of all corrupted texts for each cell."""
    import torch

    import probekit as pk

    model: Any = pk.load_model(str(folder))
    clean, corrupted, own, other = (torch.tensor(data[x]) for x in ("clean", "corrupted", "own", "other"))

    def difference(tokens: torch.Tensor, hooks: Any = ()) -> torch.Tensor:
        hidden = model.run_with_hooks(tokens, return_logits=False, fwd_hooks=list(hooks))[:, -1:]
        logits = model.head(hidden)[:, 0]
        return (logits.gather(1, own[:, None]) - logits.gather(1, other[:, None])).mean()

    @torch.no_grad()
    def grid() -> list[list[float]]:
        _, cache = model.run_with_cache(clean, points="resid_pre", return_logits=False)
        patched = torch.zeros(model.n_layers, clean.shape[1])
        for layer in range(model.n_layers):
            for place in range(clean.shape[1]):

                def patch(x: torch.Tensor, _: Any, value: Any = cache["resid_pre", layer], at: int = place) -> Any:
                    x = x.clone()
                    x[:, at] = value[:, at]
                    return x

                patched[layer, place] = difference(corrupted, [(("resid_pre", layer), patch)])
        return recovered(patched, difference(clean), difference(corrupted))

    return grid


def transformerlens(folder: Path, data: Data) -> Callable[[], list[list[float]]]:
    """TransformerLens's bridge around the model of transformers, weights as they are."""
    import torch
    import transformer_lens.patching as patching  # pyright: ignore[reportMissingImports]
    from transformer_lens.model_bridge import TransformerBridge  # pyright: ignore[reportMissingImports]
    from transformers import AutoModelForCausalLM

    torch.set_grad_enabled(False)
    hf = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    model: Any = TransformerBridge.boot_transformers(str(folder), hf_model=hf, device="cpu")
    clean, corrupted, own, other = (torch.tensor(data[x]) for x in ("clean", "corrupted", "own", "other"))

    def metric(logits: torch.Tensor) -> torch.Tensor:
        return (logits[:, -1].gather(1, own[:, None]) - logits[:, -1].gather(1, other[:, None])).mean()

    def grid() -> list[list[float]]:
        clean_logits, cache = model.run_with_cache(clean, names_filter=lambda name: name.endswith("hook_resid_pre"))
        patched = patching.get_act_patch_resid_pre(model, corrupted, cache, metric)
        return recovered(patched, metric(clean_logits), metric(model(corrupted)))

    return grid


def nnsight(folder: Path, data: Data) -> Callable[[], list[list[float]]]:
    """nnsight around the model of transformers, a trace for each cell."""
    import nnsight as nn  # pyright: ignore[reportMissingImports]
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_grad_enabled(False)
    model = nn.NNsight(AutoModelForCausalLM.from_pretrained(folder).eval())
    clean, corrupted, own, other = (torch.tensor(data[x]) for x in ("clean", "corrupted", "own", "other"))

    def metric(logits: torch.Tensor) -> torch.Tensor:
        return (logits[:, -1].gather(1, own[:, None]) - logits[:, -1].gather(1, other[:, None])).mean()

    def grid() -> list[list[float]]:
        blocks = model.transformer.h
        with model.trace(clean):
            values = nn.save([block.input for block in blocks])
            clean_logits = nn.save(model.output.logits)
        with model.trace(corrupted):
            corrupted_logits = nn.save(model.output.logits)
        patched = torch.zeros(len(blocks), clean.shape[1])
        for layer in range(len(blocks)):
            for place in range(clean.shape[1]):
                with model.trace(corrupted):
                    x = blocks[layer].input.clone()
                    x[:, place] = values[layer][:, place]
                    blocks[layer].input = x
                    logits = nn.save(model.output.logits)
                patched[layer, place] = metric(logits)
        return recovered(patched, metric(clean_logits), metric(corrupted_logits))

    return grid


CONTESTANTS = {
    "full forwards": full_forwards,
    "probekit": probekit_grid,
    "transformerlens": transformerlens,
    "nnsight": nnsight,
}


def work(name: str, folder: str, data: str, threads: str) -> None:
    """Be a worker: each request is a run."""
    import torch

    torch.set_num_threads(int(threads))
    grid = CONTESTANTS[name](Path(folder), json.loads(Path(data).read_text()))

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        wall, cpu = time.perf_counter(), time.process_time()
        found = grid()
        times = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        return {**times, "grid": found, "version": version(PEERS[name]) if name in PEERS else ""}

    serve(answer)


def make(folder: Path, args: argparse.Namespace) -> None:
    """A model folder, and the pairs."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    hf = GPT2LMHeadModel(GPT2Config(**SHAPES[args.shape], bos_token_id=0, eos_token_id=0))
    hf.save_pretrained(folder)
    clean, corrupted = torch.randint(0, 499, (2, args.pairs, args.tokens))
    corrupted += clean == corrupted
    own, other = torch.randint(0, 250, (args.pairs,)), torch.randint(250, 500, (args.pairs,))
    data = {"clean": clean, "corrupted": corrupted, "own": own, "other": other}
    (folder / "pairs.json").write_text(json.dumps({name: x.tolist() for name, x in data.items()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="gpt2")
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--python-peers", help="Python of an environment with TransformerLens and nnsight")
    args = parser.parse_args()
    names = [name for name in CONTESTANTS if name not in PEERS or args.python_peers]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        make(folder, args)
        workers = {}
        for name in names:
            python = args.python_peers if name in PEERS else sys.executable
            data = str(folder / "pairs.json")
            workers[name] = Worker(__file__, "--work", name, str(folder), data, str(args.threads), python=python)
            stack.callback(workers[name].close)
        rounds: list[dict[str, dict[str, Any]]] = [{} for _ in range(args.rounds)]
        for each in rounds:
            for name, worker in workers.items():
                each[name] = worker.ask()
                print(f"{name}: {each[name]['cpu']:.1f} s", file=sys.stderr, flush=True)
    report(rounds)


def report(rounds: list[dict[str, dict[str, Any]]]) -> None:
    """A line for each contestant."""
    import numpy as np

    expected = np.array(rounds[0]["full forwards"]["grid"])
    print("| | CPU seconds | x full forwards | x probekit | largest difference |\n|---|---|---|---|---|")
    for name in rounds[0]:
        cpu = statistics.median(each[name]["cpu"] for each in rounds)
        ratios = [
            statistics.median(each[name]["cpu"] / each[other]["cpu"] for each in rounds)
            for other in ("full forwards", "probekit")
        ]
        error = np.abs(np.array(rounds[0][name]["grid"]) - expected).max()
        label = f"{name} {rounds[0][name]['version']}".strip()
        print(f"| {label} | {cpu:.1f} | {ratios[0]:.2f} | {ratios[1]:.2f} | {error:.0e} |")


if __name__ == "__main__":
    work(*sys.argv[2:]) if sys.argv[1:2] == ["--work"] else main()

"""Where the seconds of one extraction go, by part: python benchmarks/extract_profile.py --help

    python benchmarks/extract_profile.py --dataset data/sst2 --tokenizer TOKENIZER --texts 300
    python benchmarks/extract_profile.py --shape llama-8x768 --length 2048 --texts 3

The residual stream before and after every block at the last token, into memory, in CPU seconds of one thread. Without
`--length` the texts are SST-2's validation sentences, which share next to nothing; with it they are random ids. The
profiler of Python charges each function with its own time and that of the compiled functions that it calls, so that the
parts sum to the whole; what is in no part is the rest. The whole is also run without the profiler. "Of the limit": the
FLOPs of the linear layers over their seconds, over the fastest large product of this process, before or after.
"""

import argparse
import cProfile
import pstats
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from contestants import Limit, Probekit
from extract import MATRICES, long_texts, make_model
from texts import sst2

from probekit.models import kernels, layers, positional
from probekit.models.families import gpt2, llama

PRODUCTS = "linear products"
FUNCTIONS: dict[str, list[Any]] = {
    PRODUCTS: [kernels.linear, kernels.gelu_linear, kernels._widened, layers.Linear.forward],
    "attention": [layers.attention, layers.attend, F.scaled_dot_product_attention],
    "norms": [layers.LayerNorm.forward, layers.RMSNorm.forward, F.layer_norm],
    "activation functions": [kernels._tanh_gelu_, layers.Linear.activated, layers.SwiGLU.forward, F.gelu, F.silu],
    "rotations": [positional._rotated, positional.rotate_half],
    "residual sums": [gpt2.Block.forward, llama.Block.forward],
}
FILES = {
    "torch/_ops.py": PRODUCTS,  # calls of oneDNN's operators
    "run/gather.py": "gather the rows that are read",
    "run/loop.py": "copy and check them",
    "run/forward.py": "tokens, positions, masks",
    "plan/packing.py": "tokens, positions, masks",
    "concurrent/futures": "hash the weights",
    "/threading.py": "hash the weights",  # it waits for them
    "models/base.py": "hash the weights",
}


def part_of(function: tuple[str, int, str]) -> str:
    """The part of a Python function: by its place in the code, or else by its file."""
    for part, functions in FUNCTIONS.items():
        if any((code.co_filename, code.co_firstlineno) == function[:2] for code in map(code_of, functions)):
            return part
    return next((part for name, part in FILES.items() if name in function[0]), "rest")


def code_of(function: Any) -> Any:
    return getattr(function, "__code__", None) or compile("", "compiled", "exec")  # what torch has in C has no place


def by_part(profile: cProfile.Profile) -> dict[str, float]:
    """Seconds of each part; a compiled function's are those of the Python functions that called it."""
    seconds: dict[str, float] = defaultdict(float)
    stats: Any = pstats.Stats(profile)
    for function, (_, _, own, _, callers) in stats.stats.items():
        if function[0] == "~" and callers:
            for caller, (_, _, its, _) in callers.items():
                seconds[part_of(caller)] += its
        else:
            seconds[part_of(function)] += own
    return seconds


def linear_flops(family: str, n_layers: int, d_model: int, nodes: int) -> float:
    """Of all blocks for all nodes; the last computes keys and values alone, what few nodes are read not counted."""
    last = {"gpt2": 2, "llama": 2 / 3}[family]
    return 2 * (MATRICES[family] * (n_layers - 1) + last) * d_model**2 * nodes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", help="folder with SST-2 as TSV")
    parser.add_argument("--tokenizer", type=Path, help="folder with vocab.json and merges.txt")
    parser.add_argument("--shape", default="12x768", help="layers x width of a GPT-2, or llama-8x768")
    parser.add_argument("--length", type=int, help="of random texts, at most; the shortest has three quarters")
    parser.add_argument("--texts", type=int, default=300)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    family, _, sizes = args.shape.rpartition("-")
    family, (n_layers, d_model) = family or "gpt2", map(int, sizes.split("x"))
    if args.length:
        texts = long_texts(args.length, args.texts)
    else:
        texts = sst2(args.dataset, args.tokenizer, ["validation"])
        texts = [texts[i] for i in np.linspace(0, len(texts) - 1, args.texts).astype(int)]
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder, "model"), family, n_layers, d_model)
        ours = Probekit(Path(folder, "model"), dtype=args.dtype)
    with torch.inference_mode():
        key = "bf16" if args.dtype == "bfloat16" else "fp32"
        ours.run(texts[:2])
        limits = [float(Limit(Path()).run([]).sample([])[key])]
        start = time.process_time()
        nodes = ours.run(texts).computed
        bare = time.process_time() - start
        profile = cProfile.Profile(time.process_time)
        profile.enable()
        ours.run(texts)
        profile.disable()
        limits.append(float(Limit(Path()).run([]).sample([])[key]))
    seconds = by_part(profile)
    whole = sum(seconds.values())
    share = linear_flops(family, n_layers, d_model, nodes) / seconds[PRODUCTS] / 1e9 / max(limits)
    print(f"{args.shape}, {args.dtype}, {len(texts)} texts, {nodes:,} nodes; limit {max(limits):.0f} GFLOP/s")
    print("\n| | CPU s | share | of the limit |\n|---|---|---|---|")
    for part, its in sorted(seconds.items(), key=lambda item: (item[0] == "rest", -item[1])):
        print(f"| {part} | {its:.2f} | {its / whole:.1%} | {f'{share:.0%}' if part == PRODUCTS else ''} |")
    print(f"| the whole | {whole:.2f} | 100% | |\n| without the profiler | {bare:.2f} | {bare / whole:.0%} | |")


if __name__ == "__main__":
    main()

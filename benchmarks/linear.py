"""A GPT-2 small block's matrix products in float32 on the CPU, torch's and ours: python benchmarks/linear.py

The two run in turn; GFLOP/s from the median of the runs.
"""

import statistics
import time

import torch
import torch.nn.functional as F

from probekit.models.layers import linear

SHAPES = [(768, 2304), (768, 768), (768, 3072), (3072, 768)]
ROWS, RUNS = 1024, 25


def seconds(product, *args: torch.Tensor) -> float:
    start = time.perf_counter()
    product(*args)
    return time.perf_counter() - start


@torch.inference_mode()
def main() -> None:
    for d_in, d_out in SHAPES:
        args = torch.randn(ROWS, d_in), torch.randn(d_out, d_in), torch.randn(d_out)
        pairs = [(seconds(F.linear, *args), seconds(linear, *args)) for _ in range(RUNS)]
        theirs, ours = (2 * ROWS * d_in * d_out / statistics.median(times) / 1e9 for times in zip(*pairs, strict=True))
        ratio = statistics.median(a / b for a, b in pairs)
        print(f"{d_in:5} -> {d_out:5}: torch {theirs:4.0f}, ours {ours:4.0f} GFLOP/s, ratio {ratio:.2f}")


if __name__ == "__main__":
    main()

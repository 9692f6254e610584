"""Greedy generation compared with transformers, both cached, GPT-2 small's shape: python benchmarks/generation.py

Random weights, prompts of random ids, 50 new tokens each, float32 on the CPU. The two run in turn; seconds are the
median of the runs, and the ratio is the median of the pairs', above 1 where ours is faster. Both must say the same.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from probekit.models import generation, load_model

BATCHES = (1, 8)
PROMPT, NEW = 64, 50  # tokens


def timed(generate: Callable[[torch.Tensor], list[list[int]]], prompts: torch.Tensor) -> tuple[float, list[list[int]]]:
    """Seconds, and the new ids."""
    start = time.perf_counter()
    made = generate(prompts)
    return time.perf_counter() - start, made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    runs = parser.parse_args().runs
    torch.manual_seed(0)
    theirs: Any = GPT2LMHeadModel(GPT2Config()).eval()
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        ours = load_model(folder, device="cpu")

    def by_theirs(prompts: torch.Tensor) -> list[list[int]]:
        how = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
        return theirs.generate(prompts, attention_mask=torch.ones_like(prompts), **how)[:, PROMPT:].tolist()

    def by_ours(prompts: torch.Tensor) -> list[list[int]]:
        return generation.generate(ours, prompts, NEW, stop_tokens=[])

    for batch in BATCHES:
        prompts = torch.randint(50000, (batch, PROMPT))
        by_theirs(prompts)  # warm
        by_ours(prompts)
        pairs = [(timed(by_theirs, prompts), timed(by_ours, prompts)) for _ in range(runs)]
        assert all(a == b for (_, a), (_, b) in pairs)
        their_s, our_s = (statistics.median(one[0] for one in column) for column in zip(*pairs, strict=True))
        ratio = statistics.median(a / b for (a, _), (b, _) in pairs)
        print(f"batch {batch}: transformers {their_s:.2f} s, ours {our_s:.2f} s, ratio {ratio:.2f}")


if __name__ == "__main__":
    main()

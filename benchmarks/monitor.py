"""Generation under a monitor compared with generation alone, GPT-2 small's shape: python benchmarks/monitor.py

Random weights, prompts of random ids, greedy, float32. The two run in turn, in an order that alternates. The cost is
the median of the pairs' ratios minus 1, with the 95% interval of that median from its order statistics. Times are CPU
time of the process, since other processes of a shared machine change the clock's. Both must write the same tokens. "1
probe" is logistic at resid_pre.6, "13 probes" one at each place of the stream, "attention" a probe over the text so
far. Every token is compared with a threshold that none reaches.
"""

import argparse
import statistics
import tempfile
import time
from typing import Any

import numpy as np
import torch
from scipy.stats import binom
from transformers import GPT2Config, GPT2LMHeadModel

from probekit import Monitor
from probekit.models import load_model
from probekit.probes import AttentionProbe, LogisticProbe

BATCHES = (1, 8)
PROMPT, NEW = 64, 50  # tokens
PLACES = [*(f"resid_pre.{i}" for i in range(12)), "resid_post.11"]


def random_probe(rng: np.random.Generator, D: int) -> LogisticProbe:
    """Weights of one standard deviation each."""
    probe = LogisticProbe()
    probe.coef_, probe.intercept_, probe.classes_ = rng.normal(size=(1, D)), np.zeros(1), np.arange(2)
    probe.n_features_in_ = D
    return probe


def watched(rng: np.random.Generator, D: int) -> dict[str, Any]:
    """The probes of each case, by name."""
    attention = AttentionProbe()
    attention.query_, attention.coef_, attention.intercept_ = rng.normal(size=D), rng.normal(size=(1, D)), np.zeros(1)
    attention.classes_, attention.n_features_in_ = np.arange(2), D
    return {
        "1 probe": {"resid_pre.6": (random_probe(rng, D), "resid_pre.6")},
        "13 probes": {place: (random_probe(rng, D), place) for place in PLACES},
        "attention": {"resid_pre.6": (attention, "resid_pre.6")},
    }


def seconds(model: Any, prompts: torch.Tensor, probes: dict[str, Any] | None) -> tuple[float, list[list[int]]]:
    """Seconds, and the new ids; the monitor is made outside of the clock, entered and left inside."""
    monitor = None if probes is None else Monitor(model, probes, threshold=dict.fromkeys(probes, 1e9))
    start = time.process_time()
    if monitor is None:
        made = model.generate(prompts, NEW, stop_tokens=[])
    else:
        with monitor:
            made = model.generate(prompts, NEW, stop_tokens=[])
    return time.process_time() - start, made


def median_interval(values: list[float]) -> tuple[float, float]:
    """A 95% interval of the median, by order statistics."""
    ordered, n = sorted(values), len(values)
    k = max(int(binom.ppf(0.025, n, 0.5)), 1)
    return ordered[k - 1], ordered[n - k]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    args = parser.parse_args()
    torch.manual_seed(0)
    theirs: Any = GPT2LMHeadModel(GPT2Config()).eval()
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        model = load_model(folder, device="cpu")
    del theirs
    for batch in BATCHES:
        prompts = torch.randint(50000, (batch, PROMPT))
        for name, probes in watched(np.random.default_rng(0), model.cfg.d_model).items():
            seconds(model, prompts, probes)  # warm
            ratios, plain_s = [], []
            for run in range(args.runs):
                order = (None, probes) if run % 2 else (probes, None)
                found = {case is None: seconds(model, prompts, case) for case in order}
                assert found[True][1] == found[False][1]
                ratios.append(found[False][0] / found[True][0])
                plain_s.append(found[True][0])
            low, high = (100 * (end - 1) for end in median_interval(ratios))
            cost, plain = 100 * (statistics.median(ratios) - 1), statistics.median(plain_s)
            print(
                f"batch {batch}, {name}: alone {plain:.2f} s, cost {cost:+.1f}% [{low:+.1f}, {high:+.1f}]", flush=True
            )


if __name__ == "__main__":
    main()

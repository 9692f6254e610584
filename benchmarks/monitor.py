"""Generation under a monitor compared with generation alone, GPT-2 small's shape: python benchmarks/monitor.py

Random weights, prompts of random ids, greedy, float32. The two run in turn, in an order that alternates. The cost is
the median of the pairs' ratios minus 1, with the 95% interval of that median from its order statistics. Times are CPU
time of the process, since other processes of a shared machine change the clock's. Both must write the same tokens.
"inside" is measured apart, in the runs under a monitor: the CPU time that its hooks take, as a share of the rest of the
run. It leaves out what the hooks do to the caches and to the calls around them, but varies far less.

"1 probe" is logistic at resid_pre.6, "13 probes" one at each place of the stream; the others are one probe over the
text so far, at resid_pre.6. Every token is compared with a threshold that none reaches.
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
from probekit.probes import AggregateProbe, AttentionProbe, LogisticProbe, MultiMaxProbe

BATCHES = (1, 8)
PROMPT, NEW, HEADS = 64, 50, 4  # tokens, and heads of those probes that have several
PLACES = [*(f"resid_pre.{i}" for i in range(12)), "resid_post.11"]


def random_probe(rng: np.random.Generator, D: int) -> LogisticProbe:
    """Weights of one standard deviation each."""
    probe = LogisticProbe()
    probe.coef_, probe.intercept_, probe.classes_ = rng.normal(size=(1, D)), np.zeros(1), np.arange(2)
    probe.n_features_in_ = D
    return probe


def watched(rng: np.random.Generator, D: int) -> dict[str, Any]:
    """The probes of each case, by name."""
    over: dict[str, Any] = {"attention": AttentionProbe(), f"attention, {HEADS} heads": AttentionProbe(heads=HEADS)}
    over |= {
        f"multimax, {HEADS} heads": MultiMaxProbe(heads=HEADS),
        "rolling-max": AggregateProbe("ridge", "rolling-max"),
    }
    for probe in over.values():  # of tiny texts; the weights are then made as wide as the model
        probe.fit(list(rng.normal(size=(8, 3, 2))), np.arange(8) % 2)
        for name in ("query_", "coef_"):
            if hasattr(probe, name):
                setattr(probe, name, rng.normal(size=(*getattr(probe, name).shape[:-1], D)))
        probe.n_features_in_ = D
    return {
        "1 probe": {"resid_pre.6": (random_probe(rng, D), "resid_pre.6")},
        "13 probes": {place: (random_probe(rng, D), place) for place in PLACES},
        **{name: {"resid_pre.6": (probe, "resid_pre.6")} for name, probe in over.items()},
    }


class Timed(Monitor):
    """A monitor that knows how long its hooks took."""

    inside = 0.0

    def _take(self, station: Any, x: torch.Tensor, here: Any) -> None:
        start = time.process_time()
        super()._take(station, x, here)
        self.inside += time.process_time() - start


def share_inside(model: Any, prompts: torch.Tensor, probes: dict[str, Any]) -> float:
    """The CPU time of the hooks over that of the rest of the run."""
    monitor, start = Timed(model, probes, threshold=dict.fromkeys(probes, 1e9)), time.process_time()
    with monitor:
        model.generate(prompts, NEW, stop_tokens=[])
    return monitor.inside / (time.process_time() - start - monitor.inside)


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
    parser.add_argument("--cases", default="", help="those whose names hold this, such as 1 probe")
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
            if args.cases not in name:
                continue
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
            inside = 100 * statistics.median(share_inside(model, prompts, probes) for _ in range(5))
            print(
                f"batch {batch}, {name}: alone {plain:.2f} s, cost {cost:+.1f}% [{low:+.1f}, {high:+.1f}], "
                f"inside {inside:.2f}%",
                flush=True,
            )


if __name__ == "__main__":
    main()

"""What a causal run would do, and how long it would take, from a part of it that is run now."""

import time
from typing import Any

from probekit.activations.activations import Activations
from probekit.causal.places import Shared, count_runs, measure_place
from probekit.causal.question import ask
from probekit.causal.sides import find_side
from probekit.evaluation.results.data import ProbeData
from probekit.models.base import LanguageModel
from probekit.options import CausalOptions
from probekit.text import counted

FEW = {"rows": 16, "placebos": 1, "scales": (1.0,)}  # of the run that is timed


def plan_causal(model: LanguageModel, acts: Activations, results: ProbeData, options: CausalOptions) -> dict[str, Any]:
    """Rows, places, edited runs and seconds of a run, JSON-able; errors as of `causal`."""
    question = ask(model, acts, results, options)
    rows = {split: int((question.rows.split == split).sum()) for split in ("validation", "test")}
    runs = count_runs(question, rows) * len(question.layers)
    return {
        "model": model.name,
        "label": question.label,
        "answers": dict(zip(question.classes, options.answers or (), strict=True)),
        "places": [layer.place for layer in question.layers],
        "rows": {"train": len(question.train), **rows},
        "runs": runs,
        "seconds": runs * _seconds(model, acts, results, options),
    }


def _seconds(model: LanguageModel, acts: Activations, results: ProbeData, options: CausalOptions) -> float:
    """Of one edited run at the middle place, measured now."""
    few = {**vars(options), **FEW, "rows": min(FEW["rows"], options.rows)}
    question = ask(model, acts, results, CausalOptions(**few))
    sides = {split: find_side(question, split) for split in ("validation", "test")}
    layer = question.layers[len(question.layers) // 2]
    done = 0

    def count(runs: int) -> None:
        nonlocal done
        done += runs

    began = time.perf_counter()
    measure_place(question, sides, Shared(), layer, count)
    return (time.perf_counter() - began) / max(1, done)


def describe_causal(plan: dict[str, Any]) -> str:
    """The same in aligned lines."""
    rows = ", ".join(f"{n:,} {split}" for split, n in plan["rows"].items())
    answers = ", ".join(f"{name} -> {word!a}" for name, word in plan["answers"].items())
    lines = {
        "model": plan["model"],
        "label": f"{plan['label']}: {answers}",
        "places": ", ".join(plan["places"]),
        "rows": rows,
        "work": counted(plan["runs"], "edited run"),
        "time": f"about {plan['seconds']:.0f} s, measured now on a small part",
    }
    return "\n".join(f"{key:<9}{value}" for key, value in lines.items())

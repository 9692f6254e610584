"""What a causal run would do, and how long it would take, from a part of it that is run now."""

import time
from typing import Any

from probekit.activations.activations import Activations
from probekit.causal.curve.places import Shared, count_runs, measure_place
from probekit.causal.curve.question import ask
from probekit.causal.curve.sides import find_side
from probekit.evaluation.results.data import ProbeData
from probekit.models.base import LanguageModel
from probekit.options import CausalOptions
from probekit.text import counted, listed

FEW = {"placebos": 1, "scales": (1.0,)}  # of the runs that are timed
TIMED_ROWS = (4, 4, 40, 40)  # two sizes tell what a place costs from what an edited run costs


def plan_causal(model: LanguageModel, acts: Activations, results: ProbeData, options: CausalOptions) -> dict[str, Any]:
    """Rows, places, edited runs and their seconds, and what these leave out, JSON-able; errors as of `causal`."""
    question = ask(model, acts, results, options)
    rows = {split: int((question.rows.split == split).sum()) for split in ("validation", "test")}
    runs = count_runs(question, rows) * len(question.layers)
    of_place, of_run = _seconds(model, acts, results, options)
    return {
        "model": model.name,
        "label": question.label,
        "answers_label": question.answers_label,
        "answers": dict(zip(question.classes, list(options.answers or ()), strict=True)),
        "places": [layer.place for layer in question.layers],
        "rows": {"train": len(question.train), **rows},
        "runs": runs,
        "seconds": len(question.layers) * of_place + runs * of_run,
        "not_counted": _not_counted(options, len(question.layers), question.behaviour is None),
    }


def _not_counted(options: CausalOptions, places: int, of_classes: bool) -> list[str]:
    """What a run does besides the edits. `seconds` leaves it out, because timing it would take as long as doing it."""
    where, methods = counted(places, "place"), set(options.method_names)
    searches = options.das and of_classes and "interchange" in methods
    known = {
        f"the search for the best direction at {where} (--no-das)": searches,
        f"fresh probes after the edits of {where} (--no-completeness)": options.completeness and methods != {"patch"},
        "activation patching": "patch" in methods,
    }
    return [name for name, is_asked in known.items() if is_asked]


def _seconds(
    model: LanguageModel, acts: Activations, results: ProbeData, options: CausalOptions
) -> tuple[float, float]:
    """Of a place, and of one edited run there, at the middle place, measured now."""
    fastest: dict[int, float] = {}  # by edited runs; the faster of two is the less disturbed by other programs
    for rows in TIMED_ROWS:
        few = {name: getattr(options, name) for name in CausalOptions.__dataclass_fields__}
        question = ask(model, acts, results, CausalOptions(**{**few, **FEW, "rows": rows}))
        sides = {split: find_side(question, split) for split in ("validation", "test")}
        done: list[int] = []
        began = time.perf_counter()
        measure_place(question, sides, Shared(), question.layers[len(question.layers) // 2], done.append)
        taken = time.perf_counter() - began
        fastest[sum(done)] = min(taken, fastest.get(sum(done), taken))
    least, most = min(fastest), max(fastest)
    if fastest[most] <= fastest[least]:  # too few rows or too noisy to tell the two apart
        return 0.0, fastest[most] / max(1, most)
    of_run = (fastest[most] - fastest[least]) / (most - least)
    return max(0.0, fastest[most] - most * of_run), of_run


def describe_causal(plan: dict[str, Any]) -> str:
    """The same in aligned lines."""
    rows = ", ".join(f"{n:,} {split}" for split, n in plan["rows"].items())
    answers = ", ".join(f"{name} -> {word!a}" for name, word in plan["answers"].items())
    lines = {
        "model": plan["model"],
        "label": plan["label"],
        "answers": f"by {plan['answers_label']}: {answers}",
        "places": ", ".join(plan["places"]),
        "rows": rows,
        "work": counted(plan["runs"], "edited run"),
        "time": f"about {plan['seconds']:.0f} s for the edits, measured now",
    }
    if plan["not_counted"]:
        lines["! more"] = f"not in that time, and often longer: {listed(plan['not_counted'])}"
    return "\n".join(f"{key:<9}{value}" for key, value in lines.items())

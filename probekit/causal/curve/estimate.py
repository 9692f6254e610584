"""What a causal run would do, and how long it would take, from a part of it that is run now."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from probekit.activations.activations import Activations
from probekit.causal.curve.grids import time_of_grids
from probekit.causal.curve.places import count_runs, measure_place
from probekit.causal.curve.prepared import PreparedQuestion, answer_question, prepare_edits
from probekit.causal.curve.problem import STEPS, learn_direction
from probekit.causal.curve.question import CausalQuestion, causal_question
from probekit.evaluation.results.data import ProbeData
from probekit.models.base import LanguageModel
from probekit.options import CausalOptions
from probekit.points import Place
from probekit.text import counted

FEW_PLACEBOS = 5  # of the edits that are timed: enough that they are joined, as those of a run are
TIMED_ROWS = (8, 100)  # two sizes tell what a place costs from what an edited run costs
TIMED_STEPS = (2, 8)  # and so of the search


def plan_causal(model: LanguageModel, acts: Activations, results: ProbeData, options: CausalOptions) -> dict[str, Any]:
    """Rows, places, edited runs, and the seconds of each part of the run, JSON-able; errors as of `causal`."""
    answered = answer_question(causal_question(model, acts, results, options))
    question, parts = answered.question, _seconds(answered, acts)
    return {
        "model": model.name,
        "label": question.label,
        "answers_label": question.answers_label,
        "answers": dict(zip(question.classes, list(options.answers or ()), strict=True)),
        "places": [layer.place for layer in question.layers],
        "rows": {"train": len(question.train), **answered.sizes},
        "runs": count_runs(answered, answered.sizes) * len(question.layers),
        "seconds": sum(parts.values()),
        "parts": parts,
    }


def _seconds(answered: PreparedQuestion, acts: Activations) -> dict[str, float]:
    """Part of the run -> its seconds, each measured now at the middle place, which has half of the blocks after it."""
    found: dict[str, float] = {}
    question = answered.question
    if question.edit_methods:
        n, layer = len(question.layers), question.layers[len(question.layers) // 2]
        began = time.perf_counter()
        prepared = prepare_edits(answered)
        found["preparing"] = time.perf_counter() - began
        found["edits"] = _of_edits(answered, acts)
        if prepared.search is not None:
            place = Place(layer.point, layer.layer)
            least, most = (_timed(partial(learn_direction, prepared, place, steps)) for steps in TIMED_STEPS)
            step = max(0.0, most - least) / (TIMED_STEPS[1] - TIMED_STEPS[0])
            found["search"] = n * (least + (STEPS - TIMED_STEPS[0]) * step)
        bare = replace(answered, question=_with(question, acts, placebos=0, scales=(1.0,)))
        least, most = (
            _timed(partial(measure_place, one, layer, lambda runs: None))
            for one in (bare, replace(bare, before=prepared.before))
        )
        found["what edits leave"] = n * max(0.0, most - least)
    if "patch" in question.options.method_names:
        found["patching"] = time_of_grids(question, answered.rows["test"])
    return found


def _of_edits(answered: PreparedQuestion, acts: Activations) -> float:
    """Fitting directions and running edits at every place, from a few rows and placebos."""
    timed: list[tuple[int, float]] = []
    question = answered.question
    for rows in TIMED_ROWS:
        placebos = min(FEW_PLACEBOS, question.options.placebos)
        few = _with(question, acts, rows=max(2, min(rows, question.options.rows)), placebos=placebos)
        done: list[int] = []
        layer = few.layers[len(few.layers) // 2]
        seconds = _timed(partial(measure_place, answer_question(few), layer, done.append), times=2)
        timed.append((sum(done) // 2, seconds))
    (few_runs, least), (many_runs, most) = timed
    of_run = max(0.0, most - least) / max(1, many_runs - few_runs)
    of_place = max(0.0, most - many_runs * of_run)
    runs = {split: int((question.rows.split == split).sum()) for split in ("validation", "test")}
    return len(question.layers) * (of_place + count_runs(answered, runs) * of_run)


def _timed(work: Callable[[], Any], times: int = 1) -> float:
    """The fastest of some calls, which is the least disturbed by other programs."""
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def _with(question: CausalQuestion, acts: Activations, **changes: Any) -> CausalQuestion:
    """The same question with other options; `acts` are those that it was asked of, with labels of numbers as such."""
    options = {name: getattr(question.options, name) for name in CausalOptions.__dataclass_fields__}
    return causal_question(question.model, acts, question.results, CausalOptions(**options | changes))


def describe_causal(plan: dict[str, Any]) -> str:
    """The same in aligned lines."""
    rows = ", ".join(f"{n:,} {split}" for split, n in plan["rows"].items())
    answers = ", ".join(f"{name} -> {word!a}" for name, word in plan["answers"].items())
    parts = ", ".join(f"{name} {seconds:.0f}" for name, seconds in plan["parts"].items())
    lines = {
        "model": plan["model"],
        "label": plan["label"],
        "answers": f"by {plan['answers_label']}: {answers}",
        "places": ", ".join(plan["places"]),
        "rows": rows,
        "work": counted(plan["runs"], "edited run"),
        "time": f"about {plan['seconds']:.0f} s, from a part that was run now: {parts}",
    }
    return "\n".join(f"{key:<9}{value}" for key, value in lines.items())

"""Run the tool on compiled models, and put its verdicts next to the truths.

For each variable: extract, train probes at every layer, exchange and erase what they read, patch every head. Settings
are the defaults, but for methods: steering decides no verdict and is left out.
"""

from collections.abc import Callable, Iterator
from functools import partial

from probekit.battery.result import KnownAnswer, KnownAnswers
from probekit.causal.curve.causal_curve import causal_curve
from probekit.causal.results.results import CausalResults
from probekit.causal.results.view import LEAST_EFFECT, curve_effects, largest_placebo
from probekit.evaluation.results.results import ProbeResults
from probekit.machine.progress import progress_bar
from probekit.models import load_model
from probekit.options.known_answers import KnownAnswersArguments
from probekit.options.option import keywords
from probekit.verbs.extract import extract
from probekit.verbs.train_probes import train_probes
from probekit.worlds.compiled import compiled_model
from probekit.worlds.compiled.definition import IS_READ, NOT_READ, Truth
from probekit.worlds.compiled.program import Program

NEEDED = {True: "needed", False: "not shown to be needed"}
CARRIES = {True: "carries it", False: "not shown to carry it"}


@keywords(KnownAnswersArguments)
def known_answers(options: KnownAnswersArguments) -> KnownAnswers:
    """Compare the verdicts with the truth, on models whose weights were set by hand.

    Args:
        options: as keyword arguments.

    Raises:
        UsageError: no compiled model has this name.
    """
    names, found = tuple(options.only), list[KnownAnswer]()
    with progress_bar("known answers", "models", len(names) * options.repeats, show=options.progress) as bar:
        for repeat in range(options.repeats):
            for i, name in enumerate(names):
                found += _answers_of(name, options.train_texts, options.seed + repeat)
                bar.set(repeat * len(names) + i + 1, len(names) * options.repeats)
    return KnownAnswers(found)


def _answers_of(name: str, texts: int, seed: int) -> Iterator[KnownAnswer]:
    compiled, few = compiled_model(name), 2 * texts // 5
    model, task = load_model(name, progress=False), compiled.task((texts, few, few), seed)
    acts = extract(model, task, points="resid_pre", progress=False)
    for truth in compiled.truths:
        about = partial(KnownAnswer, name, truth.label, seed=seed)
        probes = train_probes(acts, label=truth.label, nuisance=truth.cue, seed=seed, progress=False)
        if not truth.answers:
            yield from _of_reading(about, probes, truth)
            continue
        curve = causal_curve(
            model,
            acts,
            probes,
            answers=truth.answers,
            answers_label=truth.answers_label,
            methods="interchange,erase" if truth.heads is None else "interchange,erase,patch",
            seed=seed,
            progress=False,
        )
        yield from _of_places(about, curve, truth)
        yield from _of_heads(about, curve, truth, compiled.program)
        yield from _beyond_cue(about, curve, probes, truth)


def _of_places(about: Callable[..., KnownAnswer], curve: CausalResults, truth: Truth) -> Iterator[KnownAnswer]:
    """Whether it is read and used at each place, and where it is asked, whether its erasure matters."""
    for layer, expected in zip(curve.layers, truth.verdicts, strict=True):
        direction = layer.used_by[0] if layer.used_by else layer.directions.get("interchange")
        edit = _edit(curve, "interchange", layer.place, direction)
        yield about(layer.place, expected, layer.quadrant, layer.score, *edit)
    for layer, needed in zip(curve.layers if truth.needed else (), truth.needed, strict=True):
        edit = _edit(curve, "erase", layer.place, layer.directions.get("erase"))
        yield about(f"{layer.place}, erased", NEEDED[needed], NEEDED[layer.is_used["erase"]], layer.score, *edit)


def _of_reading(about: Callable[..., KnownAnswer], probes: ProbeResults, truth: Truth) -> Iterator[KnownAnswer]:
    """Whether it can be read at each place, of vectors, which no edit exchanges."""
    for layer, expected in zip(probes.layers, truth.verdicts, strict=True):
        low = (layer.band or layer.intervals[probes.headline])[0]
        verdict = IS_READ if low > 0 else NOT_READ  # R2 of the mean is 0
        yield about(layer.place, expected, verdict, layer.metrics["test"][probes.headline], None, None)


def _edit(curve: CausalResults, method: str, place: str, direction: str | None) -> tuple[float | None, float | None]:
    """The effect on test of an edit along a direction, and the largest of a placebo."""
    effect = curve_effects(curve.data, method, direction).get(place)
    return (None, None) if effect is None else (effect.effect, largest_placebo(effect))


def _of_heads(
    about: Callable[..., KnownAnswer], curve: CausalResults, truth: Truth, program: Program
) -> Iterator[KnownAnswer]:
    """Whether each head of the program carries it: whether patching it moves the answer, by the rule for edits."""
    for grid in (grid for grid in curve.grids if grid.by == "head"):
        assert grid.within_placebo is not None
        for i, j in ((i, j) for i, block in enumerate(program.blocks) for j in range(len(block.heads))):
            head, recovery = f"{i}.{j}", float(grid.recovery[i, j])
            if head in truth.in_part:
                continue
            moves = recovery >= LEAST_EFFECT and grid.interval[i, j, 0] > 0 and not grid.within_placebo[i, j]
            expected = CARRIES[head in (truth.heads or ())]
            yield about(f"head {head}", expected, CARRIES[bool(moves)], None, recovery, None)


def _beyond_cue(
    about: Callable[..., KnownAnswer], curve: CausalResults, probes: ProbeResults, truth: Truth
) -> Iterator[KnownAnswer]:
    """Whether anything is read at the selected place once the cue is regressed out of the activations."""
    if truth.cue is None:
        return
    (layer,) = (layer for layer in probes.residual if layer.place == probes.best.place)
    verdict = IS_READ if layer.intervals[probes.headline][0] > curve.meta["baseline"]["value"] else NOT_READ
    score = layer.metrics["test"][probes.headline]
    yield about(f"{layer.place}, without {truth.cue}", truth.beyond, verdict, score, None, None)

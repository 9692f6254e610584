"""Control tasks: how much of a probe's accuracy could be memory.

Each type gets one random label, the same wherever it occurs. A probe can only memorise these labels; how much better it
does on the real ones is its *selectivity* (Hewitt and Liang 2019, "Designing and Interpreting Probes with Control
Tasks"). The type is the token that is read, so that test rows can score on the control task. Or it is the text, which
test has never seen: this control must come out at chance, and shows that nothing leaks. Where the examples are words of
texts, the type is the word as it is written.

Axes: N examples, T types, C classes.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from probekit.activations.activations import Activations
from probekit.evaluation.compare.baseline_fits import word_type
from probekit.evaluation.fits.protocol import Protocol
from probekit.evaluation.request import Request
from probekit.evaluation.results.data import LEAST_SEEN
from probekit.evaluation.scores.metrics import Predictions
from probekit.evaluation.scores.score import value_of
from probekit.options import ProbeOptions
from probekit.selections import PER_EXAMPLE
from probekit.tasks.chats.messages import compared_inputs
from probekit.tasks.splitting.splits import normalised_words, text_numbers

MOST_COMMON = 0.5  # share of the examples; a type above it distinguishes too few of them
TRIES = 100


@dataclass(frozen=True, eq=False)
class ControlTasks:
    """The control tasks of a request.

    Attributes:
        labels: random labels [N], one array per draw.
        record: {"type", "unit", "draws", "asked", "seen", "C"}: what has a random label ("token", "word" or "text"),
            the same in words for a reader, how many draws there are and were requested, the share of the test rows
            whose type train has, and whose C was used ("label" or "own"). None if none were requested.
        C: whether they are fitted at the C that is chosen for the "label", or choose their "own".
        types: the type of each example.
    """

    labels: list[np.ndarray]
    record: dict[str, Any] | None
    C: str = "label"
    types: Sequence[Hashable] = ()


NO_CONTROLS = ControlTasks([], None)


def draw_controls(request: Request, protocol: Protocol, options: ProbeOptions) -> ControlTasks:
    """As many control tasks as the options ask for, without those that some training part cannot fit."""
    draws, kind = options.controls or 0, options.control_type
    if draws == 0:
        return NO_CONTROLS
    types = control_types(request.acts, kind)
    if types is None:
        nothing = {"type": None, "unit": None, "draws": 0, "asked": draws, "seen": 0.0, "C": options.control_C}
        return ControlTasks([], nothing, options.control_C)
    drawn = control_labels(request.labels, types, request.n_classes, draws, options.seed, protocol.train)
    labels = with_every_class(protocol, drawn, request.n_classes)
    name, unit = _unit(request.acts, kind, types)
    seen = _share_seen(protocol, types)
    record = {"type": name, "unit": unit, "draws": len(labels), "asked": draws, "seen": seen, "C": options.control_C}
    return ControlTasks(labels, record, options.control_C, types)


def record_of_controls(
    controls: ControlTasks, protocol: Protocol, metric: str, n_classes: int
) -> dict[str, Any] | None:
    """The record, with the "ceiling": what a table of the types in train scores, as no probe can remember more."""
    values = []
    for labels in controls.labels:
        fits = [
            (word_type(controls.types, labels, np.flatnonzero(protocol.masks[each.mask]), n_classes), each.test)
            for each in protocol.rounds
        ]
        predicted, scores = (
            np.concatenate([getattr(fit, name)[test] for fit, test in fits]) for name in ("predicted", "scores")
        )
        values.append(value_of(Predictions(labels[protocol.test], predicted, scores, n_classes), metric))
    if controls.record is None or not values or not np.isfinite(values).all():
        return controls.record
    return {**controls.record, "ceiling": float(np.mean(values))}


def _unit(acts: Activations, kind: str, types: Sequence[Hashable]) -> tuple[str, str]:
    """What has a random label: in one word, and in words for a reader."""
    if kind == "text":
        return kind, kind
    if isinstance(types[0], int):
        return "token", "token that is read"
    if acts.task.words is not None:
        return "word", "word"
    tokens = acts.layout.tokens
    if tokens is None or len(tokens) != acts.n_examples:
        why = "the token that is read was not recorded"
    else:
        why = "a mean is read" if (tokens < 0).any() else "most texts are read at the same token"
    return "word", f"{'first' if acts.layout.positions == ['first'] else 'last'} word of a text ({why})"


def measures_memory(controls: ControlTasks) -> bool:
    """Whether a probe that memorises can do well on the control tasks, so that selectivity means something."""
    record = controls.record
    return record is not None and record["type"] != "text" and record["seen"] >= LEAST_SEEN


def _share_seen(protocol: Protocol, types: Sequence[Hashable]) -> float:
    """The share of the test rows whose type is also among the rows that are fitted for them."""
    known = [{types[i] for i in np.flatnonzero(protocol.masks[each.mask]).tolist()} for each in protocol.rounds]
    rounds = zip(protocol.rounds, known, strict=True)
    seen = [types[i] in of_round for each, of_round in rounds for i in each.test.tolist()]
    return float(np.mean(seen))


def control_types(acts: Activations, kind: str = "token") -> list[Any] | None:
    """The type of each example: the id of the token that is read (an int), or the last word of its text (a str).

    For the kind "text" it is the number of the text (`tasks.splitting.splits`, an int). Where the examples are words
    of their texts it is that word (a str), as in Hewitt and Liang.

    The last word, punctuation left out, replaces the token where tokens were not recorded (imports, older stores),
    where a mean is read, and where half of the examples end in one token, such as a full stop. The first word replaces
    it where the first token is read. Nothing replaces it where each example has its own position.

    Args:
        acts: activations of one position (`acts.at`).
        kind: "token" or "text".

    Returns:
        N types, or None: no texts, or more than half of them are of one type.
    """
    if kind == "text":
        texts = text_numbers(compared_inputs(acts.task)).tolist() if acts.task.has_texts else []
        return texts if texts and _varied(texts) else None
    words = acts.task.words
    if words is not None:
        return words if _varied(words) else None
    tokens = acts.layout.tokens
    if tokens is not None and len(tokens) == acts.n_examples and (tokens >= 0).all() and _varied(tokens.tolist()):
        return tokens.tolist()
    if not acts.task.has_texts or acts.layout.positions == [PER_EXAMPLE]:
        return None
    first = acts.layout.positions == ["first"]
    types = [_word(given, 0 if first else -1) for given in compared_inputs(acts.task)]
    return types if _varied(types) else None


def _word(given: Any, at: int) -> Hashable:
    if not isinstance(given, str):
        return int(given[at])
    words = normalised_words(given)
    return ([word for word in words if word[0].isalnum()] or words)[at]


def _varied(types: Sequence[Hashable]) -> bool:
    return Counter(types).most_common(1)[0][1] <= MOST_COMMON * len(types)


def control_labels(
    labels: np.ndarray,
    types: Sequence[Hashable],
    n_classes: int,
    draws: int,
    seed: int,
    train: np.ndarray | None = None,
) -> np.ndarray:
    """Random labels that depend on the type alone: [draws, N], int64, or float64 for a regression.

    Each type gets a label with its frequency among the training labels, independently of the other types. A draw that
    leaves a class without a training row is repeated, `TRIES` times at most. If that does not help, fewer draws come
    back, and none where there are fewer types than classes.

    Args:
        labels: the training labels, whose distribution is drawn from; with `train` those of all N.
        types: N types.
        n_classes: C, or 0 for a regression, whose control must have two targets.
        draws: how many.
        seed: of the draws; draw i is the same for any number of draws.
        train: training rows, int64; None is all of them.
    """
    rows = np.arange(len(types)) if train is None else train
    given = labels if train is None else labels[train]
    known: dict[Hashable, int] = {}
    number = np.array([known.setdefault(one, len(known)) for one in types])
    drawn = [_draw(given, number, rows, n_classes, np.random.default_rng([seed, i])) for i in range(draws)]
    kind = np.int64 if n_classes else np.float64
    return np.array([one for one in drawn if one is not None], dtype=kind).reshape(-1, len(types), *labels.shape[1:])


def _draw(
    given: np.ndarray, number: np.ndarray, rows: np.ndarray, n_classes: int, rng: np.random.Generator
) -> np.ndarray | None:
    wanted = len(np.unique(given)) if n_classes else None
    for _ in range(TRIES):
        control = rng.choice(given, size=number.max() + 1)[number]
        own = control[rows]
        if _differ(own) if wanted is None else len(np.unique(own)) >= wanted:
            return control
    return None


def _differ(targets: np.ndarray) -> bool:
    """Whether two rows of targets [N] or [N, K] differ."""
    return bool((np.ptp(targets, axis=0) > 0).any())


def with_every_class(protocol: Protocol, draws: np.ndarray, n_classes: int) -> list[np.ndarray]:
    """The control tasks [draws, N] that can be fitted: each mask has all classes, or two targets of a regression."""

    def can_be_fitted(labels: np.ndarray) -> bool:
        if n_classes == 0:
            return _differ(labels)
        return set(np.unique(labels).tolist()) == set(range(n_classes))

    return [labels for labels in draws if all(can_be_fitted(labels[mask > 0]) for mask in protocol.masks)]


def compare_with_controls(
    target: Predictions, controls: Sequence[Predictions], metric: str
) -> tuple[float | None, float | None]:
    """The mean of the metric over the control tasks, and the selectivity; None where undefined."""
    known = [value for each in controls if np.isfinite(value := value_of(each, metric))]
    if not known:
        return None, None
    mean = float(np.mean(known))
    return mean, selectivity(value_of(target, metric), mean, metric)


def selectivity(value: float, control: float, metric: str) -> float | None:
    """The metric less the control's; an R2 below 0 is no skill, and counts as 0.

    None where the control's R2 is below 0: it learnt nothing that could be subtracted, and how far below is no merit of
    the probe.
    """
    if metric != "r2":
        return value - control
    return max(value, 0.0) - control if control >= 0 else None

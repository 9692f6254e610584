"""What a causal run asks, checked: rows and their texts, what the model should answer, and where it is edited.

Axes: N rows in use (validation, then test), C classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probekit.activations.activations import Activations
from probekit.activations.labelled import record_of_labels, with_task
from probekit.activations.plan.reading.read_positions import read_positions
from probekit.activations.plan.token_ids import Sequences, tokenise_inputs
from probekit.causal.behaviour.answers import answer_ids, answer_tokens
from probekit.causal.behaviour.numbers import NumberBehaviour, number_behaviour
from probekit.causal.behaviour.unembedding import check_head
from probekit.causal.curve.refusals import check_answers, check_curve, check_numbers
from probekit.causal.data import Method
from probekit.errors import DataError, UsageError
from probekit.evaluation.request import Request, check_request
from probekit.evaluation.results.data import LayerResult, ProbeData
from probekit.evaluation.rows import resampling_units
from probekit.models.base import LanguageModel
from probekit.options import CausalOptions, CurveOptions
from probekit.points import LATENTS, PAIR_POINTS, base_name, places_of
from probekit.selections import PER_EXAMPLE
from probekit.tasks.base import Task
from probekit.tasks.join_labels import FINGERPRINTS

MEASURED = ("validation", "test")
CHOICES: dict[Method, tuple[str, ...]] = {
    "interchange": ("probe", "mean-difference", "lda"),
    "erase": ("leace",),
    "steer": ("mean-difference",),  # placebos have the length of its steps
}
"""Method -> the directions among which validation chooses that of the curve."""


@dataclass(frozen=True, eq=False)
class CausalRows:
    """The rows that are edited and measured; no direction was fitted to them.

    Attributes:
        index: their numbers in the task, int64 [N]; validation first.
        split: "validation" or "test" of each, [N].
        texts: token ids, context tokens included.
        read: the token that the probe reads, int64 [N].
        n_bos: context tokens before each text.
        labels: class of each, int64 [N].
        answers: class of each in the label set of the answers, int64 [N].
        groups: rows with equal numbers are resampled together, [N]; None where each row is a unit.
    """

    index: np.ndarray
    split: np.ndarray
    texts: list[list[int]]
    read: np.ndarray
    n_bos: int
    labels: np.ndarray
    answers: np.ndarray
    groups: np.ndarray | None

    def of(self, split: str) -> np.ndarray:
        """The numbers of one split's rows, among the N."""
        return np.flatnonzero(self.split == split)


@dataclass(frozen=True, eq=False)
class CausalQuestion:
    """One causal run.

    Attributes:
        model: whose activations are edited.
        acts: one row for each example.
        label: the label set of the probes.
        answers_label: the label set that decides a text's own answer.
        classes: names of its classes, C.
        answer_C: the token of each class.
        rows: in use.
        train: rows that directions are fitted to, int64.
        layers: the probes' results, in the order of the curve.
        results: the curve.
        options: of the run.
        answer_of_id: example -> the index of the token after which the model answers, where these were given.
        behaviour: the number that the model answers, where labels are numbers; None for the logit difference.
        numbers: these labels, float64; None for classes.
    """

    model: LanguageModel
    acts: Activations
    label: str
    answers_label: str
    classes: list[str]
    answer_C: np.ndarray
    rows: CausalRows
    train: np.ndarray
    layers: list[LayerResult]
    results: ProbeData
    options: CausalOptions
    answer_of_id: Mapping[str, int] = field(default_factory=dict)
    behaviour: NumberBehaviour | None = None
    numbers: np.ndarray | None = None

    @property
    def edit_methods(self) -> list[Method]:
        """The methods that edit along directions, in the order in which they are done."""
        return [name for name in CHOICES if name in self.options.method_names]


def causal_question(
    model: LanguageModel, acts: Activations, results: ProbeData | None, options: CausalOptions
) -> CausalQuestion:
    """Check the parts of a causal run against one another.

    Raises:
        UsageError: results of numbers, of folds, or without linear probes; a model that cannot be edited so; answers
            that are missing, too many, or no single token; other activations or another model.
        DataError: too few rows of a split or of a class.
    """
    check_results(results)
    assert results is not None
    _check_model(model)
    request = _request(acts, results)
    numbers = None if request.n_classes else np.asarray(request.labels, dtype=np.float64)
    if numbers is not None:
        check_numbers(request.label, options)
        request = _of_halves(request, numbers)
    elif options.readout is not None or isinstance(options.answers, Mapping):
        raise UsageError(f"readout and a dict of answers are for labels of numbers, and {request.label!a} has classes")
    decides = _answers_label(request, options)
    classes = list(request.acts.label_names[decides])
    if numbers is None:
        check_answers(decides, classes, list(options.answers or ()) or None)
    _check_same(model, acts, results)
    layers = _layers(results, request, options)
    rows = _rows(model, request, decides, options)
    inputs, behaviour = _inputs(model, request, rows, options), None
    if numbers is None:
        answers = np.array(answer_ids(model, list(options.answers or ()), inputs), dtype=np.int64)
    else:
        behaviour = number_behaviour(model, options.answers, options.readout, inputs)
        answers, classes = behaviour.token_K.numpy(), [f"{value:g}" for value in behaviour.value_K.tolist()]
    train = np.flatnonzero(request.acts.splits == "train")
    given = options.answer_at if isinstance(options.answer_at, tuple) else ()
    if given and len(given) != len(acts.task):
        raise UsageError(f"answer_at has {len(given):,} indices for {len(acts.task):,} examples; give one for each")
    answer_of_id = dict(zip(acts.task.ids, given, strict=True)) if given else {}
    return CausalQuestion(
        model,
        request.acts,
        request.label,
        decides,
        classes,
        answers,
        rows,
        train,
        layers,
        results,
        options,
        answer_of_id,
        behaviour,
        numbers,
    )


def _of_halves(request: Request, numbers: np.ndarray) -> Request:
    """The request with numbers as two classes, below and above the median of train.

    Counterparts, placebos, steering and fresh probes need classes. The scalar that an interchange takes is that of the
    counterpart's own activation, whatever its class.
    """
    task, name = request.acts.task, request.label
    if numbers.ndim != 1:
        raise UsageError(f"{name!a} holds vectors, and an edit follows one number; take a label set of single numbers")
    train = numbers[task.splits == "train"]
    middle = float(np.nanmedian(train))
    is_upper = numbers > middle if np.nanmax(train) > middle else numbers >= middle  # where most are the largest
    halves = np.where(np.isnan(numbers), -1, is_upper).astype(np.int64)
    names = {**task.label_names, name: ["lower half", "upper half"]}
    made = replace(task, labels={**task.labels, name: halves}, label_names=names)
    return replace(request, acts=with_task(request.acts, made), labels=halves, n_classes=2)


def check_results(results: Any) -> None:
    """Check that a curve has linear probes of classes whose test rows fitted nothing.

    Raises:
        UsageError: it has not.
    """
    if not isinstance(results, ProbeData):
        kind = type(results).__name__
        raise UsageError(f"expected results of train_probes, got {kind}; a curve of several (ProbeCurves) holds them")
    check_curve(results.meta)
    meta = results.meta
    if base_name(meta["point"]) == LATENTS:
        raise UsageError(
            "the probes read latents, and causal edits activations: train probes at the point that the autoencoder "
            "reads, or edit along a latent (steering_vectors(acts.encode(sae), method='latent'), model.edited)"
        )
    if meta["point"] in PAIR_POINTS or any(layer.layer is None for layer in results.layers):
        raise UsageError(f"causal edits points of a layer, got {meta['point']}; take resid_pre, attn_out or mlp_out")
    for layer in results.layers:
        if layer.probe is None or not getattr(layer.probe, "linear", False):
            raise UsageError(f"the probe {meta['probe']} has no direction; train a linear one (--probe logistic)")


def _answers_label(request: Request, options: CausalOptions) -> str:
    """The label set that decides a text's own answer."""
    name = request.label if options.answers_label is None else request.acts.task.label_set(options.answers_label)
    if not request.acts.label_names[name]:
        raise UsageError(f"{name!a} holds numbers, and answers are words of classes; take a label set of classes")
    return name


def answers_where_read(model: LanguageModel, options: CausalOptions) -> bool:
    """Whether answers are read at the token that the probes read: in models of both sides that fill no masks."""
    return options.answer_at is None and not model.causal and not model.fills_masks


def _inputs(model: LanguageModel, request: Request, rows: CausalRows, options: CausalOptions) -> Any:
    """The texts in use, or their ids where the task holds ids or texts go on after the answer."""
    if options.answer_at is not None or answers_where_read(model, options):
        return rows.texts
    inputs = [request.acts.task.inputs[i] for i in rows.index]
    return inputs if isinstance(inputs[0], str) else rows.texts


def _check_model(model: Any) -> None:
    if not isinstance(model, LanguageModel):
        raise UsageError(f"expected a model from load_model, got {model!a:.60}; call load_model first")
    if hasattr(model, "decode"):
        raise UsageError(f"{model.name} reads a source and a target, which causal does not; take a model of one text")
    check_head(model)


def _request(acts: Activations, results: ProbeData) -> Request:
    """The activations with one row for each example, and the splits of the results."""
    meta, position = results.meta, results.meta["position"]
    several = len(acts.layout.positions) > 1 or acts.layout.is_ragged
    how = CurveOptions(
        point=meta["point"], label=meta["label"], seed=meta["seed"], position=position if several else None
    )
    return check_request(acts, how)


def _check_same(model: LanguageModel, acts: Activations, results: ProbeData) -> None:
    """Raise a UsageError unless results, activations and model belong together."""
    record = record_of_labels(acts, [results.meta["label"]])
    for name, value in results.meta.get("activations", {}).items():
        if name.endswith(("fingerprint", FINGERPRINTS)) and record.get(name, value) != value:
            what = "label" if name == FINGERPRINTS else name.removesuffix("_fingerprint")
            raise UsageError(f"the probes were trained on activations of another {what}; give those activations")
    known = acts.meta.get("model_fingerprint")
    if known is not None and known != model.fingerprint():
        raise UsageError(f"the activations are of other weights than those of {model.name}; load the model they are of")


def _layers(results: ProbeData, request: Request, options: CausalOptions) -> list[LayerResult]:
    """The layers of the results that are edited."""
    wanted = places_of(request.acts, results.meta["point"], options.layers)[1]
    found = [layer for layer in results.layers if (layer.point, layer.layer) in wanted]
    if not found:
        raise UsageError(f"the results have no layer {options.layers!a}; name layers that were probed")
    return found


def _rows(model: LanguageModel, request: Request, decides: str, options: CausalOptions) -> CausalRows:
    """Draw the rows, and find their tokens."""
    task, label = request.acts.task, request.label
    units = resampling_units(task)
    classes = np.stack([np.asarray(request.labels), np.asarray(task.labels[decides])])
    index = np.concatenate([_draw(task, split, units, classes, options) for split in MEASURED])
    labels, answers = classes[:, index]
    _check_classes(labels, task.splits[index], task.label_names[label])
    texts, read, n_bos = tokens_of(model, request.acts, index)
    groups = None if units is None else np.asarray(units)[index]
    _check_classes(answers, task.splits[index], task.label_names[decides])
    return CausalRows(index, task.splits[index], texts, read, n_bos, labels, answers, groups)


def tokens_of(model: LanguageModel, acts: Activations, index: np.ndarray) -> tuple[list[list[int]], np.ndarray, int]:
    """Token ids of some rows, the token that the probe reads in each, and the context tokens before each.

    Raises:
        UsageError: the probe reads several tokens of each text.
    """
    some = acts.task.subset(index)
    position = acts.meta.get("position", some.position)
    if position == PER_EXAMPLE:
        own = acts.layout.token_index  # of an array that `extract` was given, which the task does not have
        position = some.position if own is None else own[index]
    sequences, read, bad = _one_token(model, acts, some, position)
    if read is None or bad:
        raise UsageError("an edit needs one token of each text; train the probes at --position last")
    return [sequences[i].tolist() for i in range(len(index))], read, sequences.n_bos


def answers_at(question: "CausalQuestion", index: np.ndarray, texts: list[list[int]]) -> Tensor:
    """The token after which the model answers in each of some rows, int64 [N].

    Args:
        question: whose model answers.
        index: the rows' numbers in the task.
        texts: their token ids, context tokens included.

    Raises:
        DataError: a text without this token.
    """
    task, wanted = question.acts.task, question.options.answer_at
    names = [task.ids[i] for i in index]
    if answers_where_read(question.model, question.options):
        return torch.from_numpy(np.asarray(tokens_of(question.model, question.acts, index)[1], dtype=np.int64))
    if wanted is None:
        return answer_tokens(question.model, texts, names)
    if isinstance(wanted, tuple):
        wanted = np.array([question.answer_of_id[name] for name in names])
    _, at, bad = _one_token(question.model, question.acts, task.subset(index), wanted)
    if bad or at is None:
        row, why = next(iter(bad.items()), (0, "it has no such token"))
        raise DataError(f"example {names[row]!a}: {why}; name a token that each text has (--answer-at)")
    return torch.from_numpy(np.asarray(at, dtype=np.int64))


def _one_token(
    model: LanguageModel, acts: Activations, some: Task, wanted: Any
) -> tuple[Sequences, np.ndarray | None, dict[int, str]]:
    """The token ids of some examples, the one token of each at a position, and the rows that lack it, with why."""
    sequences = tokenise_inputs(model, some, acts.meta.get("bos"), acts.meta.get("on_long", "cut"))
    reading, bad = read_positions(model, some, sequences, wanted, acts.meta.get("skip_special", False))
    read = reading.reads[0].index
    return sequences, None if read is None or len(read) != len(some) else read, bad


def _draw(
    task: Task, split: str, units: np.ndarray | None, classes_SN: np.ndarray, options: CausalOptions
) -> np.ndarray:
    """At most `rows` rows of a split with a label in each of the S label sets, complete groups in random order.

    A class that this draw would miss, of any of these sets, has its first row in that order drawn before all.
    """
    rows = np.flatnonzero((task.splits == split) & (classes_SN >= 0).all(axis=0))
    if len(rows) <= options.rows:
        return rows
    rng = np.random.default_rng([options.seed, MEASURED.index(split)])
    if units is None:
        ordered = rng.permutation(rows)
    else:
        unit = np.unique(np.asarray(units)[rows], return_inverse=True)[1].ravel()
        place = rng.permutation(unit.max() + 1)[unit]
        ordered = rows[np.argsort(place, kind="stable")]
    return np.sort(ordered[_classes_first(classes_SN[:, ordered], options.rows)[: options.rows]])


def _classes_first(classes_SN: np.ndarray, k: int) -> np.ndarray:
    """An order of N rows whose first k have every class, or as many as k rows can: int64 [N].

    It is the order given where that does. If not, one row after the other is taken first that has classes of the most
    label sets that no row before it has.
    """
    if all(set(classes_N[:k]) == set(classes_N) for classes_N in classes_SN):
        return np.arange(classes_SN.shape[1])
    is_new_SN = np.ones(classes_SN.shape, dtype=bool)
    first: list[int] = []
    while len(first) < k and is_new_SN.any():
        first.append(int(is_new_SN.sum(axis=0).argmax()))
        is_new_SN &= classes_SN != classes_SN[:, first[-1:]]
    return np.concatenate([first, np.setdiff1d(np.arange(classes_SN.shape[1]), first)])


def _check_classes(labels: np.ndarray, splits: np.ndarray, names: list[str]) -> None:
    for split in MEASURED:
        present = np.unique(labels[splits == split])
        if len(present) < 2:
            found = names[present[0]] if len(present) else "no row"
            raise DataError(
                f"the {split} rows need two classes or more, got {found!a}; add texts of another class, or take more "
                "rows (--rows)"
            )

"""selftest: compare every activation of a model with transformers, and every kind of batch with unbatched texts.

The relative error is max |a - b| / max |b| over all texts and tokens, for one point in one layer. Bounds:

- float32: 5e-6 for packing, padding and order, 1e-5 against float64.
- Other types: `NARROW` machine epsilons, of float32 where `extract` keeps float32 of float64. GPT-2 small with random
  weights measured 2.3 of bfloat16's after twelve layers, and rounding errors grow with the square root of their number.
- Points after the softmax (`result.SOFTMAX`): these bounds, times half the layer's largest attention score; half the
  model's largest where it has no point for scores.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from probekit.activations.extract import extract_task
from probekit.errors import DataError, UsageError
from probekit.hooks import HookPoint
from probekit.models.adapter.identities import Identity, identities
from probekit.models.adapter.model import AdaptedModel
from probekit.models.adapter.proof import bound_of
from probekit.models.base import LanguageModel
from probekit.models.family import LOGITS
from probekit.options import ExtractArguments
from probekit.options.check import check_whole
from probekit.points import OF_SOURCES, PAIR_POINTS, POINTS, Place, base_name
from probekit.tasks import Task
from probekit.verification.compared_runs import ROUTED, ComparedRuns, Errors, LeftOut, TextActivations
from probekit.verification.inputs import inputs_for
from probekit.verification.references import (
    NotRun,
    Reference,
    TextIds,
    Unavailable,
    adapter_reference,
    float64_reference,
    rows_of_text,
    run_single,
    transformers_reference,
)
from probekit.verification.result import CHECKS, SOFTMAX, Figure, IdentityErrors, PointErrors, SelfTest

MEMORY = 512e6  # bytes of activations kept at once
# A hook on one of these points makes the model compute step by step what one kernel does otherwise. They run apart from
# the other points, so that both ways are tested.
STEP_BY_STEP = (
    *(name for name in POINTS if name.endswith("_scale") and "." not in name),
    *("ln3_scale", "attn_scores", "attn_pattern", "result", "mlp_pre"),
)
NARROW = 8
FLOAT32 = {"reference": 1e-5}
FLOAT32_BATCH = 5e-6
BATCHES = {
    "packed": "packed blocks with shared prefixes",
    "padded": "texts of similar lengths, padded on the right: the class does not take packed texts",
    "one length": "texts of one length: the class takes neither packed nor padded texts",
}
SIDE_BY_SIDE = "packed blocks of texts side by side: a recurrent state follows one text"
BATCHED = ("left_pad", "right_pad", "packed", "shuffled")
EXTRACTED = ("packed", "shuffled")  # by `extract`, which keeps float32 of float64


def bounds_of(dtype: torch.dtype) -> dict[str, float]:
    """Check -> the largest relative error that passes, for a model in `dtype`."""
    if dtype == torch.float32:
        return {check: FLOAT32.get(check, FLOAT32_BATCH) for check in CHECKS}
    eps, kept = torch.finfo(dtype).eps, torch.finfo(torch.float32).eps
    return {check: NARROW * (max(eps, kept) if check in EXTRACTED else eps) for check in CHECKS}


@torch.no_grad()
def selftest(model: LanguageModel, seed: int = 0) -> SelfTest:
    """Check every point of a model against transformers, and batched against unbatched.

    Unbatched texts are compared with `transformers` in float64, which loads the model's folder itself; points that
    transformers does not compute, with this project's own model in float64. Packed blocks with shared prefixes (as in
    `extract`, of every token and of the last alone), left padding, right padding and another order are then compared
    with the unbatched texts. It fails as well where transformers has a class for the model that cannot run it.

    Args:
        model: from `load_model`.
        seed: of the random token ids; a model with a tokenizer reads sentences as well.

    Returns:
        SelfTest: `passed`, `rows`, `bounds`; `describe()` is the table.
    """
    if not isinstance(model, LanguageModel):
        raise UsageError(f"expected a model from load_model, got {model!a:.60}; load it first")
    texts = inputs_for(model, check_whole("seed", seed, 0))
    references, oracle, oracle_failed = _references(model, texts[0])
    errors = Errors()
    runs = _comparisons(model, references, errors)
    for part in _parts(model, texts):
        _check(model, texts, part, references, runs, seed)
    errors.largest_score = max(reference.largest_score() for reference in references)
    figures = _figures(model, errors)
    return SelfTest(
        model=model.name,
        dtype=str(model.dtype).removeprefix("torch."),
        device=str(model.device),
        texts=len(texts),
        tokens=sum(len(ids) for text in texts for ids in text),
        oracle=oracle,
        oracle_failed=oracle_failed,
        bounds=bounds_of(model.dtype),
        softmax=max((_softmax(errors, name) for name in model.points if ".blocks." in f".{name}"), default=1.0),
        batches=BATCHES[model.batching] if model.forks else SIDE_BY_SIDE,
        rows=_rows(figures, references),
        first=next((figure for figure in figures if not figure.passed), None),
        left_out=_left_out(runs, texts),
        unchecked=_unchecked(model, errors),
        identities=_identities(model, texts) if isinstance(model, AdaptedModel) else (),
    )


def _identities(model: AdaptedModel, texts: list[TextIds]) -> tuple[IdentityErrors, ...]:
    """The largest error of every sum, by kind of layer: of each text by itself, and of one padded batch."""

    def batch() -> None:
        tokens, mask, _ = _padded(model, [ids for (ids,) in texts], left=False)
        model(tokens, attention_mask=mask, return_logits=False)

    runs = [lambda ids=ids: model(torch.tensor([ids]), return_logits=False) for (ids,) in texts]
    runs += [batch] if model.batching != "one length" else []
    found = [one for run in runs for one in identities(model, run)]
    by_kind: dict[tuple[str, str], list[Identity]] = {}
    for one in found:
        by_kind.setdefault((one.name, one.kind), []).append(one)
    return tuple(
        IdentityErrors(name, kind, len({one.layer for one in same}), worst.layer, worst.error, bound_of(model.dtype))
        for (name, kind), same in by_kind.items()
        for worst in [max(same, key=lambda one: one.error)]
    )


def _comparisons(model: LanguageModel, references: list[Reference], errors: Errors) -> dict[str, ComparedRuns]:
    """The kinds of runs: each reference by its name, each kind of batch by that of its check, and "last"."""
    checks = {**{reference.name: "reference" for reference in references}, **{check: check for check in BATCHED}}
    return {run: ComparedRuns(check, model, errors) for run, check in {**checks, "last": "packed"}.items()}


def _left_out(runs: dict[str, ComparedRuns], texts: list[TextIds]) -> dict[str, LeftOut]:
    """For each check that could not compare every token at every point, how many tokens are left out."""
    left_out = {}
    for check in CHECKS:
        ties = [run for run in runs.values() if run.check == check]
        kept = [min(each.comparable(i, LOGITS, len(text[-1])) for each in ties) for i, text in enumerate(texts)]
        layers = [layer for each in ties if (layer := each.first_layer()) is not None]
        if layers:
            left_out[check] = LeftOut(sum(len(text[-1]) for text in texts) - sum(kept), min(layers))
    return left_out


def _unchecked(model: LanguageModel, errors: Errors) -> str | None:
    """The first point and check, in forward order, at which no token of any text could be compared."""
    places = ((name, check) for name in [*model.points, LOGITS] for check in CHECKS)
    found = next(((name, check) for name, check in places if errors.is_unchecked(check, name)), None)
    return found and f"{found[0] if found[0] == LOGITS else str(Place.of(found[0]))}, {CHECKS[found[1]]}"


def _references(model: LanguageModel, text: TextIds) -> tuple[list[Reference], str, bool]:
    """The references, what transformers computed or why nothing, and whether it failed to."""
    if isinstance(model, AdaptedModel):
        reference, oracle = adapter_reference(model)
        return [reference], oracle, False
    own = float64_reference(model, text)
    try:
        transformers, oracle = transformers_reference(model, text)
    except (Unavailable, NotRun) as reason:
        return [own], str(reason), isinstance(reason, NotRun)
    return [transformers, own], oracle, False


@dataclass(frozen=True)
class _Part:
    """Points whose activations are kept at once."""

    names: list[str]
    layers: list[int]

    @property
    def points(self) -> list[str]:
        return [name for name in self.names if name != LOGITS]


def _parts(model: LanguageModel, texts: Sequence[TextIds]) -> Iterator[_Part]:
    """All points, in parts whose activations fit into MEMORY; the first part has the logits.

    Each part has its routers' points, which say where the rest can be compared.
    """
    lengths = [max(map(len, text)) for text in texts]
    per_layer = max(1, _bytes_per_token(model, max(lengths))) * sum(lengths)
    at_once = max(1, int(MEMORY / per_layer))
    places = {name: Place.of(name) for name in model.points}
    n_layers = max(model.n_layers_of(point) for point, _ in places.values())
    for step_by_step in (False, True):
        for first in range(0, n_layers, at_once):
            layers = list(range(first, min(first + at_once, n_layers)))
            wanted = {*layers, None} if first == 0 else set(layers)
            names = [
                name
                for name, (point, layer) in places.items()
                if layer in wanted
                and (point in ROUTED or (base_name(point).removeprefix("cross_") in STEP_BY_STEP) == step_by_step)
            ]
            yield _Part(names + [LOGITS] * (first == 0 and model.has_logits), layers)


def _bytes_per_token(model: LanguageModel, longest: int) -> int:
    """Bytes per token of all points of one layer."""
    in_layer = [(Place.of(name), point.axes.split()) for name, point in model.points.items()]
    sizes = [
        [longest if axis in "MS" else model.size_of(axis, *place) or 1 for axis in axes]
        for place, axes in in_layer
        if place[1] == 0
    ]
    return 4 * sum(math.prod(axes) for axes in sizes)


def _check(
    model: LanguageModel,
    texts: list[TextIds],
    part: _Part,
    references: list[Reference],
    runs: dict[str, ComparedRuns],
    seed: int,
) -> None:
    singles = [run_single(model, text, part.names) for text in texts]
    for reference in references:
        _check_reference(texts, singles, part, reference, references, runs[reference.name])
    if model.batching == "packed":
        _check_padded(model, texts, singles, part, runs["left_pad"])
    if model.batching != "one length":
        _check_padded(model, texts, singles, part, runs["right_pad"])
    _check_packed(model, texts, singles, part, runs["packed"], np.arange(len(texts)))
    runs["last"].include(runs["packed"])  # the same blocks, of which it sees one token a text
    _check_packed(model, texts, singles, part, runs["last"], np.arange(len(texts)), last=True)
    _check_packed(model, texts, singles, part, runs["shuffled"], np.random.default_rng(seed).permutation(len(texts)))


def _check_reference(
    texts: list[TextIds],
    singles: Sequence[TextActivations],
    part: _Part,
    reference: Reference,
    references: list[Reference],
    run: ComparedRuns,
) -> None:
    """Compare the points that no earlier reference computes; its routers' points come along in any case."""
    own = {name for name in part.names if _reference_of(_point(name), references) is reference}
    routed = {name for name in part.names if _point(name) in ROUTED and _point(name) in reference.points}
    names = [name for name in part.names if name in own | routed] if own else []
    for i, (text, single) in enumerate(zip(texts, singles, strict=True)) if names else ():
        wanted = reference.run(text, names)
        for name in names:
            run.add(i, name, single[name], wanted)


def _reference_of(point: str, references: list[Reference]) -> Reference:
    return next(reference for reference in references if point in reference.points)


def _point(name: str) -> str:
    return name if name == LOGITS else Place.of(name)[0]


def _check_padded(
    model: LanguageModel, texts: list[TextIds], singles: Sequence[TextActivations], part: _Part, run: ComparedRuns
) -> None:
    """Compare one padded batch of all texts, three tokens wider than the longest."""
    sides = [_padded(model, side, left=run.check == "left_pad") for side in zip(*texts, strict=True)]
    masks = dict(zip(("source_mask", "attention_mask")[-len(sides) :], [mask for _, mask, _ in sides], strict=True))
    spans = list(zip(*(spans for _, _, spans in sides), strict=True))

    def hook(x: Tensor, point: HookPoint) -> None:
        for text, single in enumerate(singles):
            run.add(text, point.name, rows_of_text(x, point, text, spans[text]), single)

    logits = model.run_with_hooks(
        *(tokens for tokens, _, _ in sides),
        **masks,
        fwd_hooks=[(part.points, hook)],
        return_logits=LOGITS in part.names,
    )
    for text, single in enumerate(singles) if LOGITS in part.names else ():
        run.add(text, LOGITS, logits[text, spans[text][-1]], single)


def _padded(model: LanguageModel, texts: Sequence[list[int]], left: bool) -> tuple[Tensor, Tensor, list[slice]]:
    cfg = model.cfg
    width = min(cfg.n_ctx, max(map(len, texts)) + 3)
    tokens = torch.full((len(texts), width), cfg.d_vocab - 1)
    mask = torch.zeros(tokens.shape, dtype=torch.bool)
    spans = [slice(width - len(ids), width) if left else slice(0, len(ids)) for ids in texts]
    for text, (ids, span) in enumerate(zip(texts, spans, strict=True)):
        tokens[text, span] = torch.tensor(ids)
        mask[text, span] = True
    return tokens.to(model.device), mask.to(model.device), spans


def _check_packed(
    model: LanguageModel,
    texts: list[TextIds],
    singles: Sequence[TextActivations],
    part: _Part,
    run: ComparedRuns,
    order: np.ndarray,
    last: bool = False,
) -> None:
    """Compare the packed blocks that `extract` computes for the texts in this order, at all tokens or the last."""
    try:
        extracted = _extracted(model, [texts[i] for i in order], part, "last" if last else "all")
    except DataError:  # NaN or infinity: fail the points that have some in an unbatched text, or else all

        def is_sound(x: Tensor) -> bool:
            return bool((x.isfinite() | (x == -torch.inf)).all())

        unsound = [name for name in part.points if not all(is_sound(single[name]) for single in singles)]
        for name in unsound or part.points:
            run.errors.fail(run.check, name)
        return
    for name, per_text in extracted.items():
        for i, got in zip(order, per_text, strict=True):
            run.add(int(i), name, got, singles[i], last)


def _extracted(model: LanguageModel, texts: list[TextIds], part: _Part, position: str) -> dict[str, list[Tensor]]:
    """Name of a point -> its activations from `extract` for each text; one extraction per stack.

    At the last token alone pairs of tokens are left out, so that the last block computes what is read alone.
    """
    left_out = OF_SOURCES if position == "all" else (*OF_SOURCES, *PAIR_POINTS)
    task = Task("selftest", [text[0] for text in texts], targets=[text[-1] for text in texts])
    extracted: dict[str, list[Tensor]] = {}
    for stack in dict.fromkeys(_point(name).rpartition(".")[0] for name in part.points):
        names = [name for name in part.points if _point(name).rpartition(".")[0] == stack]
        points = list(dict.fromkeys(_point(name) for name in names if _point(name) not in left_out))
        depth = max((model.n_layers_of(point) for point in points), default=0) or model.n_layers
        layers = [layer for layer in part.layers if layer < depth]
        if points and layers:
            acts = extract_task(
                model, task, ExtractArguments(points=points, layers=layers, position=position, progress=False)
            )
            extracted |= {name: acts.per_text(name) for name in names if _point(name) in points}
    return extracted


def _softmax(errors: Errors, name: str) -> float:
    """The factor of the bounds of points after the softmax in this point's layer."""
    block = name[: name.index(".", name.index("blocks.") + len("blocks."))]
    attention = "cross_attn" if "cross_attn" in name else "attn"
    scores = f"{block}.{attention}.hook_attn_scores"
    return max(1, (errors.size(scores) if errors.has(scores) else errors.largest_score) / 2)


def _figures(model: LanguageModel, errors: Errors) -> list[Figure]:
    """One figure for every point, layer and check, in the order of the forward."""
    bounds = bounds_of(model.dtype)
    figures = []
    for name in [*model.points, LOGITS]:
        point, layer = (LOGITS, None) if name == LOGITS else Place.of(name)
        for check, bound in bounds.items():
            error = errors.relative(check, name)
            factor = _softmax(errors, name) if base_name(point).removeprefix("cross_") in SOFTMAX else 1
            if error is not None:
                figures.append(Figure(point, layer, check, error, bound * factor))
    return figures


def _rows(figures: list[Figure], references: list[Reference]) -> tuple[PointErrors, ...]:
    """One row per point, with the worst layer's figure for each check."""
    worst: dict[str, dict[str, Figure]] = {}
    for figure in figures:
        row = worst.setdefault(figure.point, {})
        row[figure.check] = max(row.get(figure.check, figure), figure, key=lambda f: f.error)
    points = [point for point in (*POINTS, LOGITS) if point in worst]
    return tuple(PointErrors(point, _reference_of(point, references).name, worst[point]) for point in points)

"""Verify an import: compute a sample of its rows with our own forward pass, and compare.

Engines have returned wrong states without an error: layers off by one, the last one after the final norm, another
token's. Each place has a tolerance of its own, because rounding grows with depth and with the model: it is measured on
the same rows, as the distance between a bfloat16 and a float32 run of the model.

Axes: N examples, R rows of an example at a place, D width of a place.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probekit.activations.imports.plan import ImportPlan, RowCheck
from probekit.activations.plan.build import plan_extraction, position_of_rows
from probekit.activations.run.loop import compute_in_memory
from probekit.errors import DataError, ProbekitError, UsageError
from probekit.machine.devices import DTYPES, find_device, free_bytes
from probekit.machine.progress import progress_bar
from probekit.models.base import LanguageModel
from probekit.models.load import load_model, source_here
from probekit.options import ExtractOptions, ImportOptions
from probekit.points import FOLLOWED_BY_OUTPUT, Place
from probekit.selections import ALL
from probekit.tasks.base import Task
from probekit.text import counted, printable

N_ROWS = 20
# The farthest of 20 rows of a run by transformers, relative to our own farthest row in bfloat16, at each of the layers
# of two trained models (4 and 5 blocks) and four random ones (12 to 28), with either of its attentions: at most 1.7 in
# bfloat16, 0.28 in float16 and 2^-12.6 in float32. vLLM itself was not run.
MARGIN = 4
ROUNDING = {"bfloat16": 1.0, "float16": 1 / 4, "float32": 2.0**-13}

States = Mapping[Place, Tensor]


def plan_check(options: ImportOptions, task: Task, outline: LanguageModel, bos: bool | None) -> RowCheck:
    """The rows to verify; none, with the reason, where nobody asked and the weights are not at hand.

    Args:
        options: of the import, with a model.
        task: the N examples.
        outline: that model without its weights.
        bos: whether its texts begin with a BOS; None for the default of `extract`.
    """
    name, why_not = str(options.model), ""
    if options.verify is None:
        here = source_here({"name_or_path": name})
        needed, free = 4 * sum(p.numel() for p in outline.parameters()), free_bytes(find_device("auto"))
        if here is None:
            why_not = "its weights are not on this machine"
        elif free is not None and needed > free:
            why_not = f"its {needed / 1e9:,.1f} GB in float32 do not fit the {free / 1e9:,.1f} GB that are free"
        else:
            name = str(here["name_or_path"])
    n = N_ROWS if options.verify is None else options.verify
    n = 0 if why_not else min(n, len(task))
    rows = np.sort(np.random.default_rng(options.seed).choice(len(task), n, replace=False))
    return RowCheck(name, rows, options.seed, options.position, bos, options.verify is not None, why_not)


def verify_rows(plan: ImportPlan, progress: bool | None = None) -> dict[str, Any] | None:
    """Compare the rows of the plan's `RowCheck` with our own forward pass.

    Returns:
        What was verified, JSON-able, for the store; None where no model was named.

    Raises:
        DataError: states that differ by more than rounding; the message says where, by how much, and the likely reason.
        UsageError: a position of several tokens, where the files have one row for each example.
    """
    check = plan.check
    if check is None:
        return None
    if not len(check.rows):
        return {"rows": 0, "why_not": check.why_not}
    try:
        model = load_model(check.model, dtype="bfloat16", progress=progress)
    except ProbekitError as error:  # a folder without weights, say
        if check.asked:
            raise
        return {"rows": 0, "why_not": str(error)}
    with progress_bar("verify", "rows", 2 * len(check.rows), progress) as bar:
        low = []
        for row in check.rows.tolist():
            low.append(_own(model, plan, row, plan.places, torch.bfloat16))
            bar.advance(1)
        del model  # before the larger one is loaded
        model = load_model(check.model, dtype="float32", progress=progress)
        found = _Errors(plan)
        neighbours = [
            other for place in plan.places for other in _neighbours(place, model.n_layers) if _has(model, other)
        ]
        for row, rounded in zip(check.rows.tolist(), low, strict=True):
            own = _own(model, plan, row, [*plan.places, *neighbours])
            found.add(row, _given(plan, row), own, rounded)
            bar.advance(1)
    if wrong := found.farthest():
        raise DataError(f"{_difference(plan, found, *wrong)}: {_reason(model, plan, found, *wrong)}")
    for (place, other), n in found.nearer.items():  # blocks may change less than rounding allows
        if 2 * n > len(check.rows):
            raise DataError(
                f"the states of {place} are nearer to {other} of {check.model!a:.60} in {n:,} of "
                f"{counted(len(check.rows), 'row')}: {_misplaced(place, other, model.n_layers)}"
            )
    return {
        "rows": len(check.rows),
        "seed": check.seed,
        "model": model.name,
        "model_fingerprint": model.fingerprint(),
        "errors": {str(place): [max(found.errors[place]), found.tolerance(place)] for place in plan.places},
    }


def verified_text(record: Mapping[str, Any] | None) -> str:
    """What `verify_rows` returned, in words: how many rows, and the largest error with its tolerance."""
    if not record:
        return "no (no model was named)"
    if not record["rows"]:
        return f"no ({record['why_not']})" if record["why_not"] else "no"
    place, (error, most) = max(record["errors"].items(), key=lambda one: one[1][0] / one[1][1])
    return (
        f"{counted(record['rows'], 'row')} against {printable(record['model'])}; largest relative error {error:.2g} at "
        f"{place}, of {most:.2g} allowed"
    )


@dataclass(eq=False)
class _Errors:
    """Relative errors of the rows that were compared so far.

    Attributes:
        plan: the import.
        errors: of the files, by place: the largest of each example.
        rounding: of our own run in bfloat16, alike.
        types: the type whose precision the values have, which may be coarser than that of the files.
        nearer: in how many rows a place is nearer to a neighbour than to itself, by the two.
    """

    plan: ImportPlan
    errors: dict[Place, list[float]] = field(default_factory=dict)
    rounding: dict[Place, list[float]] = field(default_factory=dict)
    types: dict[Place, str] = field(default_factory=dict)
    nearer: Counter[tuple[Place, Place]] = field(default_factory=Counter)

    def add(self, row: int, given: States, own: States, rounded: States) -> None:
        """Compare one example."""
        for place in self.plan.places:
            if len(given[place]) != len(own[place]):
                raise UsageError(
                    f"the files have {counted(len(given[place]), 'row')} for each example, and "
                    f"{self.plan.task.ids[row]!a:.60} has {counted(len(own[place]), 'token')} at that position; verify "
                    "with the --position of one token, or mean"
                )
            self.errors.setdefault(place, []).append(_error(given[place], own[place]))
            self.rounding.setdefault(place, []).append(_error(rounded[place], own[place]))
            for other in [one for one in _neighbours(place, self.plan.n_layers) if one in own]:
                self.nearer[place, other] += _error(given[place], own[other]) < self.errors[place][-1]
            seen = self.types.get(place, "bfloat16")
            self.types[place] = max(seen, _precision(given[place]), key=_fineness)

    def tolerance(self, place: Place, dtype: str | None = None) -> float:
        """The largest honest error at a place, in the type that its values have, or in another one."""
        if dtype is None:
            known = [self.types[place], self.plan.source.type_of(place), self.plan.dtype]
            dtype = min(known, key=_fineness)
        honest = MARGIN * ROUNDING[dtype] * max(self.rounding[place])
        return max(honest, torch.finfo(DTYPES[dtype]).eps)  # states that bfloat16 holds exactly have no error of ours

    def bad(self, dtype: str | None = None) -> Iterator[tuple[float, Place, int]]:
        """(error relative to the tolerance, place, number of the row) where that is more than 1."""
        for place, errors in self.errors.items():
            most = self.tolerance(place, dtype)
            yield from ((error / most, place, i) for i, error in enumerate(errors) if not error <= most)

    def farthest(self) -> tuple[Place, int] | None:
        """The place and the number of the row that are farthest off, if any is."""
        worst = max(self.bad(), key=lambda one: one[0], default=None)
        return None if worst is None else worst[1:]


def _fineness(dtype: str) -> int:
    """Types from coarse to fine."""
    return ("bfloat16", "float16", "float32", "float64").index(dtype)


def _precision(x: Tensor) -> str:
    """The coarsest type that holds these values exactly: states of a bfloat16 run are often saved as float32."""
    for dtype in ("bfloat16", "float16"):
        if torch.equal(x, x.to(DTYPES[dtype]).to(x.dtype)):
            return dtype
    return "float32"


def _error(x_RD: Tensor, y_RD: Tensor) -> float:
    """The largest distance of a row from its reference, relative to the reference's length."""
    size_R = y_RD.norm(dim=1).clamp_min(torch.finfo(torch.float32).tiny)
    return float(((x_RD - y_RD).norm(dim=1) / size_R).max())


def _neighbours(place: Place, n_layers: int) -> list[Place]:
    """The places one block before and after one of the residual stream."""
    if place.layer is None or place.point not in ("resid_pre", "resid_post"):
        return []
    at = place.layer + (place.point == "resid_post")
    inside = [i for i in (at - 1, at + 1) if 0 <= i <= n_layers]
    return [Place("resid_pre", i) if i < n_layers else Place("resid_post", n_layers - 1) for i in inside]


def _given(plan: ImportPlan, row: int) -> dict[Place, Tensor]:
    """The rows of one example as the store will keep them, float64 [R, D]."""
    values = plan.source.rows(np.array([row]))
    return {place: x.to(DTYPES[plan.dtype]).double() for place, x in values.items()}


def _own(
    model: LanguageModel,
    plan: ImportPlan,
    row: int,
    places: Iterable[Place],
    dtype: torch.dtype = torch.float32,
    **others: Any,
) -> dict[Place, Tensor]:
    """The rows of one example by our own forward pass, float64 [R, D]; `others` are options of the extraction."""
    check, places = plan.check, list(places)
    assert check is not None
    one = plan.task.subset(np.array([row]))
    layers = sorted({layer for _, layer in places if layer is not None})
    how = {"position": position_of_rows(check.position, plan.task, one), "bos": check.bos, **others}
    options = ExtractOptions(
        points=list(dict.fromkeys(point for point, _ in places)), layers=layers or "all", dtype=dtype, **how
    )
    _, tensors = compute_in_memory(plan_extraction(model, one, options), False)
    return {place: tensors[place].cpu().double() for place in places}


def _difference(plan: ImportPlan, found: _Errors, place: Place, i: int) -> str:
    """What differs most, and how many rows do."""
    check = plan.check
    assert check is not None
    n = len({row for _, _, row in found.bad()})
    example = plan.task.ids[int(check.rows[i])]
    return (
        f"{place} of example {example!a:.60} is {found.errors[place][i]:.2g} (relative) off what {check.model!a:.60} "
        f"computes, and rounding allows {found.tolerance(place):.2g}; {n:,} of {counted(len(check.rows), 'row')} differ"
    )


def _reason(model: LanguageModel, plan: ImportPlan, found: _Errors, place: Place, i: int) -> str:
    """The likely reason, and what to do: the first hypothesis that explains the row that is farthest off."""
    check = plan.check
    assert check is not None
    row = int(check.rows[i])
    given = _given(plan, row)[place]

    own, largest = _own(model, plan, row, [place])[place], max(found.tolerance(one) for one in plan.places)

    def fits(other: Tensor, most: float) -> bool:
        """Whether the states are another one's, which they are nearer to than to what was asked for."""
        return other.shape == given.shape and _error(given, other) <= min(most, _error(given, own))

    # Of a place that is not in the files no tolerance was measured, and rounding grows with depth.
    others = _own(model, plan, row, [one for one in _candidates(model, place) if one != place])
    most = {one: found.tolerance(one) if one in plan.places else largest for one in others}
    fitting = [one for one in others if fits(others[one], most[one])]
    if fitting:
        return _misplaced(place, min(fitting, key=lambda one: _error(given, others[one])), model.n_layers)
    if len(given) == 1:
        tokens = _own(model, plan, row, [place], position=ALL)[place]
        rest = [j for j, x in enumerate(tokens) if not torch.allclose(x, own[0])]
        if same := [j for j in rest if fits(tokens[j][None], found.tolerance(place))]:
            return f"they are those of token {same[0]} of the text; save the token of --position, or name that one"
    if model.tokenizer is not None and model.tokenizer.bos_token_id is not None:
        with_bos = not check.bos
        if fits(_own(model, plan, row, [place], bos=with_bos)[place], found.tolerance(place)):
            return f"they were computed {'with' if with_bos else 'without'} a BOS, which extract does not do here"
    for dtype in ("float16", "bfloat16"):
        if not list(found.bad(dtype)):
            return f"they agree to the precision of {dtype} only, so store them in it (--store-dtype)"
    return _other_weights(plan, found)


def _candidates(model: LanguageModel, place: Place) -> list[Place]:
    """The places whose states could have been taken for those of this one: the residual stream and the same point."""
    n = model.n_layers
    known = [*(Place("resid_pre", i) for i in range(n)), Place("resid_post", n - 1), Place("ln_final", None)]
    own = [] if place.layer is None or place.point in FOLLOWED_BY_OUTPUT else [place.point]
    known += [Place(point, i) for point in own for i in range(n)]
    return [one for one in dict.fromkeys(known) if _has(model, one)]


def _has(model: LanguageModel, place: Place) -> bool:
    try:
        return bool(model.resolve(place))
    except UsageError:
        return False


def _misplaced(place: Place, found: Place, n_layers: int) -> str:
    """That the states under one place are those of another one."""
    if found.point == "ln_final":
        return "they are the output of the final norm; take them before it, or name them ln_final"
    if place.point == "ln_final":
        return f"they are those of {found}, before the final norm; name them so"
    shifted = ", so the layers are shifted by one" if found in _neighbours(place, n_layers) else ""
    return f"they are those of {found}{shifted}; name the layers that were taken"


def _other_weights(plan: ImportPlan, found: _Errors) -> str:
    """From which place on the states differ, which tells other texts from other weights."""
    bad = {place for _, place, _ in found.bad()}
    first = next(place for place in plan.places if place in bad)
    if first != plan.places[0]:
        return f"they agree before {first}, so the weights differ from there on: another checkpoint, or quantised ones"
    if str(first) in ("embed", "resid_pre.0"):
        return "even the embeddings differ, so these are other texts, in another order, or of another model"
    return "no other layer, token or precision explains it: another model, other weights or other texts"

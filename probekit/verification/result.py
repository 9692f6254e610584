"""The result of a self-test: the largest relative error of every point in every check, with its bound."""

import math
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from probekit.points import Place
from probekit.tables import text_table
from probekit.text import printable
from probekit.verification.compared_runs import LeftOut

CHECKS = {
    "reference": "reference",
    "packed": "packed",
    "left_pad": "left pad",
    "right_pad": "right pad",
    "shuffled": "shuffled",
}  # name -> heading
# A softmax turns an absolute error d of its scores into an error of up to d / 2 of the pattern (|dp| <= 2 p (1 - p) d).
# With large scores, the points after it in the same layer are therefore less exact than the scores.
SOFTMAX = ("attn_pattern", "z", "result", "attn_out", "mixer_out")
HEADER = ["point", "layer", "against", *CHECKS.values()]
SUMS = ["what adds up", "layers with", "layer", "largest"]
LEGEND = (
    "Each figure is max |a - b| / max |b| over all tokens, in the worst layer.",
    "reference: one text at a time, against float64, computed by what the column 'against' names.",
    "others: packed blocks with shared prefixes (extract), padded batches, shuffled texts; against one text at a time.",
)


@dataclass(frozen=True)
class Figure:
    """The largest relative error of one point in one check.

    Attributes:
        point: short name, or "logits".
        layer: the layer with the largest error; None for a point that belongs to no layer.
        check: one of `CHECKS`.
        error: max |a - b| / max |b|; infinite if there is NaN, or infinity in one of the two only.
        bound: the largest error that passes.
    """

    point: str
    layer: int | None
    check: str
    error: float
    bound: float

    @property
    def passed(self) -> bool:
        """Whether the error is within its bound."""
        return self.error <= self.bound

    def __str__(self) -> str:
        place = str(Place(self.point, self.layer))
        return f"{place}, {CHECKS[self.check]}: {self.error:.1e} (bound {self.bound:.1e})"

    def as_dict(self) -> dict[str, Any]:
        """JSON-able; an error that is not finite is None."""
        error = self.error if math.isfinite(self.error) else None
        return {"layer": self.layer, "error": error, "bound": self.bound, "passed": self.passed}


@dataclass(frozen=True)
class PointErrors:
    """The errors of one point.

    Attributes:
        point: short name, or "logits".
        against: what computed the reference: "transformers", or "float64" for probekit's own model.
        figures: check -> figure; checks that do not reach the point are left out.
    """

    point: str
    against: str
    figures: dict[str, Figure]

    @property
    def worst(self) -> Figure:
        """The figure with the largest ratio to its bound."""
        return max(self.figures.values(), key=lambda figure: figure.error / figure.bound)

    @property
    def cells(self) -> list[str]:
        """The row of the table."""
        layer = "" if self.worst.layer is None else str(self.worst.layer)
        shown = {check: f"{one.error:.1e}" + ("" if one.passed else " !") for check, one in self.figures.items()}
        return [self.point, layer, self.against, *(shown.get(check, "-") for check in CHECKS)]


@dataclass(frozen=True)
class IdentityErrors:
    """How exactly a sum held in the blocks of one kind, in every text and in a batch of all.

    Attributes:
        name: the sum, such as "resid_pre + attn_out = resid_mid".
        kind: of the layers: with attention, with another mixer, with an MLP alone.
        layers: how many there are.
        layer: that with the largest error.
        error: max |a - b| / max |b|.
        bound: the largest error that passes.
    """

    name: str
    kind: str
    layers: int
    layer: int
    error: float
    bound: float

    @property
    def passed(self) -> bool:
        """Whether the error is within its bound."""
        return self.error <= self.bound

    def __str__(self) -> str:
        return f"{self.name} in layer {self.layer}: {self.error:.1e} (bound {self.bound:.1e})"

    @property
    def cells(self) -> list[str]:
        """The row of the table."""
        error = f"{self.error:.1e}" + ("" if self.passed else " !")
        return [self.name, f"{self.kind} ({self.layers})", str(self.layer), error]


@dataclass(frozen=True, repr=False)
class SelfTest:
    """The result of `selftest`.

    Attributes:
        model: its name.
        dtype: the type that the model computes in.
        device: where it ran.
        texts: number of texts.
        tokens: number of their tokens.
        oracle: what transformers computed, or why it was not used.
        bounds: check -> the largest relative error that passes.
        softmax: the largest factor on the bounds of `SOFTMAX`: half a layer's largest attention score, at least 1.
        first: the first figure in forward order that exceeds its bound; None if there is none.
        rows: one per point, in forward order.
        batches: which batches `extract` makes for this model.
        left_out: check -> the tokens that it did not compare at every point, because rounding decided between experts.
        unchecked: the first point and check for which this left no token at all; None if there is none.
        oracle_failed: whether transformers has a class for the model that could not run it; `oracle` says why.
        identities: what adds up in the blocks of a wrapped model; the points of other models are defined by their sums.
    """

    model: str
    dtype: str
    device: str
    texts: int
    tokens: int
    oracle: str
    bounds: dict[str, float]
    softmax: float
    rows: tuple[PointErrors, ...]
    first: Figure | None
    batches: str = ""
    left_out: dict[str, LeftOut] = field(default_factory=dict)
    unchecked: str | None = None
    oracle_failed: bool = False
    identities: tuple[IdentityErrors, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether all is within its bound, every point was checked, and transformers ran a model that it has."""
        return self.first is None and self.unchecked is None and not self.oracle_failed and self.unequal is None

    @property
    def unequal(self) -> IdentityErrors | None:
        """The first sum that exceeds its bound; None if there is none."""
        return next((one for one in self.identities if not one.passed), None)

    @property
    def worst(self) -> Figure:
        """The figure with the largest ratio to its bound; ties go to the first in forward order."""
        return max((row.worst for row in self.rows), key=lambda figure: figure.error / figure.bound)

    @property
    def verdict(self) -> str:
        """One line: passed, or the worst point, layer and check with figure and bound, or what was not checked."""
        n = sum(len(row.figures) for row in self.rows)
        if self.first is None and self.unequal is not None:
            return f"failed: {self.unequal}"
        if self.first is None and self.unchecked is not None and not self.oracle_failed:
            return (
                f"undecided: rounding chose between experts in every text, so that nothing was left to compare at "
                f"{self.unchecked}; in float32 this is rare, so try --dtype float32 or another --seed"
            )
        if self.first is None:
            if self.oracle_failed:
                return f"failed: {printable(self.oracle)}; against float64, {n} figures are within their bounds"
            return f"passed: {n} figures within their bounds; closest to its bound: {self.worst}"
        failed = sum(not figure.passed for row in self.rows for figure in row.figures.values())
        text = f"failed: {printable(self.oracle)}; " if self.oracle_failed else "failed: "
        return text + f"{failed} of {n} figures; first in forward order: {self.first}; worst: {self.worst}"

    def as_dict(self) -> dict[str, Any]:
        """All fields as JSON-able values; an error that is not finite is None."""
        rows = [
            {"point": row.point, "against": row.against, **{check: f.as_dict() for check, f in row.figures.items()}}
            for row in self.rows
        ]
        apart = ("rows", "first", "left_out", "oracle_failed", "identities")
        names = [*(field.name for field in fields(self) if field.name not in apart), "passed", "verdict"]
        first = None if self.first is None else {"point": self.first.point, "check": self.first.check}
        first = first and first | self.first.as_dict()  # pyright: ignore[reportOptionalMemberAccess]
        left_out = {check: asdict(left) for check, left in self.left_out.items()}
        found = {name: getattr(self, name) for name in names} | {"left_out": left_out, "first": first, "rows": rows}
        sums = [{**asdict(one), "error": one.error if math.isfinite(one.error) else None} for one in self.identities]
        return found | ({"identities": sums} if sums else {})

    def describe(self) -> str:
        """Inputs, table, bounds and verdict as text."""
        parts = [f"{CHECKS[check]} {left.tokens} from layer {left.layer} on" for check, left in self.left_out.items()]
        text = "left out, as rounding chose between experts there or at a token before; tokens of each check: "
        near_ties = [text + ", ".join(parts)] if parts else []
        sums = [text_table([SUMS, *(one.cells for one in self.identities)], left=2), ""] if self.identities else []
        return "\n".join(
            [
                f"{printable(self.model)}, {self.dtype} on {self.device}: {self.texts} texts, {self.tokens} tokens",
                f"transformers: {printable(self.oracle)}",
                f"extract: {self.batches}",
                "",
                text_table([HEADER, *(row.cells for row in self.rows)], left=3),
                "",
                *sums,
                *LEGEND,
                "bounds: " + ", ".join(f"{CHECKS[check]} {bound:.1e}" for check, bound in self.bounds.items()),
                f"({', '.join(SOFTMAX)}: times half the layer's largest attention score, 1 to {self.softmax:.1f})",
                *near_ties,
                self.verdict,
            ]
        )

    def __repr__(self) -> str:  # a notebook shows the table
        return self.describe()

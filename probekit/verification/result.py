"""What a self-test found: for every point and check the largest relative error, and whether it is within its bound."""

import math
from dataclasses import dataclass
from typing import Any

from probekit.points import place_name
from probekit.text import printable

CHECKS = {
    "reference": "reference",
    "packed": "packed",
    "left_pad": "left pad",
    "right_pad": "right pad",
    "shuffled": "shuffled",
}  # name -> heading
# A softmax turns an absolute error d of its scores into one of d / 2 of the pattern (|dp| <= 2 p (1 - p) d), so what
# comes of it in its layer cannot be as exact as the scores are where these are large.
SOFTMAX = ("attn_pattern", "z", "result", "attn_out")
LEGEND = (
    "Each figure is max |a - b| / max |b| over all tokens, in the worst layer.",
    "reference: a text alone, against the same in float64, computed by what the column 'against' names.",
    "the others: packed blocks with shared prefixes (extract), padding on a side, another order; against a text alone.",
)


@dataclass(frozen=True)
class Figure:
    """The largest relative error of one point in one check.

    Attributes:
        point: short name, or "logits".
        layer: where the error is largest; None where the point belongs to no layer.
        check: one of `CHECKS`.
        error: max |a - b| / max |b|; infinite where there is NaN, or infinity where the other has none.
        bound: what the error may be at most.
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
        where = place_name((self.point, self.layer))
        return f"{where}, {CHECKS[self.check]}: {self.error:.1e} (bound {self.bound:.1e})"

    def as_dict(self) -> dict[str, Any]:
        """JSON-able; an error that is not finite is None."""
        error = self.error if math.isfinite(self.error) else None
        return {"layer": self.layer, "error": error, "bound": self.bound, "passed": self.passed}


@dataclass(frozen=True)
class Row:
    """One point.

    Attributes:
        point: short name, or "logits".
        against: what computed the reference: "transformers" or "float64" (this project's own model).
        figures: check -> figure; a check that does not reach the point is left out.
    """

    point: str
    against: str
    figures: dict[str, Figure]

    @property
    def worst(self) -> Figure:
        """The figure that is largest, measured by its bound."""
        return max(self.figures.values(), key=lambda figure: figure.error / figure.bound)


@dataclass(frozen=True)
class SelfTest:
    """The result of `selftest`.

    Attributes:
        model: its name.
        dtype: the type that the model computes in.
        device: where it ran.
        texts: how many texts were read.
        tokens: their tokens.
        oracle: what transformers did, or why it did nothing.
        bounds: check -> the largest relative error that passes.
        softmax: what multiplies the bounds of `SOFTMAX` at most: half a layer's largest attention score, 1 at least.
        first: the first figure in the order of the forward that is out of its bound; None when there is none.
        rows: one for each point, in the order of the forward.
    """

    model: str
    dtype: str
    device: str
    texts: int
    tokens: int
    oracle: str
    bounds: dict[str, float]
    softmax: float
    rows: tuple[Row, ...]
    first: Figure | None

    @property
    def passed(self) -> bool:
        """Whether every figure is within its bound."""
        return self.first is None

    @property
    def worst(self) -> Figure:
        """The figure that is largest, measured by its bound; of equal ones the first in the order of the forward."""
        return max((row.worst for row in self.rows), key=lambda figure: figure.error / figure.bound)

    @property
    def verdict(self) -> str:
        """One line: passed, or the worst point, layer and check with figure and bound."""
        n = sum(len(row.figures) for row in self.rows)
        if self.first is None:
            return f"passed: {n} figures within their bounds; nearest to its own is {self.worst}"
        failed = sum(not figure.passed for row in self.rows for figure in row.figures.values())
        return f"failed: {failed} of {n} figures; the first in the forward is {self.first}, the worst is {self.worst}"

    def as_dict(self) -> dict[str, Any]:
        """Everything as JSON-able values; an error that is not finite is None."""
        rows = [
            {"point": row.point, "against": row.against, **{check: f.as_dict() for check, f in row.figures.items()}}
            for row in self.rows
        ]
        names = ("model", "dtype", "device", "texts", "tokens", "oracle", "bounds", "softmax", "passed", "verdict")
        first = None if self.first is None else {"point": self.first.point, "check": self.first.check}
        first = first and first | self.first.as_dict()  # pyright: ignore[reportOptionalMemberAccess]
        return {**{name: getattr(self, name) for name in names}, "first": first, "rows": rows}

    def describe(self) -> str:
        """Inputs, table, bounds and verdict, as lines for the terminal."""
        return "\n".join(
            [
                f"{printable(self.model)}, {self.dtype} on {self.device}: {self.texts} texts, {self.tokens} tokens",
                f"transformers: {printable(self.oracle)}",
                "",
                *self._table(),
                "",
                *LEGEND,
                "bounds: " + ", ".join(f"{CHECKS[check]} {bound:.1e}" for check, bound in self.bounds.items()),
                f"({', '.join(SOFTMAX)}: times half their layer's largest attention score, 1 to {self.softmax:.1f})",
                self.verdict,
            ]
        )

    def __str__(self) -> str:
        return self.describe()

    def _table(self) -> list[str]:
        cells = [["point", "layer", "against", *CHECKS.values()], *(_cells(row) for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]


def _cells(row: Row) -> list[str]:
    layer = "" if row.worst.layer is None else str(row.worst.layer)
    return [row.point, layer, row.against, *(_cell(row.figures.get(check)) for check in CHECKS)]


def _cell(figure: Figure | None) -> str:
    if figure is None:
        return "-"
    return f"{figure.error:.1e}" + ("" if figure.passed else " !")

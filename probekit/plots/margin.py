"""Names of lines in the right margin, next to their values and without overlap."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from probekit.plots.style import GREY, PLAIN, inches

LINE_GAP = 12.5  # points from name to name
_KEPT = 0.72  # of an axes' height that is left once the layout has made room above and below


@dataclass(frozen=True)
class MarginLabel:
    """A value and its name; `is_line` draws a line across the axes, other values are the ends of curves."""

    value: float
    name: str
    color: str
    is_line: bool = False


def draw_margin(ax: Axes, labels: Sequence[MarginLabel], values: bool) -> None:
    """Draw the lines, and name each at the right, with a leader where it had to move away from its value.

    Args:
        ax: with its final y limits.
        labels: in any order.
        values: whether to write the values after the names.
    """
    labels = sorted(labels, key=lambda label: label.value)
    low, high = ax.get_ylim()
    points = inches(ax)[1] * 72 * _KEPT
    gap = min(LINE_GAP / points, 1 / max(1, len(labels))) * (high - low)
    heights = spread([min(max(label.value, low), high) for label in labels], gap, low, high)
    for label, height in zip(labels, heights, strict=True):
        if label.is_line:
            ax.axhline(label.value, color=GREY, linewidth=1.1, linestyle=(0, (1, 1.8)), zorder=1)
        _name(ax, label, height, f" {label.value:z.3f}" if values else "")


def _name(ax: Axes, label: MarginLabel, height: float, value: str) -> None:
    low, high = ax.get_ylim()
    across = ax.get_yaxis_transform()
    ax.annotate(
        label.name + value,
        (1, min(max(label.value, low), high)),
        (1 + 0.14 / inches(ax)[0], height),
        xycoords=across,
        textcoords=across,
        color=label.color,
        fontsize="small",
        va="center",
        arrowprops={
            "arrowstyle": "-",
            "color": label.color,
            "linewidth": 0.6,
            "shrinkA": 1,
            "shrinkB": 0,
            "relpos": (0, 0.5),
        },
        annotation_clip=False,
        **PLAIN,
    )


def spread(values: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Heights for labels of sorted values: close to the values, at least `gap` apart, within the axis."""
    heights = list(values)
    for _ in range(300):  # labels that overlap push each other apart, and the ends of the axis push back
        for i in range(len(heights) - 1):
            push = max(0.0, gap - (heights[i + 1] - heights[i])) / 2
            heights[i], heights[i + 1] = heights[i] - push, heights[i + 1] + push
        heights = [min(max(height, low + gap / 2), high - gap / 2) for height in heights]
    return heights

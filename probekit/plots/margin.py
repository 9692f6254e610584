"""Names of lines in the right margin, next to their values and without overlap."""

from collections.abc import Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.text import Annotation

from probekit.charts.axes import spread
from probekit.charts.lines import MarginLabel
from probekit.plots.style import NARROW, PLAIN, SMALL, inches

LINE_GAP = 1.5  # sizes of the font from name to name
SHORT = 2.5  # inches; less high axes have no subtitle, and a legend of the curves only


def is_narrow(ax: Axes) -> bool:
    """Whether there is too little room for long texts."""
    return inches(ax)[0] < NARROW


def is_short(ax: Axes) -> bool:
    """Whether a subtitle and a whole legend would leave too little height; the layout does not change the answer."""
    place = ax.get_subplotspec()
    if place is None:
        return inches(ax)[1] < SHORT
    figure = ax.figure
    share = place.get_position(figure).height  # pyright: ignore[reportArgumentType]
    return share * figure.bbox.height / figure.get_dpi() < SHORT


def draw_margin(ax: Axes, labels: Sequence[MarginLabel]) -> None:
    """Name lines at the right, with a leader where a name had to move away from its value.

    Args:
        ax: any axes; the names are placed when the picture is drawn, whatever its limits and size are then.
        labels: in any order.
    """
    if labels:
        names: list[tuple[float, Annotation]] = []
        ax.add_artist(_Spread(ax, names))  # before the names, so that the layout finds them in their places
        names += [(label.value, _name(ax, label)) for label in sorted(labels, key=lambda label: label.value)]


def _name(ax: Axes, label: MarginLabel) -> Annotation:
    across = ax.get_yaxis_transform()
    return ax.annotate(
        label.name if is_narrow(ax) else label.text,
        (1, label.value),
        (1 + 0.14 / inches(ax)[0], label.value),
        xycoords=across,
        textcoords=ax.transAxes,
        color=label.color,
        fontsize=SMALL,
        va="center",
        arrowprops=None
        if label.look in ("above", "below")
        else {
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


class _Spread(Artist):
    """Moves names apart just before they are drawn: only then is the height of the axes known."""

    zorder = -1  # before the names

    def __init__(self, ax: Axes, names: list[tuple[float, Annotation]]) -> None:
        super().__init__()
        self.set_clip_on(False)  # what is clipped takes no part in the layout
        self._ax, self._names = ax, names

    def draw(self, renderer: RendererBase) -> None:
        """Place the names for the axes as they are now."""
        self._place()

    def get_tightbbox(self, renderer: RendererBase | None = None) -> None:
        """Nothing of its own; called by the layout, which measures the names next."""
        self._place()

    def _place(self) -> None:
        low, high = self._ax.get_ylim()
        room = 72 * inches(self._ax)[1]  # points
        size = min(SMALL, room / (LINE_GAP * len(self._names)))
        gap = LINE_GAP * size / room
        values = [min(max(value, low), high) for value, _ in self._names]
        heights = spread([_share(self._ax, value) for value in values], gap, 0, 1)
        for height, value, (_, name) in zip(heights, values, self._names, strict=True):
            name.set_fontsize(size)
            name.xy = (1, value)
            name.set_y(height)


def _share(ax: Axes, value: float) -> float:
    """A value as a share of the height of the axes, whose scale may be logarithmic."""
    return float(ax.transAxes.inverted().transform(ax.transData.transform((ax.get_xlim()[0], value)))[1])

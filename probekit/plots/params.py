"""FLOPs of a forward pass: stacked shares of the components, by model and context length."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from probekit.charts.palette import BLUE, GREEN, GREY, INK, PALE_BLUE, RED, short
from probekit.options.option import keywords
from probekit.options.picture import PictureOptions
from probekit.plots.style import PLAIN, new_figure, shown_figure, wrapped, write_figure, write_figure_title
from probekit.text import metric

Flops = Mapping[str, Mapping[int, Mapping[str, int]]]
"""Model -> context -> component -> FLOPs."""

ORANGE, PALE_GREEN, LIGHT = "#E69F00", "#7FCDB5", "#B9B9B9"
LOOKS = {  # from the bottom: work that grows with the context, then work per token
    "weighted sum": RED,
    "scores": ORANGE,
    "QKV": BLUE,
    "output projection": PALE_BLUE,
    "router": "#CC79A7",
    "MLP gate": "#00664B",
    "MLP up": GREEN,
    "MLP down": PALE_GREEN,
    "head": LIGHT,
    "embeddings and norms": INK,
}
MIXING = ("weighted sum", "scores")  # components that mix tokens
PANELS = 4  # in a row
PANEL = (2.15, 2.9)  # inches
AROUND = (0.9, 1.2)  # inches for names and headings
LEAST = 0.005  # share of all FLOPs below which a component is left out of the legend
LEAST_WRITTEN = 0.08  # share of a bar that has room for a number
ENTRY = 1.6  # inches per legend entry
Bar = tuple[str, Mapping[str, int]]


def plot_flop_shares(
    flops: Flops, figure: Figure | None = None, *, title: str | None = None, width: float | None = None
) -> Figure:
    """Draw a panel for each model, with a bar for each context; with one context, one panel with a bar for each model.

    Args:
        flops: model -> context -> component -> FLOPs of one text's forward.
        figure: where to draw; None makes a new pyplot figure, which a notebook shows.
        title: as plain text; "" for none.  [default: that these are FLOPs of a forward pass]
        width: of a new figure, in inches.  [default: by the panels]
    """
    panels = _panels(flops)
    if figure is None:
        with shown_figure(_size(panels), width) as figure:
            return plot_flop_shares(flops, figure, title=title)
    rows, columns = _grid(panels)
    axes = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel()
    for ax, (name, bars) in zip(axes, panels, strict=False):
        _draw_bars(ax, name, bars)
    for ax in axes[len(panels) :]:
        ax.set_visible(False)
    _write_around(figure, list(axes[:: int(columns)]), flops, title)
    return figure


@keywords(PictureOptions)
def save_flop_shares(flops: Flops, path: str | Path, options: PictureOptions) -> Path:
    """Write the picture as `path`.png and .svg, the same bytes for the same numbers; returns the first path.

    Args:
        flops: as for `plot_flop_shares`.
        path: of the picture; the ending .svg or .pdf writes that alone.
        options: as keyword arguments.

    Raises:
        StorageError: the disk refused.
    """
    with new_figure(_size(_panels(flops)), options.width) as figure:
        return write_figure(plot_flop_shares(flops, figure, title=options.heading), Path(path), options.formats)


def _panels(flops: Flops) -> list[tuple[str, list[Bar]]]:
    """(title, bars) of each panel."""
    if _is_single(flops):
        return [("", [(short(name, 16), of) for name, by_context in flops.items() for of in by_context.values()])]
    return [
        (short(name), [(_thousands(context), of) for context, of in by_context.items()])
        for name, by_context in flops.items()
    ]


def _is_single(flops: Flops) -> bool:
    return all(len(by_context) == 1 for by_context in flops.values())


def _grid(panels: Sequence[object]) -> tuple[int, int]:
    columns = min(PANELS, len(panels))
    return -(-len(panels) // columns), columns


def _size(panels: list[tuple[str, list[Bar]]]) -> tuple[float, float]:
    rows, columns = _grid(panels)
    wide = max(PANEL[0] * columns, max(0.42 * len(bars) for _, bars in panels) * columns, 5.2)
    return AROUND[0] + wide, AROUND[1] + PANEL[1] * rows


def _draw_bars(ax: Axes, title: str, bars: list[Bar]) -> None:
    for x, (_, of) in enumerate(bars):
        total, low = sum(of.values()), 0.0
        for name, n in _grouped(of).items():
            ax.bar(x, n / total, bottom=low, width=0.78, color=LOOKS[name], edgecolor="white", linewidth=0.5)
            low += n / total
        _write_bar(ax, x, sum(of.get(name, 0) for name in MIXING) / total, total)
    ax.set_xticks(range(len(bars)), [label for label, _ in bars], fontsize="small", **PLAIN)
    ax.set_title(title, fontsize=10, fontweight="bold", color=INK, pad=16, **PLAIN)
    ax.set_xlim(-0.6, len(bars) - 0.4)
    ax.set_ylim(0, 1)
    ax.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25%", "50%", "75%", "100%"], fontsize="small")
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


def _grouped(of: Mapping[str, int]) -> dict[str, int]:
    """FLOPs of each drawn component, from the bottom."""
    rest = sum(n for name, n in of.items() if name not in LOOKS)
    return {name: of.get(name, 0) for name in LOOKS if name in of} | {"embeddings and norms": rest}


def _write_bar(ax: Axes, x: int, mixing: float, total: int) -> None:
    """The share of the components that mix tokens, if there is room, and all FLOPs on top."""
    if mixing > LEAST_WRITTEN:
        y = max(mixing - 0.035, 0.75 * mixing)  # in the upper part, which is the scores
        ax.text(x, y, f"{mixing:.0%}", color=INK, fontsize=7, ha="center", va="center")
    ax.text(x, 1.012, metric(total), color=GREY, fontsize=7, ha="center", va="bottom")


def _write_around(figure: Figure, first: list[Axes], flops: Flops, title: str | None) -> None:
    """Axis names in the first column, the legend, and the title."""
    for ax in first:
        ax.set_ylabel("share of the FLOPs")
    contexts = {context for by_context in flops.values() for context in by_context}
    how = f"texts of {min(contexts):,} tokens" if len(contexts) == 1 else "by model and context (tokens)"
    write_figure_title(figure, f"FLOPs of a forward pass, {how}" if title is None else title)
    handles = [Patch(facecolor=LOOKS[name], label=name) for name in _named(flops)]
    note = "in a bar: share of weighted sum and scores together; above: FLOPs of one text"
    legend = figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=max(1, min(5, len(handles), int(figure.get_figwidth() / ENTRY))),
        frameon=False,
        fontsize="small",
        title="\n".join(wrapped(note, 72 * 0.97 * figure.get_figwidth())),
        title_fontsize="small",
    )
    legend.get_title().set_color(GREY)


def _named(flops: Flops) -> list[str]:
    """The components in the legend: those that are visible in any bar."""
    bars = [_grouped(of) for by_context in flops.values() for of in by_context.values()]
    return [name for name in LOOKS if any(bar.get(name, 0) > LEAST * sum(bar.values()) for bar in bars)]


def _thousands(n: int) -> str:
    """1024 -> "1k", as context lengths are written; 1000 stays "1000"."""
    return f"{n // 1024}k" if n % 1024 == 0 else f"{n}"

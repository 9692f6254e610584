"""The panel under the curve: how far the activations of each layer compress the training labels."""

from collections.abc import Sequence

from matplotlib.axes import Axes

from probekit.evaluation.results.data import ProbeData
from probekit.plots.curves import Curve
from probekit.plots.margin import MarginLabel, draw_margin
from probekit.plots.style import GREY, INK, SMALL

TIMES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10_000)  # ticks
LEAST = 1.05  # below this everywhere, the labels are not compressed


def compressions(results: ProbeData) -> list[float]:
    """Bits of the uniform code / bits of each place; none where a place has no code."""
    codes = [layer.codelength["compression"] for layer in results.layers if layer.codelength]
    return codes if len(codes) == len(results.layers) > 1 else []


def has_panel(results: ProbeData) -> bool:
    """Whether there is a compression to draw: a flat line at 1x is none."""
    return max(compressions(results), default=0) >= LEAST


def compression_note(results: ProbeData) -> list[str]:
    """What the subtitle says when the panel would be flat and is left out."""
    values = compressions(results)
    if not values or has_panel(results):
        return []
    return [f"no layer compresses the labels (at most {max(values):.2f}\N{MULTIPLICATION SIGN})"]


def draw_compression(ax: Axes, curves: Sequence[Curve]) -> None:
    """Compression by layer; dotted: from the class frequencies alone."""
    shown = [(curve, values) for curve in curves if (values := compressions(curve.results))]
    alone: dict[str, MarginLabel] = {}
    for curve, values in shown:
        ax.plot(
            curve.xs, values, color=INK if curve.is_alone else curve.color, linewidth=1.4, marker="o", markersize=2.5
        )
        code = curve.results.layers[0].codelength or {}
        times = code["uniform_bits"] / code["prior_bits"]
        text = f"class frequencies {times:.2f}"
        alone.setdefault(text, MarginLabel(times, text, GREY, is_line=True))
    every = [value for _, values in shown for value in values] + [label.value for label in alone.values()]
    low, high = min(0.9, *every), max(2.2, *every)
    ax.set_yscale("log")  # compression goes from about 1 to several hundred
    ax.set_ylim(low * 0.95, high * 1.15)
    draw_margin(ax, list(alone.values()))
    ticks = [tick for tick in TIMES if tick <= high]
    ticks = ticks if len(ticks) < 5 else [tick for tick in ticks if f"{tick}"[0] == "1"]
    ax.set_yticks(ticks, [f"{tick}\N{MULTIPLICATION SIGN}" for tick in ticks], fontsize=SMALL)
    ax.set_yticks([], minor=True)
    ax.set_ylabel("compression\nof labels", fontsize=SMALL)

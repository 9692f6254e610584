"""The scores of one text, token by token, with the prompt shaded, the thresholds and the alarms."""

from collections.abc import Sequence

from matplotlib.axes import Axes

from probekit.charts.palette import INK, PALETTE, RED, short
from probekit.plots.style import PLAIN, SMALL, shown_figure, write_headings
from probekit.scoring.watched import WatchedProbe, WatchedText
from probekit.text import counted

HEIGHT, NARROW, WIDE, TOKEN = 3.6, 5.0, 14.0, 0.2  # inches; the width grows by `TOKEN` for each token
MOST_PIECES = 64  # tokens that are written under the axis; more would overlap
PIECE = 14  # letters of a token's text
PROMPT = "#EDEDED"


def plot_watched(
    text: WatchedText,
    probes: Sequence[WatchedProbe],
    pieces: Sequence[str],
    ax: Axes | None = None,
    *,
    title: str | None = None,
    width: float | None = None,
) -> Axes:
    """Draw the score of each token, one line for each probe.

    Args:
        text: with one scored token or more.
        probes: that watched it.
        pieces: the tokens as texts; empty ones are not written.
        ax: where to draw; None makes a new pyplot figure, which a notebook shows.
        title: as plain text; "" for none.  [default: the probes]
        width: of a new figure, in inches; 3.25 is a column of a paper.  [default: by the tokens]
    """
    if ax is None:
        with shown_figure(watched_size(len(pieces)), width) as figure:
            return plot_watched(text, probes, pieces, figure.subplots(), title=title)
    n = len(pieces)
    ax.axvspan(-0.5, min(text.n_prompt, n) - 0.5, color=PROMPT, zorder=0, linewidth=0)
    for i, watched in enumerate(probes):
        scores, color = text.scores[watched.name], PALETTE[i % len(PALETTE)]
        ax.plot(scores, marker="o", markersize=3, linewidth=1.3, color=color, label=short(watched.name))
        if watched.threshold is not None:
            ax.axhline(watched.threshold, color=color, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    for alarm in text.alarms:
        ax.plot(alarm.index, alarm.score, "o", markersize=10, markerfacecolor="none", markeredgecolor=RED, zorder=4)
    ax.set_xlim(-0.5, n - 0.5)
    ax.set_ylabel("score", fontsize=SMALL, color=INK)
    ax.tick_params(labelsize=SMALL)
    ax.spines[["top", "right"]].set_visible(False)
    if any(pieces) and n <= MOST_PIECES:
        ax.set_xticks(range(n), [_shown(piece) for piece in pieces], rotation=90, fontsize=SMALL, **PLAIN)
    else:
        ax.set_xlabel("token", fontsize=SMALL, color=INK)
    if len(probes) > 1:
        ax.legend(fontsize=SMALL, frameon=False, loc="best")
    write_headings(ax, _title(probes) if title is None else title, [_says(text, probes, n)], start=7)
    return ax


def watched_size(tokens: int) -> tuple[float, float]:
    """Width and height in inches."""
    return min(WIDE, max(NARROW, 0.8 + TOKEN * tokens)), HEIGHT


def _shown(piece: str) -> str:
    """A token's text, its blank visible."""
    return short(piece.replace(" ", "␣").replace("\n", "↵"), PIECE)


def _title(probes: Sequence[WatchedProbe]) -> str:
    first = probes[0]
    return f"Score of each token at {first.place}" if len(probes) == 1 else "Scores of each token"


def _says(text: WatchedText, probes: Sequence[WatchedProbe], n: int) -> str:
    """What the picture holds, in one line."""
    read = max(0, n - text.n_prompt)
    parts = [f"prompt of {counted(min(text.n_prompt, n), 'token')} (grey), {counted(read, 'new token')}"]
    if any(watched.threshold is not None for watched in probes):
        parts.append(f"dashed: threshold; {counted(len(text.alarms), 'alarm')}")
    return "; ".join(parts)

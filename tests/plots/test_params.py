"""The picture of the shares: what is drawn is what was counted."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from probekit.models.accounting import account
from probekit.models.families import named_shape
from probekit.plots import plot_flop_shares, save_flop_shares

Flops = dict[str, dict[int, dict[str, int]]]
HOSTILE = "$x_1$ 100% \x1b[31m" + "m" * 60


def flops(*names: str, contexts: tuple[int, ...] = (1024, 16384)) -> Flops:
    shapes = {name: named_shape(name) for name in names}
    return {n: {c: account(n, shape, c).flops for c in contexts} for n, shape in shapes.items() if shape}


def drawn(of: Flops) -> Figure:
    figure = Figure(figsize=(8, 4), layout="constrained")
    return plot_flop_shares(of, figure)


def heights(figure: Figure, panel: int) -> dict[int, list[float]]:
    """Of each bar, from the bottom."""
    bars: dict[int, list[float]] = {}
    for patch in figure.axes[panel].patches:
        x, _ = patch.get_xy()  # pyright: ignore[reportAttributeAccessIssue]
        bars.setdefault(round(x + 0.4), []).append(patch.get_height())  # pyright: ignore[reportAttributeAccessIssue]
    return bars


def test_a_panel_for_each_model_and_a_bar_for_each_context() -> None:
    of = flops("gpt2", "gpt2-xl")
    figure = drawn(of)
    assert [ax.get_title() for ax in figure.axes] == ["gpt2", "gpt2-xl"]
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["1k", "16k"]
    for panel, by_context in enumerate(of.values()):
        for x, parts in enumerate(by_context.values()):
            shares = heights(figure, panel)[x]
            assert sum(shares) == pytest.approx(1)
            assert shares[:2] == pytest.approx([parts["scores"] / sum(parts.values())] * 2)
            assert shares[-1] == pytest.approx((parts["embeddings"] + parts["norms"]) / sum(parts.values()))


def test_one_context_is_one_panel_with_a_bar_for_each_model() -> None:
    figure = drawn(flops("gpt2", "gpt2-medium", "gpt2-xl", contexts=(1024,)))
    (ax,) = figure.axes
    assert [label.get_text() for label in ax.get_xticklabels()] == ["gpt2", "gpt2-medium", "gpt2-xl"]
    assert len(heights(figure, 0)) == 3


def test_the_legend_names_what_shows() -> None:
    figure = drawn(flops("gpt2"))
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["weighted sum", "scores", "QKV", "output projection", "MLP up", "MLP down", "head"]


def test_many_models_stand_in_rows() -> None:
    of = {f"model {i}": by_context for i, by_context in enumerate([flops("gpt2")["gpt2"]] * 6)}
    shown = [ax for ax in drawn(of).axes if ax.get_visible()]
    assert len(shown) == 6


def test_files_are_the_same_each_time_and_names_are_spelled_as_they_are(tmp_path: Path) -> None:
    of = {HOSTILE: flops("gpt2")["gpt2"], "b": flops("gpt2-xl")["gpt2-xl"]}
    first, second = (save_flop_shares(of, tmp_path / name) for name in ("a.png", "b.png"))
    assert first.read_bytes() == second.read_bytes()
    assert first.with_suffix(".svg").read_bytes() == second.with_suffix(".svg").read_bytes()
    assert "$x_1$ 100%" in first.with_suffix(".svg").read_text()

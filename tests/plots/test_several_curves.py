"""Several results on one axes, single places as rows, and pictures of random results: readable whatever comes."""

from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from drawn_curves import (
    BASELINES,
    CROWD,
    HOSTILE,
    check_legend,
    check_texts,
    draw,
    figure_of,
    legend_texts,
    line,
    make,
    new_axes,
    points,
    texts,
    without_validation,
)
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from probekit.charts.palette import PALETTE
from probekit.errors import UsageError
from probekit.evaluation import LayerResult, ProbeResults
from probekit.plots import plot_accuracy_by_layer, save_plot

GPT2, PYTHIA, LLAMA = make(12, full=True), make(6, full=True, model="pythia"), make(24, full=True, model="llama")


def pixels(figure: Figure) -> bytes:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return bytes(canvas.buffer_rgba())


def plain(results: ProbeResults) -> ProbeResults:
    """Without anything to compare with."""
    layers = [LayerResult(**{**vars(layer), "control": None}) for layer in results.layers]
    return ProbeResults(layers, [], results.meta)


def test_the_second_curve_has_its_own_colour_name_band_and_ring():
    ax = draw(GPT2, PYTHIA)
    for results, name, color in ((GPT2, "gpt2", PALETTE[0]), (PYTHIA, "pythia", PALETTE[1])):
        xs, ys = points(line(ax, name))
        assert xs == list(range(len(results.layers)))
        assert ys == [layer.metrics["test"]["accuracy"] for layer in results.layers]
        assert line(ax, name).get_color() == color
    bands = [collection for collection in ax.collections if collection.get_label() == "95% simultaneous band"]
    assert len(bands) == 2
    rings = [ring for ring in ax.lines if ring.get_label() == "selected on validation"]
    assert [ring.get_markeredgecolor() for ring in rings] == list(PALETTE[:2])
    assert [points(ring)[0] for ring in rings] == [[12], [6]]
    assert ax.get_title("left") == "Decoding sst2 labels"
    for name, place in (("gpt2", "resid_post.11"), ("pythia", "resid_post.5")):
        assert f"{name}: {place} (output), test accuracy 0.950 [0.930, 0.970]" in legend_texts(ax)
    assert len(legend_texts(ax)) == len(set(legend_texts(ax)))
    check_texts(ax)
    check_legend(ax)


def test_adding_curves_one_by_one_draws_each_of_them_once():
    """The picture of three calls has three curves, and what they share is drawn once."""
    ax = draw(GPT2, PYTHIA, LLAMA)
    assert [name for x in ax.lines if (name := x.get_label()) in ("gpt2", "pythia", "llama")] == [
        "gpt2",
        "pythia",
        "llama",
    ]
    assert texts(ax).count("majority 0.500") == texts(ax).count("bag-of-words 0.700") == 1
    assert texts(ax).count("sst2") == 1
    assert ax.get_xlim()[1] > 24
    check_texts(ax)


def test_one_curve_drawn_twice_on_cleared_axes_is_one_curve():
    once, twice = new_axes(), new_axes()
    plot_accuracy_by_layer(GPT2, once)
    plot_accuracy_by_layer(PYTHIA, twice)
    twice.clear()
    plot_accuracy_by_layer(GPT2, twice)
    assert pixels(figure_of(once)) == pixels(figure_of(twice))


def test_labels_colours_and_titles_can_be_given():
    ax = new_axes()
    plot_accuracy_by_layer(make(), ax, label="$first$ \x1b[31m", color="black")
    plot_accuracy_by_layer(make(task="other"), ax, title="Both")
    plot_accuracy_by_layer(make(), ax, label="third", color=PALETTE[0])
    figure_of(ax).canvas.draw()
    assert line(ax, "$first$ \\x1b[31m").get_color() == "#000000"
    assert line(ax, "other").get_color() == PALETTE[1]  # the first is taken
    assert line(ax, "third").get_color() == PALETTE[0]
    assert ax.get_title("left") == "Both"
    check_texts(ax)
    with pytest.raises(UsageError, match="color= is a color of matplotlib"):
        plot_accuracy_by_layer(make(), ax, color="no such color")
    with pytest.raises(UsageError, match="ax= is axes of matplotlib"):
        plot_accuracy_by_layer(make(), figure_of(ax))  # pyright: ignore[reportArgumentType]


def test_other_metrics_are_refused_and_nothing_is_drawn():
    ax = draw(GPT2)
    before = artists(ax), ax.get_xlim(), ax.get_ylim(), texts(ax)
    with pytest.raises(UsageError, match="show accuracy, and the results are scored by R2; draw them on"):
        plot_accuracy_by_layer(make(metric="r2"), ax)
    assert (artists(ax), ax.get_xlim(), ax.get_ylim(), texts(ax)) == before


def test_what_others_drew_stays():
    ax = new_axes()
    (theirs,) = ax.plot([0, 30], [0.1, 0.2], label="mine")
    ax.set_xlabel("depth")
    ax.set_title("their title")
    plot_accuracy_by_layer(GPT2, ax)
    later = ax.axhline(0.05, label="later")
    plot_accuracy_by_layer(PYTHIA, ax)
    figure_of(ax).canvas.draw()
    assert theirs in ax.lines
    assert later in ax.lines
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_title()) == ("depth", "accuracy", "their title")
    assert ax.get_xlim()[1] >= 30
    assert ax.get_ylim()[0] <= 0.1
    assert not {"mine", "later"} & set(legend_texts(ax))
    assert ax.get_legend() is None


def test_a_curve_that_is_there_stays_as_its_user_made_it():
    """The second curve adds its own artists; of the first only what a single curve alone has is replaced."""
    ax = draw(GPT2)
    first, (band, *_) = line(ax, "test"), ax.collections
    first.set_linewidth(5)
    ax.grid(visible=False)
    ax.spines["top"].set_visible(True)
    before = artists(ax)
    plot_accuracy_by_layer(PYTHIA, ax)
    assert {first, band} < artists(ax)
    assert first.get_linewidth() == 5
    assert first.get_label() == "gpt2"
    assert line(ax, "pythia") not in before
    gone = {str(each.get_label()) for each in before - artists(ax) if each in before and isinstance(each, Line2D)}
    assert gone == {"validation", "selected on validation", "control task", "random init"}  # have other colours now
    assert not ax.yaxis.get_gridlines()[0].get_visible()
    assert ax.spines["top"].get_visible()
    first.remove()  # and what is removed stays removed
    plot_accuracy_by_layer(LLAMA, ax)
    assert first not in artists(ax)
    assert line(ax, "llama")


def test_limits_set_by_hand_only_grow():
    ax = draw(GPT2)
    ax.set_ylim(0, 1)
    plot_accuracy_by_layer(PYTHIA, ax)
    assert ax.get_ylim()[0] <= 0
    assert ax.get_ylim()[1] >= 1


def test_panels_with_one_scale_keep_every_curve():
    figure = Figure(figsize=(14, 4.5))
    axes = figure.subplots(1, 3, sharey=True)
    for ax, results in zip(axes, (make(values=[0.9] * 5), make(values=[0.3] * 5), make()), strict=True):
        plot_accuracy_by_layer(results, ax)
    pixels(figure)
    for ax in axes:
        for each in ax.lines:
            if each.get_label() == "test":
                low, high = ax.get_ylim()
                assert low < min(points(each)[1]) <= max(points(each)[1]) < high
        check_legend(ax)


def test_several_panels_leave_each_other_room():
    figure = Figure(figsize=(14, 9))
    axes = figure.subplots(2, 2).ravel()
    for ax, results in zip(axes, (GPT2, PYTHIA, LLAMA, make(12, full=True, wanted=[3])), strict=True):
        plot_accuracy_by_layer(results, ax)
    pixels(figure)
    check_texts(*axes)


def test_a_layout_that_was_chosen_is_kept():
    figure = Figure(layout="tight")
    plot_accuracy_by_layer(GPT2, figure.subplots())
    assert type(figure.get_layout_engine()).__name__ == "TightLayoutEngine"
    by_hand = Figure()
    by_hand.subplots_adjust(left=0.3)
    plot_accuracy_by_layer(GPT2, by_hand.subplots())
    assert by_hand.get_layout_engine() is None


def rows(ax: Axes) -> dict[str, float]:
    """Name -> value of the rows of an interval plot."""
    names = {round(t.get_loc()): t.label1.get_text() for t in ax.yaxis.get_major_ticks()}
    return {names[round(float(ys[0]))]: xs[0] for each in ax.lines for xs, ys in [points(each)]}


def test_a_single_place_is_drawn_as_rows_with_their_intervals(tmp_path):
    results = make(12, full=True, wanted=[7], baselines=CROWD)
    ax = draw(results)
    (layer,) = results.layers
    expected = {"test": layer.metrics["test"]["accuracy"], "validation": layer.metrics["validation"]["accuracy"]}
    expected |= {"control task": layer.control, "random init": 0.6} | CROWD
    assert rows(ax) == pytest.approx(expected)
    assert list(rows(ax)) == list(expected)  # from the top
    segments = [path.vertices for collection in ax.collections for path in collection.get_paths()]
    ends = [layer.intervals["accuracy"], (0.58, 0.62), *((v - 0.01, v + 0.01) for v in CROWD.values())]
    np.testing.assert_allclose([np.asarray(segment)[:, 0] for segment in segments], ends)
    assert not legend_texts(ax)
    assert "resid_pre.7, last token" in texts(ax)
    assert ax.get_xlabel() == "accuracy, 95% interval"
    assert f"{expected['test']:.3f} [{expected['test'] - 0.02:.3f}, {expected['test'] + 0.02:.3f}]" in texts(ax)
    check_texts(ax)
    svg = save_plot(results, tmp_path).with_suffix(".svg").read_text()
    assert "bag-of-words" in svg
    assert "compression" not in svg


def test_a_single_place_of_nested_folds_begins_with_the_score_to_quote():
    procedure = {"metrics": {"accuracy": 0.8}, "intervals": {"accuracy": (0.75, 0.85)}}
    ax = draw(make(12, wanted=[7], baselines={}, folds=5, procedure=procedure))
    assert list(rows(ax)) == ["nested cross-validation", "test", "validation"]
    assert rows(ax)["nested cross-validation"] == 0.8


def test_a_place_without_a_layer_is_drawn_as_rows():
    layer = LayerResult(**{**vars(make(point="embed", wanted=[0]).layers[0]), "layer": None})
    ax = draw(ProbeResults([layer], [], make(point="embed").meta))
    assert "embed, last token" in texts(ax)
    assert set(rows(ax)) == {"test", "validation"}


def test_a_row_far_away_has_an_arrow_and_its_value():
    ax = draw(make(metric="r2", wanted=[2], baselines={"mean": -30.0}))
    assert ax.get_xlim()[0] > -0.4
    assert "-30.000" in texts(ax)
    assert "<" in [each.get_marker() for each in ax.lines]


def test_single_places_on_one_axes_share_their_comparisons():
    ax = draw(make(wanted=[2]), make(wanted=[2], probe="ridge", baselines={**BASELINES, "majority": 0.6}))
    assert {"logistic probe", "ridge probe", "bag-of-words"} < set(rows(ax))
    assert {"majority, logistic probe", "majority, ridge probe"} < set(rows(ax))
    check_texts(ax)


def test_a_single_place_and_a_curve_share_the_layer_axis():
    ax = draw(make(12, wanted=[7]), make(12, model="pythia"))
    assert points(line(ax, "gpt2, resid_pre.7"))[0] == [7]
    assert ax.get_ylim()[0] < ax.get_ylim()[1]
    assert all(text.get_text() not in ("test", "validation") for text in ax.get_yticklabels())
    assert ax.get_xlabel().startswith("layer")
    check_texts(ax)
    check_legend(ax)


def test_the_panel_of_the_compression_gets_the_other_curves():
    figure = Figure(figsize=(8, 6), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    from probekit.plots.curve import _add, _Asked

    _add(upper, lower, _Asked(GPT2, None, None), None)
    plot_accuracy_by_layer(PYTHIA, upper)
    pixels(figure)
    drawn = [points(each)[1] for each in lower.lines if len(points(each)[0]) > 2]
    assert drawn == [[(x.codelength or {})["compression"] for x in results.layers] for results in (GPT2, PYTHIA)]
    check_texts(upper, lower)


def random_results(rng: np.random.Generator, metric: str) -> ProbeResults:
    """A curve of any shape, with or without each part."""
    n = int(rng.choice([1, 2, 4, 12, 32, 80]))
    wanted = None if rng.random() < 0.7 else sorted(rng.choice(n, size=int(rng.integers(1, n + 1)), replace=False))
    k = n + 1 if wanted is None else len(wanted)
    least = -2.0 if metric == "r2" else 0.0
    values = np.clip(rng.uniform(least, 1) + rng.normal(size=k) * rng.choice([0.0, 0.03, 0.3]), least, 1)
    names = ["majority", "bag-of-words", "length", "embedding", "word-type", "$q_{1}$" + "w" * 40]
    baselines = {name: float(rng.uniform(least, 1)) for name in names[: rng.integers(0, 7)]}
    about: dict[str, Any] = HOSTILE if rng.random() < 0.2 else {"model": str(rng.choice(["gpt2", "pythia-160m"]))}
    point = str(rng.choice(["resid_pre", "attn_out", "encoder.resid_pre", "decoder.cross_attn_out"]))
    how = {"full": bool(rng.random() < 0.6), "metric": metric, "baselines": baselines, **about}
    results = make(n, point, None if wanted is None else map(int, wanted), values=map(float, values), **how)
    control = float(rng.uniform(least, 1))
    layers = [LayerResult(**{**vars(x), "control": x.control and control}) for x in results.layers]
    results = ProbeResults(layers, results.baselines, results.meta, results.random_init)
    return without_validation(results) if rng.random() < 0.2 else results


SEEDS = (25, 21, 20, 99, 68, 2, 19, 0)  # among the first 200, these have every part beside and without every other


@pytest.mark.parametrize("seed", SEEDS)
def test_random_pictures_are_readable(seed, monkeypatch):
    """No text collides or hangs outside; the legend names what is seen; the same results give the same pixels."""
    rng = np.random.default_rng(seed)
    said = ["40% of test texts are also in train (--drop-leaks removes them)", "108 of 2,039 texts were cut"]
    kept = said[: rng.integers(0, 3)]
    monkeypatch.setattr("probekit.charts.accuracy.cautions", lambda data: kept)
    metric = str(rng.choice(["accuracy", "balanced_accuracy", "r2", "spearman"]))
    several = [random_results(rng, metric) for _ in range(rng.choice([1, 1, 2, 3, 4]))]
    width = float(rng.choice([4.0, 6.4, 8.0, 14.0]))
    size = (width, float(rng.uniform(5, 8) if width < 5 or len(several) > 2 else rng.uniform(4.5, 8)))
    ax = draw(*several, size=size)
    check_texts(ax)
    check_legend(ax)
    if seed == 0:
        assert pixels(figure_of(ax)) == pixels(figure_of(draw(*several, size=size)))


def test_a_users_large_letters_collide_with_nothing():
    with mpl.rc_context({"font.size": 16, "legend.fontsize": 20, "axes.titlesize": 30}):
        ax = draw(make(12, full=True, baselines=CROWD), PYTHIA, size=(10, 7))
        check_texts(ax)
        check_legend(ax)


def artists(ax: Axes) -> set[Artist]:
    return set(ax.get_children())


def test_what_is_redrawn_is_removed_first():
    ax = draw(plain(GPT2))
    before = len(artists(ax))
    plot_accuracy_by_layer(plain(GPT2), ax)
    many = len(artists(ax))
    ax.clear()
    plot_accuracy_by_layer(plain(GPT2), ax)
    assert len(artists(ax)) == before < many

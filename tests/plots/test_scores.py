"""The picture of scores: new texts below the test rows of each class."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from probekit.charts.palette import BLUE, RED
from probekit.errors import DataError, UsageError
from probekit.evaluation.results.data import LayerResult, ProbeData
from probekit.evaluation.results.row_scores import RowScores
from probekit.plots import plot_scores, save_scores_plot
from probekit.scoring.rows import ScoreRows

RNG = np.random.default_rng(0)
LABELS = np.arange(400) % 2
SPLITS = np.array(["validation", "test"], dtype=object)[np.arange(400) // 2 % 2]
META: dict[str, Any] = {
    "classes": ["$no$", "\x1b[31m<b>"],
    "place": "p.0",
    "model": "m",
    "label": "y",
    "threshold": None,
}
HOSTILE = {"model": "$\\frac{1}{2}$", "label": "a_b%"}


def results(classes: int = 2, **changes: Any) -> ProbeData:
    shape = (400,) if classes < 3 else (400, classes)
    blank = np.array([""] * 400, dtype=object)
    scores = RNG.normal(size=shape) + (LABELS * 2 if classes < 3 else 0)
    own = RowScores(blank, blank, SPLITS, LABELS, np.arange(400), {"p.0": scores}, {"p.0": LABELS})
    layer = LayerResult("p", 0, None, True, {"test": {"accuracy": 1.0}}, {}, [])
    return ProbeData([layer], [], {"headline": "accuracy"}, rows=changes.get("rows", own))


def new(n: int = 6, **changes: Any) -> ScoreRows:
    unusual = np.arange(n) % 3 == 0
    own = {"ids": np.arange(n).astype(str), "scores": np.linspace(-9, 2, n), "unusual": unusual, "meta": META}
    return ScoreRows(**{**own, **changes})


def test_histograms_are_of_the_test_rows_and_marks_of_the_new_texts() -> None:
    known, scores = results(), new(meta={**META, "threshold": {"value": 1.5}})
    ax = plot_scores(known, scores, Figure().subplots())
    assert known.rows is not None
    values = known.rows.scores["p.0"]
    for k, color in enumerate((BLUE, RED)):
        stairs = [one for one in ax.patches if to_hex(one.get_edgecolor()) == color.lower()][-1]
        share, edges, _ = stairs.get_data()  # pyright: ignore[reportAttributeAccessIssue]
        own = values[(SPLITS == "test") & (k == LABELS)]
        np.testing.assert_allclose(share, np.histogram(own, edges)[0] / len(own))
    usual, far = ax.collections
    assert usual.get_offsets()[:, 0].tolist() == scores.scores[~np.array(scores.unusual)].tolist()  # pyright: ignore
    assert far.get_offsets()[:, 0].tolist() == scores.scores[np.array(scores.unusual)].tolist()  # pyright: ignore
    assert [line.get_xdata()[0] for line in ax.lines if len(set(line.get_xdata())) == 1] == [1.5]  # pyright: ignore
    low, high = ax.get_xlim()
    assert low < -9
    assert high > 2


def test_the_same_scores_give_the_same_bytes_and_hostile_names_are_drawn_as_they_are(tmp_path: Path) -> None:
    scores, known = new(meta={**META, **HOSTILE}), results()
    one, two = (save_scores_plot(known, scores, tmp_path / name) for name in ("a.png", "b.png"))
    assert one.read_bytes() == two.read_bytes()
    svg = one.with_suffix(".svg").read_text()
    assert "\x1b" not in svg
    assert "\\x1b[31m&lt;b&gt;" in svg


@pytest.mark.parametrize("classes", [["a", "b"], []])
def test_one_text_and_equal_scores_are_drawn(tmp_path: Path, classes: list[str]) -> None:
    meta = {**META, "classes": classes}
    save_scores_plot(results(), new(1, scores=np.zeros(1), unusual=None, meta=meta), tmp_path / "one.png")


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(UsageError, match="for two classes or one number"):
        plot_scores(results(3), new())
    with pytest.raises(DataError, match="hold no scores of test rows"):
        plot_scores(results(rows=None), new())

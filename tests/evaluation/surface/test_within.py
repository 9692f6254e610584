"""Curves within the values of a column: each is that of the same rows alone, and every reader of curves names it."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import probekit as pk
from probekit.activations.activations import ActivationSet
from probekit.activations.layout import Layout
from probekit.causal.curve.refusals import check_curve
from probekit.errors import DataError, UsageError
from probekit.evaluation import ProbeCurves, ProbeGrids, ProbeResults
from probekit.evaluation.projection import project
from probekit.evaluation.surface.columns import COMPUTED
from probekit.evaluation.surface.values import rows_by_value
from probekit.plots import save_curves_plot, save_grids_plot
from probekit.points import Place
from probekit.scoring.find import find_results
from probekit.selections import Selection
from probekit.tasks.base import Task
from probekit.tasks.fields import UNLABELLED
from probekit.verbs.train_probes import train_probes

N = 240
RNG = np.random.default_rng(5)
LABEL, THIRD = RNG.integers(2, size=N), RNG.integers(3, size=N)
SOURCE = np.array(["book", "web", "rare"], dtype=object)[np.minimum(RNG.integers(41, size=N) // 20, 2)]
SIZE = RNG.normal(size=N) + LABEL
SPLITS = np.array(["train", "train", "validation", "test"])[np.arange(N) % 4]
READ = np.minimum(RNG.geometric(0.15, size=N), 30)  # the token at which each text is read
STRENGTH = {"book": 2.0, "web": 0.5, "rare": 0.0}
QUICK: dict[str, Any] = {"C": (0.1, 1.0), "quick": True, "least_texts": 5}


def acts_of(rows: Sequence[int] | np.ndarray = range(N), seed: int = 0, **changes: Any) -> ActivationSet:
    """Two points, two layers, in which the label is plain in books and faint on the web; these rows alone."""
    kept, rng = np.asarray(rows), np.random.default_rng(seed)
    along = np.array([STRENGTH[one] for one in SOURCE]) * (LABEL - 0.5)
    tensors = {}
    for point, layer in ((point, layer) for point in ("resid_pre", "attn_out") for layer in (0, 1)):
        x = rng.normal(size=(N, 6)).astype(np.float32)
        x[:, 0] += along * layer
        tensors[Place(point, layer)] = torch.from_numpy(x[kept])
    given: dict[str, Any] = {
        "name": "texts",
        "inputs": [f"text {i} of {SOURCE[i]}" for i in kept],
        "labels": {"two": LABEL[kept], "three": THIRD[kept], "size": SIZE[kept]},
        "label_names": {"two": ["no", "yes"], "three": ["x", "y", "z"], "size": []},
        "splits": SPLITS[kept],
        "target": "two",
        "ids": [f"row {i}" for i in kept],
        "columns": {"source": SOURCE[kept].tolist(), "pages": (7 * SIZE[kept]).tolist()},
    }
    layout = Layout([Selection("last")], np.ones(len(kept), dtype=np.int64), 0, tokens=READ[kept].astype(np.int64))
    meta = {"model": "made", "task": "texts", "points": ["resid_pre", "attn_out"], "n_layers": 2}
    return ActivationSet(tensors, Task(**given | changes), meta, layout)


def trained(acts: ActivationSet, **how: Any) -> Any:
    return train_probes(acts, **{**QUICK, **how})


def assert_alone(curve: ProbeResults, alone: ProbeResults) -> None:
    """The same table but for the names of the rows."""
    mine, theirs = (found.to_frame().drop(columns=["by", "at"]) for found in (curve, alone))
    numbers = list(mine.select_dtypes("number"))
    assert mine.drop(columns=numbers).equals(theirs.drop(columns=numbers))
    for name in numbers:
        np.testing.assert_allclose(
            mine[name].to_numpy(float, na_value=np.nan), theirs[name].to_numpy(float, na_value=np.nan), rtol=1e-9
        )


@pytest.mark.parametrize(
    "how",
    [
        {"quick": False, "controls": 1},
        {"folds": 3},
        {"label": "size", "probe": "ridge"},
        {"nuisance": ["pages"]},
        {"metric": "auroc", "drop_leaks": True},
        {"concatenate": True},
    ],
    ids=lambda how: next(iter(how)),
)
def test_a_curve_is_that_of_its_rows_alone(how: dict[str, Any]) -> None:
    curves = trained(acts_of(), within="source", **how)
    assert isinstance(curves, ProbeCurves)
    label, point = how.get("label", "two"), next(iter(curves))[1]
    assert list(curves) == [(label, point, "web"), (label, point, "book")]  # the most frequent first; "rare" has few
    for value in ("book", "web"):
        alone = trained(acts_of(np.flatnonzero(value == SOURCE)), **how)
        assert_alone(curves[label, point, value], alone)


def test_it_composes_with_label_sets_points_probes_and_random_weights() -> None:
    how: dict[str, Any] = {**QUICK, "within": "source", "probes": ["logistic", "mean-diff"]}
    noise = acts_of(seed=9)
    curves = train_probes(acts_of(), points="all", labels=["two", "three"], random_init=noise, **how)
    assert len(curves) == len({*curves}) == 2 * 2 * 2 * 2
    rows = np.flatnonzero(SOURCE == "web")
    one: dict[str, Any] = {**QUICK, "point": "attn_out", "label": "three", "probe": "mean-diff", "C": None}
    alone = train_probes(acts_of(rows), random_init=acts_of(rows, seed=9), **one)
    assert_alone(curves["three", "attn_out", "web", "mean-diff"], alone)


def test_rows_without_a_label_are_in_no_group() -> None:
    missing = np.where(np.arange(N) % 5 == 0, -1, LABEL)
    labels = {"two": missing, "three": THIRD, "size": SIZE}
    acts = acts_of(labels=labels, info={UNLABELLED: {"two": int((missing < 0).sum())}})
    curves = trained(acts, within="source", C=1.0)
    rows = np.flatnonzero((SOURCE == "book") & (missing >= 0))
    assert_alone(curves["two", "resid_pre", "book"], trained(acts_of(rows), C=1.0))
    assert curves["two", "resid_pre", "book"].meta["unlabelled"] == ((SOURCE == "book") & (missing < 0)).sum()


def test_frequency_is_counted_in_train_and_cut_at_its_quartiles() -> None:
    acts, train = acts_of(), np.flatnonzero(SPLITS == "train")
    counts = np.array([(READ[train] == token).sum() for token in READ])
    assert COMPUTED["frequency"](acts, train).tolist() == counts.tolist()
    values, order, n = rows_by_value(acts, "frequency", "two", train)
    cuts = np.unique(np.quantile(counts[train], [0.25, 0.5, 0.75]))
    part = np.searchsorted(cuts, counts)
    assert [values[part == k].tolist() for k in range(len(order))] == [[name] * n[name] for name in order]
    curves = trained(acts, within="frequency", least_texts=1)
    for (_, _, value), curve in curves.items():
        assert_alone(curve, trained(acts_of(np.flatnonzero(values == value))))


def test_a_value_needs_its_rows_in_each_class_of_each_split() -> None:
    labels = LABEL.copy()
    for split in ("train", "validation", "test"):
        rows = np.flatnonzero((SOURCE == "web") & (split == SPLITS))
        assert len(rows) > 20
        labels[rows] = np.arange(len(rows)) < 4
    acts = acts_of(labels={"two": labels}, label_names={"two": ["no", "yes"]})
    kept = [{value for _, _, value in trained(acts, within="source", least_texts=least)} for least in (4, 5)]
    assert kept == [{"web", "book"}, {"book"}]


def test_values_with_few_rows_are_named() -> None:
    found = trained(acts_of(), within="source")
    why = "'rare' (fewer than 5 rows of each class in train)"
    assert f"Values of 'source' without a curve of 'two': {why}" in found.summary()
    with pytest.raises(
        DataError,
        match=r"no value of 'source' has enough rows of each class of 'two' .*'book' .fewer than 200 rows.*--least",
    ):
        trained(acts_of(), within="source", least_texts=200)
    with pytest.raises(UsageError, match=r"has no column 'sources'.*did you mean 'source'"):
        trained(acts_of(), within="sources")
    with pytest.raises(UsageError, match="'two' is the label that is predicted"):
        trained(acts_of(), within="two")
    layout = replace(acts_of().layout, tokens=None)
    with pytest.raises(UsageError, match=r"which token each row is of \(frequency\)"):
        trained(ActivationSet(dict(acts_of().items()), acts_of().task, layout=layout), within="frequency")


def test_a_new_column_is_shown_everywhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One function in the table of computed columns is a new kind of curve: nothing else knows of it."""
    monkeypatch.setitem(COMPUTED, "parity", lambda acts, train: np.arange(acts.n_examples) % 3 // 2)
    curves = trained(acts_of(), within="parity")
    assert [key[2] for key in curves] == ["0", "1"]
    assert [line.split()[2] for line in curves.summary().splitlines()[2:5]] == ["parity", "0", "1"]
    assert "parity 0, 1" in repr(curves)
    loaded = ProbeCurves.load(curves.save(tmp_path / "curves"))
    assert list(loaded) == list(curves)
    table = loaded.to_frame()
    assert set(zip(table["by"], table["at"], strict=True)) == {("within parity", "0"), ("within parity", "1")}
    assert "resid_pre, last token, parity 1" in loaded["two", "resid_pre", "1"].summary()
    svg = save_curves_plot(list(curves.values()), tmp_path).with_suffix(".svg").read_text()
    assert "parity 0" in svg
    assert "parity 1" in svg
    pk.write_report([tmp_path / "curves"], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page.count("parity 0") > 1
    assert "parity" in curves.export(to="latex", out=tmp_path / "t.tex").read_text()
    assert "parity" in curves.export(to="csv", out=tmp_path / "t.csv").read_text()
    compared = pk.compare([tmp_path / "curves"])
    assert [run.name for run in compared.runs] == ["parity 0", "parity 1"]
    assert {"within": "0"}.items() <= json.loads((tmp_path / "curves/curves.json").read_text())["curves"][0].items()


def grid_acts(rows: Sequence[int] | np.ndarray = range(N), **changes: Any) -> ActivationSet:
    """As `acts_of`, with heads of two numbers."""
    made = acts_of(rows, **changes)
    tensors = {Place("z" if place.point == "attn_out" else place.point, place.layer): x for place, x in made.items()}
    meta = {**made.meta, "points": ["resid_pre", "z"], "config": {"n_heads": 3}}
    return ActivationSet(tensors, made.task, meta, made.layout)


def token_acts(rows: Sequence[int] | np.ndarray = range(N), **changes: Any) -> ActivationSet:
    """All tokens of texts of 2 to 4 tokens, with a label of each token; the last class of "tag" is rare."""
    made, kept = acts_of(rows, **changes), np.asarray(rows)
    lengths, rng = np.arange(N) % 3 + 2, np.random.default_rng(3)
    text = np.repeat(np.arange(N), lengths)
    tags = rng.integers(2, size=len(text))
    x = rng.normal(size=(len(text), 6))
    x[:, 0] += 2 * (LABEL[text] - 0.5)
    x[:, 1] += 2 * (tags - 0.5)
    own = np.isin(text, kept)
    ends = np.cumsum(lengths[kept])
    each = [part.tolist() for part in np.split(tags[own], ends[:-1])]
    names = {**made.task.label_names, "tag": ["a", "b"]}
    inputs = [[int(100 * i + k + 1) for k in range(lengths[i])] for i in kept]
    task = replace(made.task, inputs=inputs, token_labels={"tag": each}, label_names=names)
    tensors = {Place("resid_pre", layer): torch.from_numpy((x + layer).astype(np.float32)[own]) for layer in (0, 1)}
    meta = {"model": "made", "task": "texts", "points": ["resid_pre"], "n_layers": 2}
    return ActivationSet(tensors, task, meta, Layout([Selection("all")], lengths[kept], 0))


def assert_grid_alone(grid: Any, alone: Any) -> None:
    """The same table but for the names of the rows, and as many rows."""
    assert type(grid) is type(alone)
    assert_alone(grid, alone)
    assert grid.meta["n"] == alone.meta["n"]


GRIDS: list[tuple[Any, dict[str, Any]]] = [
    (grid_acts, {"by": "head", "point": "z"}),
    (grid_acts, {"by": "head", "point": "z", "folds": 3}),
    (grid_acts, {"shift_column": "pages", "points": ["z", "resid_pre"], "least_texts": 1}),
    (grid_acts, {"shift_column": "three", "point": "z", "drop_leaks": True}),
    (token_acts, {"by": "position"}),
    (token_acts, {"by": "position-from-end", "folds": 3}),
    (token_acts, {"by": "position", "label": "tag", "quick": False, "controls": 1}),
    (token_acts, {"by": "position", "label": "tag", "position": ["first", "last"]}),
    (token_acts, {"by": "position", "label": "size", "probe": "ridge", "position": "1:"}),
]


@pytest.mark.parametrize(("make", "how"), GRIDS, ids=[f"{how}" for _, how in GRIDS])
def test_a_grid_of_a_value_is_that_of_its_rows_alone(make: Any, how: dict[str, Any]) -> None:
    grids = trained(make(), within="source", **{"least_texts": 3, **how})
    assert isinstance(grids, ProbeGrids)
    alone_how = {name: value for name, value in how.items() if name != "points"}
    for (label, point, value), grid in grids.items():
        assert label == how.get("label", "two")
        rows = np.flatnonzero(value == SOURCE)
        alone = trained(make(rows), **{"least_texts": 3, **alone_how, "point": point})
        assert_grid_alone(grid, alone)
    assert {key[2] for key in grids} == {"web", "book"}


@pytest.mark.parametrize("how", [{"by": "head"}, {"by": "head", "folds": 3}, {"by": "position"}], ids=str)
def test_grids_of_values_take_random_weights(how: dict[str, Any]) -> None:
    make = grid_acts if how["by"] == "head" else token_acts
    noise = make(info={"noise": True})
    noise = ActivationSet({place: x.flip(0) for place, x in noise.items()}, make().task, noise.meta, noise.layout)
    found = trained(make(), within="source", random_init=noise, **how)
    for (_, _, value), grid in found.items():
        rows = np.flatnonzero(value == SOURCE)
        own = np.repeat(value == SOURCE, make().layout.counts())
        of_rows = {place: x[torch.from_numpy(own)] for place, x in noise.items()}
        alone_noise = ActivationSet(of_rows, make(rows).task, noise.meta, make(rows).layout)
        assert_grid_alone(grid, trained(make(rows), random_init=alone_noise, **how))
        assert grid.meta["over_random"] is not None


def test_grids_of_values_are_saved_told_and_drawn(tmp_path: Path) -> None:
    for number, how in enumerate(({"by": "head"}, {"shift_column": "three"}, {"by": "position"})):
        make = token_acts if how == {"by": "position"} else grid_acts
        grids = trained(make(), within="source", labels=["two", "size"], probe=None, C=1.0, **how)
        folder = grids.save(tmp_path / str(number))
        loaded = ProbeGrids.load(folder)
        assert list(loaded) == list(grids)
        assert {key[2] for key in grids} == {"web", "book"}
        table = grids.to_frame()
        assert loaded.to_frame().equals(table)
        assert table["by"].str.endswith("within source").all()
        assert set(table["at"].str.split(", ").str[-1]) == {"web", "book"}
        summary = loaded.summary()
        assert summary == grids.summary()
        assert summary.splitlines()[2].split()[:4] == ["label", "point", "source", "probe"]
        assert "Each grid is fitted, chosen and tested on the rows with one value of 'source' alone" in summary
        assert "Values of 'source' without a grid of 'two': 'rare' (fewer than" in summary
        for (_, _, value), grid in loaded.items():
            assert any(f", source {value}" in line for line in grid.summary().splitlines()[:2])
        svg = save_grids_plot([*grids.values()], tmp_path).with_suffix(".svg").read_text()
        assert all(re.search(f">[^<]*{value}[^<]*<", svg) for value in ("web", "book"))
        page = pk.write_report([folder], tmp_path / "page.html").read_text()
        assert "source web" in page


def test_a_value_whose_rows_give_no_grid_is_left_out() -> None:
    """The tokens of the value are enough, but those of no single position are."""
    acts = token_acts()
    tags = [np.array(one) for one in acts.task.token_labels["tag"]]
    most = {
        value: max(
            min(
                sum(
                    len(tags[i]) > k and tags[i][k] == tag
                    for i in np.flatnonzero((value == SOURCE) & (split == SPLITS))
                )
                for split in ("train", "validation", "test")
                for tag in (0, 1)
            )
            for k in range(4)
        )
        for value in ("web", "book")
    }
    few, many = sorted(most, key=most.__getitem__)
    assert most[few] < most[many]
    found = trained(acts, by="position", label="tag", within="source", least_texts=most[many])
    assert [key[2] for key in found] == [many]
    why = found["tag", "resid_pre", many].meta["within"]["left_out"][few]
    assert why.startswith(f"no position has {most[many]} texts of each class in each split")
    assert f"'{few}' (no position has" in found.summary()
    with pytest.raises(DataError, match=r"no value has a curve of 'tag' \(--within\): 'web': no position has"):
        trained(acts, by="position", label="tag", within="source", least_texts=most[many] + 1)


def test_tokens_are_grouped_by_their_own_place_and_selections_are_not() -> None:
    """By position, the values of a token's own place are the positions that have it."""
    acts, how = token_acts(), {"by": "position", "label": "tag", "least_texts": 3}
    every, found = trained(acts, **how), trained(acts, within="position", **how)
    assert [[one.position for one in grid.positions] for grid in found.values()] == [["0"], ["1"], ["2"], ["3"]]
    for grid, one in zip(found.values(), every.positions, strict=True):
        assert [layer.metrics for layer in grid.positions[0].layers] == [layer.metrics for layer in one.layers]
    for label in ("two", "tag"):
        with pytest.raises(UsageError, match=r"frequency \(--within\) is of the token that is read, and several"):
            trained(acts, by="position", position=["first", "last"], label=label, within="frequency")


def test_a_shift_of_the_column_of_the_groups_is_refused() -> None:
    with pytest.raises(UsageError, match=r"'source'.*the column is constant there"):
        trained(acts_of(), within="source", shift_column="source")


def test_values_that_are_nearly_equal_stay_apart() -> None:
    """Names have as many digits as tell the values apart: years of a calendar in seconds, counts of seven digits."""
    for column, n in ((1_234_560 + np.arange(N) % 3, 3), (1.7e9 + 10 * np.arange(N), 4)):
        acts = acts_of(columns={"when": column.tolist()})
        values, order, counts = rows_by_value(acts, "when", "two", np.flatnonzero(SPLITS == "train"))
        assert len(set(order)) == n
        assert sum(counts.values()) == N
        assert len({*values}) == n
        assert len(trained(acts, within="when")) == n
    blank = acts_of(columns={"kind": [["a", "(missing)", None][i % 3] for i in range(N)]})
    assert set(rows_by_value(blank, "kind", "two", np.arange(N))[1]) == {"a", "(missing)"}


def test_a_value_that_folds_cannot_divide_is_left_out() -> None:
    """All texts of one class of the web are one group, so one fold has all of them."""
    groups = np.arange(N)
    groups[(SOURCE == "web") & (LABEL == 1)] = N
    found = trained(acts_of(groups=groups, splits=np.array(["train"] * N)), within="source", folds=3)
    assert [key[2] for key in found] == ["book"]
    assert "'web' (" in found.summary()
    assert "'web'" in str(found["two", "resid_pre", "book"].meta["within"]["left_out"])


def test_one_of_several_is_named_by_its_coordinates(tmp_path: Path) -> None:
    curves = trained(acts_of(), within="source", probes=["logistic", "mean-diff"], points=["resid_pre", "attn_out"])
    folder = curves.save(tmp_path / "curves")
    for (label, point, value, probe), curve in curves.items():
        name = f"{label}/{point}/{value}/{probe}"
        found, place = find_results(folder, name)
        assert (found.meta["within"]["value"], found.meta["probe"], place) == (value, probe, None)
        saved = pk.load_probe(f"{folder}:{name}")
        assert np.array_equal(saved.direction, curve.best.probe.direction)
        last = find_results(folder, f"{label}/{point}.1/{value}/{probe}")
        assert last == (found, f"{point}.1")
    for wrong in ("two/resid_pre", "two/resid_pre/web", "two/resid_pre/rare/logistic", None):
        with pytest.raises(UsageError, match=r"LABEL/POINT\.LAYER/VALUE/PROBE, with two/resid_pre/web/logistic"):
            find_results(folder, wrong)
    with pytest.raises(UsageError, match="which several of them have"):
        pk.load_probe(f"{folder}:two/resid_pre")


def test_what_reads_all_rows_refuses_probes_of_some() -> None:
    curve = trained(acts_of(), within="source")["two", "resid_pre", "web"]
    with pytest.raises(UsageError, match="of the rows with 'source' 'web' alone, and causal edits rows of all values"):
        check_curve({**curve.meta, "activations": {}})
    of_web = acts_of(np.flatnonzero(SOURCE == "web"))
    alone, mixed = (project(curve, acts) for acts in (of_web, acts_of()))
    for axis in ("x", "y"):
        np.testing.assert_allclose(getattr(mixed, axis), getattr(alone, axis), atol=1e-5)


def test_label_sets_of_all_leave_the_column_out() -> None:
    assert trained(acts_of(), within="three", labels="all", probe=None, C=1.0).labels == ["two", "size"]
    with pytest.raises(UsageError, match=r"'source'.*the column is constant there"):
        trained(acts_of(), within="source", nuisance=["pages", "source"])


@pytest.mark.parametrize("how", [{}, {"shift_column": "three"}])
def test_the_page_says_whose_rows_each_run_has_and_which_values_have_none(how: dict[str, Any], tmp_path: Path) -> None:
    folder = trained(acts_of(), within="source", **how).save(tmp_path / "several")
    page = pk.write_report(folder, tmp_path / "page.html", tokens=False).read_text()
    assert "on the rows with one value of &#39;source&#39; alone" in page
    assert "&#39;rare&#39; (fewer than" in page

"""Files for other programs: what is in them equals the probe, and no name in them is taken for markup or a formula."""

import dataclasses
import io
import json
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from markdown_it import MarkdownIt
from safetensors import safe_open
from sklearn.linear_model import LogisticRegression, Ridge

import probekit as pk
from probekit.activations.activations import ActivationSet
from probekit.errors import DataError, StorageError, UsageError
from probekit.evaluation.results.data import ProbeData
from probekit.export.card import as_sentence, card, code
from probekit.export.latex import latex_text
from probekit.points import Place
from probekit.probes import MLPProbe
from probekit.tasks.base import Task
from probekit.text import from_spreadsheet_cell, printable

N, D = 160, 6
HOSTILE = [
    "</script><img src=x onerror=alert(1)>",
    "\\end{tabular}\\input{/etc/passwd} % $x_1^2$ & # ~ {",
    "[1cm] *",
    "\u202ertl\u2028\x00\x1b[31m\ud800",
    "| a | b |\n\n# title",
    "`code``span` ```",
    "=cmd|' /C calc'!A0",
    "[click](javascript:alert(1)) ![x](http://x.example/y.png) www.x.example <b>",
    "naïve Ångström 中文 😀 ß \u2013 “q” --- '' ``",
    "   ",
]


def acts_of(kind: str, label: str = "label") -> ActivationSet:
    """Two classes, three, or a number, written along a direction of two places."""
    rng = np.random.default_rng(0)
    classes = {"two": 2, "three": 3}.get(kind, 0)
    values: Any = rng.integers(classes, size=N) if classes else rng.normal(size=N)
    x = {i: rng.normal(size=(N, D)) + values[:, None] * rng.normal(size=D) for i in range(4)}
    task = Task(
        name="planted",
        inputs=[f"text {i}" for i in range(N)],
        labels={label: values},
        label_names={label: [f"class {k}" for k in range(classes)]},
        splits=np.array(["train", "train", "validation", "test"])[np.arange(N) % 4],
        target=label,
    )
    places: dict[Place, torch.Tensor] = {Place("resid_pre", i): torch.from_numpy(x[i].astype(np.float32)) for i in x}
    return ActivationSet(places, task)


def trained(kind: str, **options: Any) -> tuple[pk.ProbeResults, np.ndarray]:
    acts = acts_of(kind)
    results = pk.train_probes(acts, controls=0, codelength=False, **{"C": 1.0, **options})
    place = results.best
    return results, acts[place.point, place.layer].double().numpy()


@pytest.fixture(scope="module", params=["two", "three", "number"])
def case(request: pytest.FixtureRequest) -> tuple[pk.ProbeResults, np.ndarray]:
    return trained(request.param)


@pytest.fixture(scope="module")
def two() -> tuple[pk.ProbeResults, np.ndarray]:
    return trained("two")


def with_names(results: pk.ProbeResults, name: str) -> pk.ProbeResults:
    """The same results with this name for model, task, label, position, classes, baselines and findings."""
    meta = {**results.meta, "model": name, "task": name, "label": name, "classes": [name, name + "2"]}
    meta["counts"] = {split: dict.fromkeys(meta["classes"], 3) for split in results.meta["n"]}
    meta["audit"] = {"findings": [name]}
    baselines = [dataclasses.replace(one, name=printable(name)) for one in results.baselines]
    return pk.ProbeResults([*results.layers], baselines, meta, results.random_init)


def decisions(coef: np.ndarray, intercept: np.ndarray, X: np.ndarray) -> np.ndarray:
    scores = X @ np.atleast_2d(coef).T + intercept
    return scores[:, 0] if scores.shape[1] == 1 else scores


def expected(results: pk.ProbeResults, X: np.ndarray) -> np.ndarray:
    probe = results.best.probe
    return probe.predict(X) if probe.predicts == "numbers" else probe.decision_function(X)


def test_numpy_and_safetensors_hold_the_weights_and_what_they_are(case: Any, tmp_path: Path) -> None:
    results, X = case
    path = results.export(to="numpy", out=tmp_path / "p.npz")
    with np.load(path, allow_pickle=False) as file:
        arrays, about = {name: file[name] for name in file.files}, json.loads(str(file["about"]))
    assert np.allclose(decisions(arrays["coef"], arrays["intercept"], X), expected(results, X), rtol=0, atol=1e-12)
    other = results.export(to="safetensors", out=tmp_path / "p.safetensors")
    with safe_open(other, "np") as file:
        assert all((file.get_tensor(name) == arrays[name]).all() for name in file.keys())  # noqa: SIM118
        assert json.loads(file.metadata()["about"]) == about
    assert about["place"] == results.best.place
    assert about["classes"] == results.meta["classes"]
    assert about["test"] == results.best.metrics["test"]
    assert about["rates"] == results.best.rates
    assert about["reading"] == results.meta["reading"]
    assert about["activations"] == results.meta["activations"]
    assert (about["model"], about["position"]) == (results.meta["model"], results.meta["position"])


def test_scikit_learn_is_rebuilt_without_pickle(case: Any, tmp_path: Path) -> None:
    """The lines of docs/export.md."""
    results, X = case
    path = results.export(to="sklearn-json", out=tmp_path / "p.json")
    saved = json.loads(path.read_text())
    model: Any = Ridge() if saved["class"].endswith("Ridge") else LogisticRegression()
    for name in ("coef", "intercept", "classes"):
        if name in saved:
            setattr(model, f"{name}_", np.array(saved[name]))
    probe = results.best.probe
    if probe.predicts == "numbers":
        assert np.allclose(model.predict(X), probe.predict(X), rtol=0, atol=1e-12)
    else:
        assert (model.predict(X) == probe.predict_labels(X)).all()
        assert saved["probabilities"]
        assert np.allclose(model.predict_proba(X), probe.predict_proba(X), rtol=0, atol=1e-12)


@pytest.mark.parametrize("probe", ["lda", "ridge", "mean-diff", "k-sparse"])
def test_every_linear_probe_predicts_the_same_in_scikit_learn(probe: str, tmp_path: Path) -> None:
    results, X = trained("two", probe=probe, C=None)
    saved = json.loads(results.export(to="sklearn-json", out=tmp_path / "p.json").read_text())
    model: Any = LogisticRegression()
    model.coef_, model.intercept_, model.classes_ = (np.array(saved[k]) for k in ("coef", "intercept", "classes"))
    assert (model.predict(X) == results.best.probe.predict_labels(X)).all()
    assert saved["probabilities"] == results.best.probe.log_odds


def test_a_control_vector_is_the_direction_of_length_one(two: Any, tmp_path: Path) -> None:
    results, _ = two
    path = results.export("resid_pre.3", to="gguf-control-vector", out=tmp_path / "v.gguf")
    reader = gguf.GGUFReader(path)
    (tensor,) = reader.tensors
    direction = results.layers[3].probe.direction
    assert tensor.name == "direction.2"
    assert np.allclose(tensor.data, direction / np.linalg.norm(direction), atol=1e-7)
    with pytest.raises(UsageError, match="it cannot steer"):
        results.export("resid_pre.1", to="gguf-control-vector", out=tmp_path / "v.gguf")
    with pytest.raises(UsageError, match="one for each class"):
        trained("three")[0].export("resid_pre.3", to="gguf-control-vector", out=tmp_path / "v.gguf")


def test_tables_are_the_tidy_frame(case: Any, tmp_path: Path) -> None:
    results, _ = case
    csv = pd.read_csv(results.export(to="csv", out=tmp_path / "t.csv"))
    parquet = pd.read_parquet(results.export(to="parquet", out=tmp_path / "t.parquet"))
    frame = results.to_frame()
    read, made = (found.astype(object).where(found.notna(), None) for found in (parquet, frame))
    pd.testing.assert_frame_equal(read, made)
    assert list(csv) == list(frame)
    np.testing.assert_allclose(csv["value"], frame["value"], rtol=1e-12)
    assert set(csv["task"]) == {"planted"}


@pytest.mark.parametrize("name", HOSTILE)
def test_cells_of_a_csv_are_no_formulas_and_are_read_back(two: Any, name: str, tmp_path: Path) -> None:
    results = with_names(two[0], name)
    table = pd.read_csv(results.export(to="csv", out=tmp_path / "t.csv"), keep_default_na=False)
    shown = name.encode("utf-8", "backslashreplace").decode()
    for column in ("model", "task", "label"):
        for cell in table[column]:
            assert not cell.startswith(("=", "+", "-", "@", "\t", "\r"))
            assert from_spreadsheet_cell(cell) == shown


# a reader of the LaTeX that is written: commands and their text, everything else stands for itself
_COMMANDS = {
    "textbackslash": "\\",
    "textasciicircum": "^",
    "textasciitilde": "~",
    "textless": "<",
    "textgreater": ">",
    "textbar": "|",
    "ldots": "…",
    "textendash": "\u2013",
    "textemdash": "—",
    "ss": "ß",
    "ae": "æ",
    "o": "ø",
    "l": "ł",
}
_ACCENTS = {"'": "\u0301", "`": "\u0300", "^": "\u0302", '"': "\u0308", "~": "\u0303", "r": "\u030a", "c": "\u0327"}
_ACCENTS |= {"=": "\u0304", ".": "\u0307", "v": "\u030c", "u": "\u0306", "H": "\u030b", "d": "\u0323"}
_TOKEN = re.compile(
    r"\\(?P<accent>[^a-zA-Z{}&#%$_]|[rcvuHd](?={))\{(?P<base>[a-zA-Z])\}"
    r"|\\(?P<command>[a-zA-Z]+)\{\}|\\(?P<escaped>[{}&#%$_])|(?P<math>\$[^$]*\$)"
    r"|\{\[\}U\+(?P<point>[0-9A-F]+)\{\]\}|\{(?P<braced>[\[\]*`])\}|(?P<empty>\{\})|(?P<plain>[^\\{}$&#%_^~\[\]*`<>|])"
)


def printed(latex: str) -> str:
    """What LaTeX prints of a text; fails at anything that it would take for markup."""
    found, end = [], 0
    while end < len(latex) and (match := _TOKEN.match(latex, end)):
        end = match.end()
        groups = {name: value for name, value in match.groupdict().items() if value is not None}
        if "accent" in groups:
            found.append(unicodedata.normalize("NFC", groups["base"] + _ACCENTS[groups["accent"]]))
        elif "command" in groups:
            found.append(_COMMANDS[groups["command"]])
        elif "point" in groups:
            found.append(chr(int(groups["point"], 16)))
        elif "math" in groups:
            found.append({"$-$": "\u2212", r"$\cdot$": "·", r"$\times$": "\u00d7"}[groups["math"]])
        else:
            found.append(groups.get("escaped") or groups.get("braced") or groups.get("plain") or "")
    assert end == len(latex), latex[end:]
    return "".join(found)


LETTERS = st.one_of(st.characters(), st.sampled_from("\\{}$&#%_^~<>|[]*`'-,\"àéîõüåçč中"))


@given(st.text(LETTERS, max_size=30))
def test_latex_prints_every_text_as_it_is(text: str) -> None:
    shown = latex_text(text)
    assert shown.isascii()
    for doubled in ("--", "''", ",,", "``"):
        assert doubled not in shown
    wanted = unicodedata.normalize("NFC", printable(text))
    others = {"\u0131": "i", "æ": "æ"}
    if not set(wanted) & {"Æ", "Ø", "œ", "Œ", "Ł", "\u0131", "±", "→"}:
        assert unicodedata.normalize("NFC", printed(shown)) == "".join(others.get(c, c) for c in wanted)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_latex_table_has_its_columns_whatever_the_names(two: Any, name: str, tmp_path: Path) -> None:
    results = with_names(two[0], name)
    text = results.export(to="latex", out=tmp_path / "t.tex").read_text(encoding="ascii")
    columns = re.findall(r"\\begin\{tabular\}\{(l+r+)\}", text)
    rows = [line for line in text.splitlines() if line.endswith(r" \\")]
    assert len(rows) == 1 + len(results.layers) + len(results.baselines)
    for row in rows:
        assert len(re.findall(r"(?<!\\)&", row)) == len(columns[0]) - 1
        assert not row.lstrip().startswith(("[", "*"))
    for opened in ("table", "tabular"):
        assert text.count(rf"\begin{{{opened}}}") == text.count(rf"\end{{{opened}}}") == 1
    assert balanced(text)
    assert [rf"\{rule}" in text for rule in ("toprule", "midrule", "bottomrule")] == [True] * 3


def balanced(text: str) -> bool:
    depth = 0
    for brace in re.findall(r"(?<!\\)[{}]", text):
        depth += 1 if brace == "{" else -1
        assert depth >= 0
    return depth == 0


def test_the_latex_table_has_the_numbers(two: Any, tmp_path: Path) -> None:
    results, _ = two
    text = results.export(to="latex", out=tmp_path / "t.tex").read_text()
    for layer in results.layers:
        place = printable(layer.place).replace("_", r"\_")
        (row,) = (line for line in text.splitlines() if place in line and r"\caption" not in line)
        assert f"{layer.metrics['test']['accuracy']:.3f}" in row
        assert (r"\textbf" in row) == (layer is results.best)
    (caption,) = (line for line in text.splitlines() if r"\caption" in line)
    (said,) = (line for line in results.summary().splitlines() if line.startswith("Quote: "))
    assert latex_text(said.removeprefix("Quote: ").partition(" Caution: ")[0]) in caption


def test_latex_numbers_have_a_minus_and_names_a_hyphen(two: Any, tmp_path: Path) -> None:
    results = with_names(two[0], "gpt-2 x-1")
    metrics = {**results.layers[0].metrics, "test": {results.headline: -0.25}}
    negative = dataclasses.replace(results.layers[0], metrics=metrics, intervals={results.headline: (-0.5, -0.125)})
    results = pk.ProbeResults([negative, *results.layers[1:]], results.baselines, results.meta, results.random_init)
    text = results.export(to="latex", out=tmp_path / "t.tex").read_text()
    row = next(line for line in text.splitlines() if "0.250" in line and r"\caption" not in line)
    assert "$-$0.250" in row
    assert "{[}$-$0.500, $-$0.125{]}" in row
    assert not re.search(r"(?<![\w.$])-[0-9]", text)
    assert "gpt-2 x-1" in text
    (caption,) = (line for line in text.splitlines() if r"\caption" in line)
    assert re.search(r"\. Probe: [\w-]+; examples: ", caption)


MARKDOWN = MarkdownIt("gfm-like", {"linkify": False})  # tables and autolinks, as GitHub and the Hub render them


@pytest.mark.parametrize("name", HOSTILE)
def test_a_card_shows_names_as_code(two: Any, name: str) -> None:
    results = with_names(two[0], name)
    page = MARKDOWN.render(card(results, results.best, "probe").split("---\n", 2)[2])
    for tag in ("<img", "<a ", "<script", "<b>"):
        assert tag not in page
    assert page.count("<h1>") == 1
    assert page.count("<table>") == 3
    assert page.count("<h2>") == 6
    shown = printable(name).strip()
    if shown:
        body = page.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", '"').replace("&amp;", "&")
        assert body.count(shown) >= 6


@given(st.text(max_size=40))
def test_code_and_sentences_print_what_they_are_given(text: str) -> None:
    """A page of Markdown with nothing but the text has nothing but the text, markup or not."""
    shown = " ".join(printable(text).split())
    if not shown:
        return
    (code_span,) = MARKDOWN.parse(code(shown))[1].children or []
    assert (code_span.type, code_span.content) == ("code_inline", shown)
    item = MARKDOWN.parse(f"- {as_sentence(shown)}")
    assert [token.type for token in item if token.type != "inline"] == [
        *("bullet_list_open", "list_item_open", "paragraph_open"),
        *("paragraph_close", "list_item_close", "bullet_list_close"),
    ]
    words = item[3].children or []
    assert {token.type for token in words} <= {"text", "text_special"}
    assert "".join(token.content for token in words) == shown


def test_a_card_holds_the_figures_and_its_probe_loads(case: Any, tmp_path: Path) -> None:
    results, X = case
    path = results.export(to="card", out=tmp_path / "published")
    text = path.read_text()
    assert path.name == "README.md"
    loaded = pk.load_probe(path.parent / "probe")
    assert (loaded.predict(X) == results.best.probe.predict(X)).all()
    for name, value in results.best.metrics["test"].items():
        assert f"{value:z.3f}" in text, name
    for one in results.baselines:
        assert one.name in text
    assert results.meta["activations"].get("task_fingerprint", "") in text
    results.export(to="card", out=tmp_path / "published")  # a card may be written again
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "README.md").write_text("# My project")
    with pytest.raises(StorageError, match="is no card of a probe"):
        results.export(to="card", out=tmp_path / "mine")
    assert (tmp_path / "mine" / "README.md").read_text() == "# My project"
    (tmp_path / "odd" / "README.md").mkdir(parents=True)
    with pytest.raises(StorageError, match="is a folder, and the card is a file"):
        results.export(to="card", out=tmp_path / "odd")


def test_a_card_says_how_texts_were_read_and_what_was_not_searched(two: Any) -> None:
    results, _ = two
    reading = {"chat": {"template": "ab12"}, "skip_special": True, "each_token": True}
    audit = {**results.meta["audit"], "near": None}
    activations = {"compute_dtype": "bfloat16", "edited": "add at resid_pre.1"}
    meta = {**results.meta, "reading": reading, "audit": audit, "activations": activations}
    rates = {"fpr": 0.01} | dict(zip(("tpr", "tpr_low", "tpr_high"), (0.7, 0.6, 0.8), strict=True))
    rates |= dict(zip(("test_fpr", "test_fpr_low", "test_fpr_high"), (0.02, 0.0, 0.1), strict=True))
    best = dataclasses.replace(results.best, rates=rates)
    text = card(pk.ProbeResults([*results.layers], results.baselines, meta), best, "probe")
    for row in (
        "| chat template | `template: ab12` |",
        "| special tokens | `left out` |",
        "| rows | `every token` |",
        "| model computed in | `bfloat16` |",
        "| edits of the model | `add at resid_pre.1` |",
    ):
        assert row in text
    assert "- Near-duplicates across splits were not searched for." in text
    said = as_sentence("test TPR 0.700 [0.600, 0.800], FPR 0.020 [0.000, 0.100]")
    assert said in text


def test_what_cannot_be_exported(two: Any, tmp_path: Path) -> None:
    results, _ = two
    mlp = pk.train_probes(acts_of("two"), probe=MLPProbe(max_epochs=2), controls=0, codelength=False)
    sklearn = pk.train_probes(acts_of("two"), probe=LogisticRegression(), controls=0, codelength=False)
    out = tmp_path / "x"
    refused: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (lambda: results.export(to="pickle", out=out), UsageError, "unknown kind of export 'pickle'"),
        (lambda: results.export("resid_pre.9", to="numpy", out=out), UsageError, "no probe of 'resid_pre.9'"),
        (lambda: results.export(9, to="numpy", out=out), UsageError, "no probe of '9'"),
        (lambda: mlp.export("resid_pre.3", to="gguf-control-vector", out=out), UsageError, "MLPProbe.* has none"),
        (lambda: results.export("resid_pre.1", to="csv", out=out), UsageError, "leave the place"),
        (lambda: mlp.export(to="sklearn-json", out=out), UsageError, "is not linear in one row"),
        (lambda: sklearn.export(to="numpy", out=out), DataError, "no fitted probe"),
        (lambda: results.export(to="numpy", out=tmp_path), StorageError, "is a folder"),
    ]
    for call, error, message in refused:
        with pytest.raises(error, match=message):
            call()
    assert not out.exists()
    mlp.export(to="numpy", out=str(out))
    assert "hidden_coef" in np.load(io.BytesIO(out.read_bytes())).files
    assert "was not saved" in sklearn.export(to="card", out=tmp_path / "c").read_text()


def test_several_curves_make_one_table(tmp_path: Path) -> None:
    acts = acts_of("two")
    curves = pk.train_probes(acts, labels=["label"], points=["resid_pre"], C=1.0, controls=0, codelength=False)
    table = pd.read_csv(curves.export(to="csv", out=tmp_path / "t.csv"))
    assert len(table) == len(curves.to_frame())
    text = curves.export(to="latex", out=tmp_path / "t.tex").read_text()
    assert balanced(text)
    (curve,) = curves.values()
    assert isinstance(curve, ProbeData)
    assert f"{curve.estimate[0]:.3f}" in text

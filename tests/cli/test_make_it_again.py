"""The commands that a report prints make the same figures again, whatever the options and the names."""

import csv
import json
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import probekit as pk
from probekit.activations import load_activations
from probekit.cli.commands import SECTIONS
from probekit.cli.derive import command
from probekit.cli.main import run
from probekit.options import CausalOptions, ExtractOptions, ProbeOptions, SweepOptions, TaskOptions
from probekit.options.typed import changed, command_line, typed
from probekit.report.runs import load_runs
from probekit.report.sections.provenance import commands_of, provenance_section
from probekit.results.kinds import KINDS
from probekit.side_by_side import Comparison

TEXT, LABEL, PAGES = "the text; $(touch bad)", 'it\'s a "label"', "pages, printed"
QUICK = "--quick --no-intervals --C 0.1,1"


@pytest.fixture(scope="module")
def data(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of data, which stays where it is when commands are run again.

    my texts.csv: the texts of the other tests in columns of awkward names, with a number and a source for each.
    one.csv: separated by semicolons, with a column of splits that holds truth values. two.jsonl: token ids.
    pairs.csv: minimal pairs.
    """
    folder = tmp_path_factory.mktemp("awkward data")
    with texts.open(newline="") as source, (folder / "my texts.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([TEXT, LABEL, PAGES, "from where"])
        for i, row in enumerate(csv.DictReader(source)):
            writer.writerow([row["text"], row["label"], 10 + 3 * (i % 7), "web" if i % 4 < 2 else "book"])
    rows = [(f"text {i} {'good' if i % 2 else 'bad'}", "gb"[i % 2], int(i % 6 > 3)) for i in range(60)]
    lines = "".join(f"{text};{label};{last}\n" for text, label, last in rows)
    (folder / "one.csv").write_text(f"text;label;is_test\n{lines}")
    ids = [{"ids": [3 + i % 20, 3 + i // 20, 5 + i % 2], "label": label} for i, (_, label, _) in enumerate(rows)]
    (folder / "two.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ids))
    pairs = "clean,corrupted,clean_answer,corrupted_answer\na b c,a d c,g,b\na b,d a b,g,b\n"
    (folder / "pairs.csv").write_text(pairs)
    return folder


def words_in_bash(line: str) -> list[str]:
    """What bash makes of a line."""
    done = subprocess.run(["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, check=True)
    return done.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]


def test_bash_reads_the_words_that_were_quoted() -> None:
    words = [
        "a b",
        "it's",
        "$(touch bad)",
        "`x`",
        "tab\there",
        "new\nline",
        "\x1b[31mred\\",
        "\u202eturned",
        "é",
        "",
        "*",
    ]
    line = command_line([*words, "\udcff"])
    assert words_in_bash(line) == [*words, "\udcff"]
    assert line.isprintable()


@pytest.mark.parametrize(
    "options",
    [
        TaskOptions(text_column="a", columns="a,b", header=False, validation=False, limit=7, keep_columns="c"),
        ExtractOptions(points=["resid_pre", "z"], layers="0,2", position=["last", "mean"], bos=False, dtype="float16"),
        ProbeOptions(C=[0.1, 1 / 3], quick=True, layers="1-2", nuisance=["length", "tokens"], metric="auroc"),
        ProbeOptions(probe={"name": "k-sparse", "k": "4"}, codelength=False, folds=3),
        SweepOptions(probe=("ridge", "lda"), points=["resid_pre", "z"], regression=["a", "b"], C=[0.5], quick=True),
        CausalOptions(answers="is,are", methods="erase", scales="-1,2.5", das=False, rows=20, at="all"),
    ],
    ids=lambda options: type(options).__name__,
)
def test_the_words_of_options_give_these_options(options: Any) -> None:
    """Read as the command line reads them, by a command that has these options alone."""
    kind, given = type(options), []

    def capture(options: Any) -> None:
        given.append(options)

    capture.__annotations__["options"] = kind
    app = typer.Typer()
    app.command("train-probe")(command()(capture).function)
    values = changed(options)
    done = CliRunner().invoke(app, typed(kind, values, "train-probe"), obj=SECTIONS, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert changed(given[0]) == values
    assert typed(kind, changed(kind())) == []


STORE = "a store's folder"
OUT = ["--out", STORE, "--quiet"]
EDITS = "--answers g,b --rows 10 --placebos 1 --no-das --no-completeness --layer 1 --quiet"


def extract(more: str = "", label: str = LABEL) -> list[str]:
    """The words that make the store of a case; MODEL and DATA stand for the model's folder and that of the data."""
    columns = ["--text-column", TEXT, "--label-column", label, "--bos", "--on-bad-row", "skip"]
    made = ["extract", "--model", "MODEL", "--dataset", "DATA/my texts.csv", *columns, *shlex.split(more)]
    return [*made, *OUT]


def train(more: str = "") -> list[str]:
    return ["train-probe", STORE, *shlex.split(f"{more} {QUICK} --quiet")]


def on_store(command: str, more: str) -> list[str]:
    return [command, STORE, *shlex.split(more)]


CASES: dict[str, dict[str, list[list[str]]]] = {
    "curve": {
        "columns": [extract("--limit 24"), train("--layer 1-2 --seed 3")],
        "another folder": [extract(), train("--out 'else where'")],
        "a folder of its own in the store": [extract(), train(f'--layer 1 --out "{STORE}/results/mine"')],
        "two label columns": [extract("", f"{LABEL},from where"), train("--layer 1 --label 'from where'")],
    },
    "curves": {
        "within values": [
            extract("--keep-columns 'from where'"),
            train("--within 'from where' --layer 1 --least-texts 1"),
        ],
        "regression": [
            extract("--regression --points resid_pre,attn_out", PAGES),
            train("--point attn_out,resid_pre"),
        ],
    },
    "positions": {
        "by position": [extract("--position all"), train("--by position-from-end --least-texts 3 --layer 1")],
    },
    "heads": {"heads in folds": [extract("--points z"), train("--by head --folds 3 --layer 1")]},
    "transfer": {
        "a shift": [
            extract("--keep-columns 'from where'"),
            train("--shift-column 'from where' --layer 1 --least-texts 1"),
        ],
        "between tasks": [
            *(
                f"extract --model MODEL --dataset DATA/{file} --out {out} --limit 50 --quiet".split()
                for file, out in (("one.csv", "one"), ("two.jsonl", "two"))
            ),
            ["transfer", "one", "two", "--layer", "1", "--probe", "ridge", "--C", "0.1", "--seed", "2", "--quiet"],
        ],
    },
    "causal": {
        "edits": [extract(), train("--layer 1"), on_store("causal", f"{EDITS} --method erase,steer --scale -1,2.5")],
        "probes of one of several curves": [
            ["extract", "--model", "MODEL", "--dataset", "DATA/one.csv", "--points", "resid_pre,attn_out", *OUT],
            train("--point resid_pre,attn_out --layer 1 --out several"),
            ["causal", "several/label-resid_pre", "--store", STORE, *f"{EDITS} --method erase".split()],
        ],
        "minimal pairs": [
            extract(),
            on_store("causal", "--method patch --pairs DATA/pairs.csv --align last --placebos 1 --layer 1 --quiet"),
        ],
    },
    "comparison": {
        "two points": [
            extract("--points resid_pre,attn_out"),
            train("--layer 1 --point attn_out --out 'the first'"),
            train("--layer 0-1 --point resid_pre"),
            ["compare", "the first", f"{STORE}:resid_pre.1", "--axis", "depth", "--seed", "2", "--quiet"],
        ],
    },
    "grids": {
        "several positions": [
            extract("--position all"),
            train("--by position --folds 3 --least-texts 1 --layer 1 --probe ridge,mean-diff"),
        ],
        "several shifts": [
            extract("--keep-columns 'from where' --points resid_pre,attn_out"),
            train("--shift-column 'from where' --layer 1 --least-texts 1 --point attn_out,resid_pre"),
        ],
    },
}
"""Kind of results -> case -> the commands that make them."""


@pytest.mark.usefixtures("blank_pictures")
@pytest.mark.parametrize(("kind", "case"), [(kind, case) for kind in KINDS for case in CASES[kind]])
def test_the_commands_make_the_same_figures(kind: str, case: str, gpt2_folder: Path, data: Path, here: Path) -> None:
    for words in CASES[kind][case]:
        placed = [word.replace("MODEL", str(gpt2_folder)).replace("DATA", str(data)) for word in words]
        assert run(placed) == 0, placed
    assert [path for path in here.rglob(KINDS[kind].file) if path.is_file()]
    check_again(here, here / ("one" if case == "between tasks" else STORE))


def check_again(here: Path, store: Path) -> None:
    """Print the commands, move everything away, run them, and compare all figures and tensors."""
    lines = commands_for(here, store)
    before, tensors = figures(here), load_activations(store).meta
    for path in here.iterdir():
        shutil.rmtree(path)
    for line in lines:
        program, *words = shlex.split(line)
        assert program == "probekit"
        assert run([*words, "--quiet"]) == 0, line
    assert figures(here) == before
    again = load_activations(store).meta
    assert all(tensors[key] == again[key] for key in ("task_fingerprint", "places", "position", "dtype", "asked"))


def commands_for(here: Path, store: Path) -> list[str]:
    """The commands that are printed of all results in a folder: of a comparison below its table, else in the report."""
    found = {path.parent: kind for kind, own in KINDS.items() for path in sorted(here.rglob(own.file))}
    outer = {folder: kind for folder, kind in found.items() if folder.parent not in found}
    runs = load_runs([folder for folder, kind in outer.items() if kind != "comparison"], store)
    lines = [line for one in runs for line in commands_of(one)]
    for folder in (folder for folder, kind in outer.items() if kind == "comparison"):
        _, printed = Comparison.load(folder).summary().split("Make it again: ")
        lines.append(f"{printed} --out {shlex.quote(str(folder))}")
    return list(dict.fromkeys(lines))


def figures(here: Path) -> dict[str, Any]:
    """Every number of every result, and what was asked; without when and how long.

    Commands always name the label and the point, where the first one may have left them to their defaults.
    """
    found = {}
    for path in sorted(here.rglob("*.json")):
        if path.name in {kind.file for kind in KINDS.values()}:
            body = json.loads(path.read_text())
            asked = body.pop("meta").get("asked") or {}
            found[str(path.relative_to(here))] = {**body, "asked": {**asked, "label": None, "point": None}}
    assert found
    return found


@pytest.mark.usefixtures("blank_pictures")
def test_data_from_memory_are_said_to_be_missing(gpt2_folder: Path, here: Path) -> None:
    texts = [(f"text {i} {'good' if i % 2 else 'bad'}", i % 2) for i in range(40)]
    pk.extract(pk.load_model(str(gpt2_folder)), pk.load_task(texts), out=here / "store")
    assert run(["train-probe", "store", *QUICK.split(), "--layer", "1", "--quiet"]) == 0
    (one,) = load_runs([here / "store"])
    assert "--dataset DATA" in commands_of(one)[0]
    assert "came from memory" in provenance_section([one]).html


@pytest.mark.usefixtures("blank_pictures")
def test_the_page_of_causal_results_alone_begins_with_their_store_and_probes(
    gpt2_folder: Path, data: Path, here: Path
) -> None:
    for words in CASES["causal"]["edits"]:
        assert run([word.replace("MODEL", str(gpt2_folder)).replace("DATA", str(data)) for word in words]) == 0
    (folder,) = (path.parent for path in here.rglob("causal.json"))
    (alone,), (page,) = load_runs([folder]), load_runs([here / STORE])
    assert commands_of(alone) == commands_of(page)
    assert [line.split()[1] for line in commands_of(alone)] == ["extract", "train-probe", "causal"]

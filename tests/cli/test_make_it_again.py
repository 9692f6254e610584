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
from probekit.options import CausalOptions, ExtractOptions, ProbeOptions, TaskOptions
from probekit.options.typed import changed, command_line, typed
from probekit.report.runs import load_runs
from probekit.report.sections.provenance import commands_of, provenance_section
from probekit.results.kinds import KINDS

TEXT, LABEL, PAGES = "the text; $(touch bad)", 'it\'s a "label"', "pages, printed"
QUICK = "--quick --no-intervals --C 0.1,1"


@pytest.fixture(scope="module")
def table(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The texts of the other tests in columns of awkward names, with a number and a part of speech for each."""
    path = tmp_path_factory.mktemp("awkward data") / "my texts.csv"
    with texts.open(newline="") as source, path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([TEXT, LABEL, PAGES, "from where"])
        for i, row in enumerate(csv.DictReader(source)):
            writer.writerow([row["text"], row["label"], 10 + 3 * (i % 7), "web" if i % 4 < 2 else "book"])
    return path


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


CASES = {
    "columns": ("--limit 24", "--layer 1-2 --seed 3"),
    "another folder": ("", "--out 'else where'"),
    "a folder of its own in the store": ("", '--layer 1 --out "a store\'s folder/results/mine"'),
    "two label columns": ("", "--layer 1 --label 'from where'"),
    "regression": ("--regression --points resid_pre,attn_out", "--point attn_out,resid_pre"),
    "by position": ("--position all", "--by position-from-end --least-texts 3 --layer 1"),
    "heads in folds": ("--points z", "--by head --folds 3 --layer 1"),
    "several positions": (
        "--position all",
        "--by position --folds 3 --least-texts 1 --layer 1 --probe ridge,mean-diff",
    ),
    "several shifts": (
        "--keep-columns 'from where' --points resid_pre,attn_out",
        "--shift-column 'from where' --layer 1 --least-texts 1 --point attn_out,resid_pre",
    ),
    "a shift": ("--keep-columns 'from where'", "--shift-column 'from where' --layer 1 --least-texts 1"),
}


@pytest.mark.usefixtures("blank_pictures")
@pytest.mark.parametrize("case", CASES)
def test_the_commands_make_the_same_figures(case: str, gpt2_folder: Path, table: Path, here: Path) -> None:
    extract, train = map(shlex.split, CASES[case])
    label = {"regression": PAGES, "two label columns": f"{LABEL},from where"}.get(case, LABEL)
    columns = ["--text-column", TEXT, "--label-column", label, "--bos", "--on-bad-row", "skip"]
    store = here / "a store's folder"
    made = ["extract", "--model", str(gpt2_folder), "--dataset", str(table), *columns, *extract]
    assert run([*made, "--out", str(store), "--quiet"]) == 0
    assert run(["train-probe", str(store), *train, *QUICK.split(), "--quiet"]) == 0
    folders = [here / "else where"] if case == "another folder" else [store]
    check_again(here, store, folders)


def check_again(here: Path, store: Path, paths: list[Path]) -> None:
    """Print the commands, move everything away, run them, and compare all figures and tensors."""
    lines = list(dict.fromkeys(line for one in load_runs(paths, store) for line in commands_of(one)))
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


def figures(here: Path) -> dict[str, Any]:
    """Every number of every result, without when and how long."""
    found = {}
    for path in sorted(here.rglob("*.json")):
        if path.name in {kind.file for kind in KINDS.values()}:
            body = json.loads(path.read_text())
            found[str(path.relative_to(here))] = {key: value for key, value in body.items() if key != "meta"}
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
def test_the_command_of_the_edits_has_all_options(gpt2_folder: Path, texts: Path, here: Path) -> None:
    store = here / "store"
    made = ["extract", "--model", str(gpt2_folder), "--dataset", str(texts), "--out", str(store), "--quiet"]
    assert run(made) == 0
    assert run(["train-probe", str(store), *QUICK.split(), "--layer", "1", "--quiet"]) == 0
    few = "--method erase,steer --rows 10 --placebos 1 --no-das --no-completeness --scale -1,2.5 --layer 1"
    assert run(["causal", str(store), "--answers", "g,b", *few.split(), "--quiet"]) == 0
    check_again(here, store, [store])


@pytest.mark.usefixtures("blank_pictures")
def test_the_commands_of_a_transfer(gpt2_folder: Path, here: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tasks of separated values, with a column of splits that holds truth values, and of token ids."""
    data = tmp_path_factory.mktemp("two tasks")
    rows = [(f"text {i} {'good' if i % 2 else 'bad'}", "gb"[i % 2], int(i % 6 > 3)) for i in range(60)]
    (data / "one.csv").write_text("text;label;is_test\n" + "".join(f"{text};{k};{last}\n" for text, k, last in rows))
    ids = [{"ids": [3 + i % 20, 3 + i // 20, 5 + i % 2], "label": k} for i, (_, k, _) in enumerate(rows)]
    (data / "two.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ids))
    for file in ("one.csv", "two.jsonl"):
        made = ["extract", "--model", str(gpt2_folder), "--dataset", str(data / file), "--out", file[:3], "--quiet"]
        assert run([*made, "--limit", "50"]) == 0
    job = ["transfer", "one", "two", "--layer", "1", "--probe", "ridge", "--C", "0.1", "--seed", "2", "--quiet"]
    assert run(job) == 0
    check_again(here, here / "one", [here / "one"])

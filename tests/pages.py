"""Pages of the documents and notebooks, run as a reader would: Python and commands, from top to bottom.

    <!-- not run: needs an object store -->

above a block says why it can't run here; its commands are then parsed, with the options that they give. A block of
Python with a file's name (```python title="probekit/worlds/votes.py") is that file, or lines of a table in it. An
indented block is one of commands if it has a mark, or its first line is a command; `$` marks the commands where their
output follows. Commands run in bash, and `...` in them stands for a model and a task.

As a program, `pages.py FOLDER` makes the files that pages name in FOLDER/files, puts a program `page` in FOLDER, and
serves it until stdin ends: `page PAGE.md EMPTY_FOLDER` runs one page there, in a process of its own.
"""

import ast
import csv
import gzip
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPO = Path(__file__).parents[1]
FENCE = re.compile(r"( *)```(\w*)(?: title=\"(.+)\")?$")
MARK = re.compile(r"<!-- not run: (.+) -->")
COMMANDS = re.compile(r"(\$ )?(probekit|make|pip|python|for|zcat|ray|hf|cp) ")
# bash where nothing but `probekit` is there: other commands do nothing, or call it as srun and ray do
PARSING = """
command_not_found_handle() {
    while (( $# )); do
        case $1 in probekit) "$@"; return;; "probekit "*) eval "$1"; return;; esac
        shift
    done
}
"""
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
TABLES = {  # files whose blocks are lines of a table
    "probekit/models/families/__init__.py": "FILES",
    "probekit/probes/find.py": "PROBES",
    "probekit/worlds/__init__.py": "WORLDS",
}


@dataclass(frozen=True)
class Block:
    """A block of a page: `language` is python, sh or "" for what is only read; `not_run` says why it can't run here."""

    language: str
    code: str
    line: int
    file: str
    not_run: str


def blocks(page: Path) -> Iterator[Block]:
    """The blocks of a page in order, or the cells of a notebook."""
    if page.suffix == ".ipynb":
        for number, cell in enumerate(json.loads(page.read_text(encoding="utf-8"))["cells"], start=1):
            if cell["cell_type"] == "code":
                yield Block("python", "".join(cell["source"]), number, "", "")
        return
    lines = page.read_text(encoding="utf-8").splitlines()
    at, before = 0, ""  # the last line with text, where only a mark counts
    while at < len(lines):
        line, start = lines[at], at + 1
        at += 1
        if fence := FENCE.match(line):
            while lines[at].strip() != "```":
                at += 1
            code, language = lines[start:at], {"bash": "sh"}.get(fence[2], fence[2])
            at += 1
        elif line.startswith("    ") and (at == 1 or not lines[at - 2].strip()):
            while at < len(lines) and lines[at].startswith("    "):
                at += 1
            code, start = lines[start - 1 : at], start - 1
            language = "sh" if COMMANDS.match(line.strip()) or MARK.fullmatch(before.strip()) else ""
        else:
            before = line if line.strip() else before
            continue
        mark, before = MARK.fullmatch(before.strip()), ""
        if language == "sh" and code[0].strip().startswith("$ "):
            code = [each.strip()[2:] for each in code if each.strip().startswith("$ ")]
        yield Block(language, "\n".join(code) + "\n", start, (fence and fence[3]) or "", mark[1] if mark else "")


def run_page(page: Path, folder: Path, check: str) -> None:
    """Run a page in a folder with the files that pages name, and then a line of Python that checks what it made."""
    from warm_program import WarmProgram

    shutil.copytree(Path(os.environ["PAGES_FILES"]), folder, symlinks=True, dirs_exist_ok=True)
    os.chdir(folder)
    scope: dict[str, Any] = {"__name__": "__main__"}
    for number, block in enumerate(blocks(page)):
        where = f"{page}:{block.line + 1}"
        if block.language == "sh":
            bin_folder = folder / f".bin{number}"
            bin_folder.mkdir()
            program = WarmProgram(bin_folder / "probekit", parse if block.not_run else run)
            try:
                _bash(block, bin_folder, where)
            finally:
                program.close()
        elif block.language == "python" and not block.not_run:
            if block.file in TABLES:
                module = importlib.import_module(
                    block.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
                )
                *imports, entry = block.code.strip().rsplit("\n", 1)
                exec("\n".join(imports), vars(module))
                exec(f"{TABLES[block.file]}.update({{{entry}}})", vars(module))
                for cached in [value for value in vars(module).values() if hasattr(value, "cache_clear")]:
                    cached.cache_clear()
            elif block.file:
                _write(block, folder, page)
            else:
                show(block, page, scope)
    exec(check, scope)


def show(block: Block, page: Path, scope: dict[str, Any]) -> None:
    """Run a block, and make what a notebook would show of its last line."""
    tree = ast.parse("\n" * block.line + block.code)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, str(page), "exec"), scope)
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), str(page), "eval"), scope)
        getattr(value, "_repr_html_", value.__repr__)()


def _bash(block: Block, bin_folder: Path, where: str) -> None:
    path, code = f"{bin_folder}:{Path(sys.executable).parent}:{os.environ['PATH']}", f"set -euo pipefail\n{block.code}"
    if block.not_run:
        path, code = str(bin_folder), f"{PARSING}\n{block.code}"
    done = subprocess.run(
        [shutil.which("bash") or "/bin/bash", "-c", code],
        env=os.environ | {"PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode or "probekit: error" in done.stderr:
        raise AssertionError(
            f"{where}: exit {done.returncode}\n{block.code}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        )


def _write(block: Block, folder: Path, page: Path) -> None:
    """A file of the package, importable from now on; or a file of tests, which are run."""
    file = folder / block.file
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(block.code, encoding="utf-8")
    if block.file.startswith("probekit/"):
        importlib.import_module(".".join(Path(block.file).parts[:-1])).__path__.append(str(file.parent))
    else:
        scope: dict[str, Any] = {"__name__": file.stem}
        exec(compile("\n" * block.line + block.code, str(page), "exec"), scope)
        for name, test in scope.items():
            if name.startswith("test_") and callable(test):
                test()


def run(arguments: list[str]) -> int:
    """`probekit ...`."""
    from probekit.cli.main import run

    return run(arguments)


def parse(arguments: list[str]) -> int:
    """`probekit ...` as far as its options: they exist, and their values are of the right kind."""
    import typer

    from probekit.cli import derive

    build = derive.build_arguments

    def built(*given: Any) -> Any:
        build(*given)
        raise typer.Exit(0)

    derive.build_arguments = built
    named = ["--model", "gpt2", "--dataset", "sst2"]
    return run([word for each in arguments for word in (named if each == "..." else [each])])


def hub_repos() -> dict[str, dict[str, bytes]]:
    """What the Hub of the pages has: the names that pages give, each a tiny GPT-2, with the layers that they name."""
    from hub_repos import tiny_gpt2, tiny_sst2

    gpt2, small = (tiny_gpt2(n_layers, words=" good bad") for n_layers in (9, 3))
    chat = {**small, "tokenizer_config.json": json.dumps({"chat_template": TEMPLATE}).encode()}
    steps = ["", "@step0", "@step512", "@step4000", "@step143000"]
    return {
        "models/openai-community/gpt2": gpt2,
        "models/Qwen/Qwen2.5-0.5B-Instruct": chat,
        "datasets/stanfordnlp/sst2": tiny_sst2(n=200),
        **{f"models/EleutherAI/pythia-70m{step}": small for step in steps},
    }


def make_files(folder: Path) -> None:
    """The files that pages name: tables of 120 texts, a model of six layers, two stores with results."""
    import numpy as np
    from hub_repos import sentences
    from user_files import write_model

    from probekit.tasks import load_task

    folder.mkdir()
    os.chdir(folder)
    load_task("sst2")  # imports `datasets` before pages are forked, of which each would take seconds for it
    for name in ("path/to/tasks", "path/to/treebank", "runs", "acts"):
        Path(name).mkdir(parents=True)
    for name in ("configs", "experiments", "benchmarks"):
        Path(name).symlink_to(REPO / name)
    Path("probekit/models").mkdir(parents=True)
    Path("probekit/models/builtin").symlink_to(REPO / "probekit/models/builtin")
    write_model(Path("path/to/model"), n_layers=6)
    write_model(Path("path/to/chat-model"), n_layers=2)
    Path("path/to/chat-model/tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    rows: list[dict[str, Any]] = [
        {
            "id": str(i),
            "key": f"k{i}",
            "split": ("tr", "va", "te")[min(i % 5, 2)],
            "city": f"{chr(65 + i // 2 % 26)}ville {i // 52}",
            "label": "true" if i % 2 else "false",
            "honest": "yes" if i % 2 else "no",
            "text": f"text {i} is {'good' if i % 2 else 'bad'}",
        }
        for i in range(120)
    ]
    for i, row in enumerate(rows):
        entities = [{"start": 0, "end": 4, "label": "name"}, {"label": "other"}]
        user, assistant = (
            {"role": "user", "content": f"Is {i} even?"},
            {"role": "assistant", "content": "Yes." if i % 2 else "No."},
        )
        row |= {"entities": entities, "messages": [user, assistant]}
    for name in ("cities", "statements", "new", "texts"):
        _write_csv(Path(f"{name}.csv"), rows, ["text", "label", "city"])
    _write_csv(Path("prompts.csv"), rows, ["text"])
    _write_csv(Path("judged.csv"), rows, ["key", "honest"], names=["id", "honest"])
    for name, first in (("neg_cities", "No"), ("path/to/tasks/first", "So"), ("path/to/tasks/second", "Yet")):
        _write_csv(
            Path(f"{name}.csv"), [{**row, "text": f"{first} {row['text']}"} for row in rows], ["text", "label", "city"]
        )
    _write_jsonl(Path("judged.jsonl"), [{**row, "id": f"prompts:{row['id']}"} for row in rows], ["id", "honest"])
    _write_jsonl(Path("chats.jsonl"), rows, ["messages", "label"])
    _write_jsonl(Path("entities.jsonl"), rows, ["text", "entities"])
    _write_jsonl(Path("prompts.jsonl"), rows, ["key", "text"])
    _write_jsonl(Path("million.jsonl"), rows, ["text", "label"])
    sentences_of_pairs = [
        {"pairID": str(i), "sentence_good": f"text {i} is good", "sentence_bad": f"text {i} is bad"} for i in range(40)
    ]
    _write_jsonl(Path("npi_present_1.jsonl"), sentences_of_pairs, ["pairID", "sentence_good", "sentence_bad"])
    Path("past_present.txt").write_text("".join(f"{row['split']}\t{row['label']}\t{row['text']}\n" for row in rows))
    with gzip.open("texts.jsonl.gz", "wt") as file:
        file.writelines(json.dumps({"text": row["text"], "label": row["label"]}) + "\n" for row in rows)
    pairs = [("the key", "the keys", "is", "are"), ("the door", "the doors", "is", "are")]
    Path("pairs.csv").write_text(
        "clean,corrupted,clean_answer,corrupted_answer\n" + "".join(",".join(p) + "\n" for p in pairs)
    )
    Path("template.jinja").write_text(TEMPLATE)
    words = [("the", "DET"), ("dog", "NOUN"), ("barks", "VERB"), ("loudly", "ADV")]
    for name, n in (("train", 40), ("dev", 10), ("test", 10)):
        lines = [f"{k + 1}\t{w}\t{w}\t{p}\t_\t_\t0\t_\t_\t_" for k, (w, p) in enumerate(words)]
        text = "".join(
            f"# sent_id = {name}{i}\n" + "\n".join([*lines, f"5\t{name}{i}\t_\tNOUN\t_\t_\t0\t_\t_\t_"]) + "\n\n"
            for i in range(n)
        )
        Path(f"path/to/treebank/{name}.conllu").write_text(text)
    splits = ["train"] * 200 + ["validation"] * 240 + ["test"] * 60  # 240: a threshold for 1% needs 100 negatives
    reviews = [
        {"text": text, "label": label, "split": split}
        for (text, label), split in zip(sentences(0, 500), splits, strict=True)
    ]
    _write_csv(Path("reviews.csv"), reviews, ["text", "label", "split"])
    for data, name in (("cities", "cities"), ("neg_cities", "neg_cities"), ("reviews", "STORE")):
        assert run(["extract", "--model", "gpt2", "--dataset", f"{data}.csv", "--out", f"runs/{name}"]) == 0
    assert run(["train-probe", "runs/STORE"]) == 0
    for name in ("gpt2-sst2", "pythia-sst2"):
        shutil.copytree("runs/STORE", f"runs/{name}")
    write_model(Path("runs/othello-gpt"), n_layers=4)
    ids = np.random.default_rng(0).integers(13, size=(80, 8))
    board = np.cumsum(ids[:, :, None] % 4 == np.arange(4), axis=1) > 0
    np.savez("games.npz", ids=ids, board=board * 1.0, turn=ids % 3)
    Path("RESULTS").symlink_to("runs/STORE/results/label-resid_pre-logistic")


def _write_csv(path: Path, rows: list[dict[str, Any]], columns: list[str], names: list[str] | None = None) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([names or columns, *([row[name] for name in columns] for row in rows)])


def _write_jsonl(path: Path, rows: list[dict[str, Any]], columns: list[str]) -> None:
    path.write_text("".join(json.dumps({name: row[name] for name in columns}) + "\n" for row in rows))


def main() -> None:
    """Serve `page`."""
    folder = Path(sys.argv[1])
    import matplotlib.figure
    import matplotlib.pyplot  # what several pages import is imported once
    import pytest
    import torch
    import transformers.models.gpt2.modeling_gpt2  # noqa: F401
    from small_worlds import use_small_worlds
    from warm_program import WarmProgram

    import probekit.causal.curve.problem as problem
    import probekit.evaluation.compare.baselines as baselines
    import probekit.evaluation.compare.codelength as codelength
    import probekit.evaluation.request as request
    import probekit.evaluation.scores.bootstrap as bootstrap
    import probekit.plots.style as style
    import probekit.report  # noqa: F401
    import probekit.worlds as registry
    from probekit.worlds.definition import with_config

    os.environ["PAGES_FILES"] = str(folder / "files")
    torch.set_num_threads(1)
    codelength.FRACTIONS = (0.5, 1.0)  # with all prefixes it took half of the time of train-probe
    request.DEFAULT_C = baselines.BASELINE_C = (0.01, 1.0, 100.0)  # of nine
    bootstrap.Bootstrap.__init__.__defaults__ = (0, None, 50)  # draws, of 1,000
    problem.STEPS, problem.RESTARTS = 4, 1  # the search for a direction took two thirds of the time of the curve
    # pictures that nobody sees are made and not drawn, which tests/plots does
    style._lay_out = lambda figure: None
    matplotlib.figure.Figure.savefig = lambda *_, **__: None
    use_small_worlds(pytest.MonkeyPatch(), folder / "cache")
    honesty: Any = importlib.import_module("probekit.worlds.honesty")
    honesty.WORLD = with_config(honesty.WORLD, n_layers=2)  # chat.ipynb names a row for each, and probes token by token
    for task in registry.TASKS:
        make = registry._module(next(file for file, names in registry.WORLDS.items() if task in names.tasks)).TASKS[
            task
        ]
        few = (320, 120, 120) if task == "honesty" else (160, 48, 48)
        make.__defaults__ = (few, *make.__defaults__[1:])
    make_files(folder / "files")
    program = WarmProgram(folder / "page", served)
    (folder / "ready").touch()
    sys.stdin.read()
    program.close()


def served(arguments: list[str]) -> int:
    """`page PAGE.md FOLDER CHECK`."""
    page, folder, check = arguments
    try:
        run_page(Path(page), Path(folder), check)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    main()

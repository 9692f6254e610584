"""Every option is declared once, as a field, and the command line, `--config` and `--help` follow it."""

import ast
import dataclasses
import functools
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
import typer

from probekit import options
from probekit.cli import derive, main
from probekit.cli.commands import COMMANDS, SECTIONS, SUMMARIES
from probekit.cli.derive import Command
from probekit.cli.fields import CliOption, Output, argument, cli_options, given_of
from probekit.cli.reference import FUNCTIONS, PAGES
from probekit.options import kinds
from probekit.options.option import OptionHelp, help_of, keywords, like, option
from probekit.options.probe import _probes
from probekit.selections import Selection

CLASSES = [getattr(options, name) for name in options.__all__]
OPTIONS = [(name, one) for name, command in COMMANDS.items() for one in command.options.values()]
TYPED: dict[Any, tuple[str, Any]] = {
    kinds.names: ("resid_pre, attn_out", ["resid_pre", "attn_out"]),
    kinds.dtype: ("bf16", "bfloat16"),
    Selection.of: ("-2", Selection(-2)),
    Selection.parse: ("last@user", Selection.parse("last@user")),
    kinds.POSITIONS.parse: ("first,2", [Selection("first"), Selection(2)]),
    kinds.positive_numbers: ("2,0.5", (0.5, 2.0)),
    kinds.n_bytes: ("2.5MB", 2_500_000),
    kinds.stacked_layers: ("4,2-3", [4, 2, 3]),
    kinds.ids: ("3,5", [3, 5]),
    _probes: ("lda,ridge", ("lda", "ridge")),
    int: ("7", 7),
    float: ("0.25", 0.25),
    Path: ("there", Path("there")),
    str: ("text", "text"),
}
"""How a value is typed, and the value in Python, for each way to parse and each type."""

CHECKED = {  # options with a check of their own
    "layers": ("2-3", "2-3"),
    "point": ("resid_mid", "resid_mid"),
    "stack_axis": ("1", 1),
    "n_layers": ("7", 7),
    "metric": ("f1", "f1"),
    "probe": ("lda", "lda"),
    "answers": ("is,are", ("is", "are")),
    "methods": ("patch,erase", ("erase", "patch")),
    "scales": ("2,-1", (-1.0, 2.0)),
    "to": ("csv", "csv"),
    "part": ("2/4", (2, 4)),
    "devices": ("0,cpu", ("cuda:0", "cpu")),
    "workers": ("1:8", (1, 8)),
    "width": ("3.25", 3.25),
    "format": ("pdf,svg", ["pdf", "svg"]),
    "train_texts": ("700", 700),
    "only": ("xor,sort", ("compiled-xor", "compiled-sort")),
}
FIRST = {
    "base_rate": ["--fpr", "0.1"],
    "force": ["--sae", "one"],
    "fpr_of": ["--fpr", "0.1"],
    "top_k": ["--temperature", "1"],
    "top_p": ["--temperature", "1"],
    "quantize": ["--via", "transformers"],
    "at": ["--method", "erase"],
    "pairs": ["--method", "patch"],
    "exact": ["--method", "patch"],
    "picture": ["--dry-run"],
    "model_seed": ["--random-init"],
    "align": ["--method", "patch", "--pairs", "pairs.csv"],
    "workers": ["--engine", "ray"],
    "gpus_per_worker": ["--engine", "ray"],
    "address": ["--engine", "ray"],
    **{field.name: ["--baseline", "prompted"] for field in dataclasses.fields(options.PromptOptions)},
}
"""Options that need another."""
OTHERS = {
    ("compare", "pairs"),
    ("score", "picture"),
    ("causal", "answers"),
    ("generate", "prompt"),
}  # these have the same name
LOADED = ("revision", "via", "device_map", "quantize")
CONTINUED = {field.name for field in dataclasses.fields(options.ContinuationOptions)}
CONTINUE = CONTINUED - {"generate"} | {"stop", "no_stop"}


def first(name: str, one: CliOption) -> list[str]:
    """What must be given before this option of a command."""
    continues = name == "extract" and one.name in CONTINUE
    several = name == "train-probe" and one.name == "position"  # several selections have a curve each
    return [
        *(["--generate", "3"] if continues else []),
        *(["--by", "position"] if several else []),
        *(["--compare"] if (name, one.name) == ("params", "out") else []),
        *(["--model", "text"] if name == "selftest" and one.name in LOADED else []),
        *(FIRST.get(one.name, []) if (name, one.name) not in OTHERS else []),
    ]


def example(one: CliOption) -> tuple[str | None, Any]:
    """A value other than the default, as typed (None for a flag) and in Python."""
    if others := [word for word in one.help.kind.choices if word != one.default]:
        return others[-1], others[-1]
    if one.field.name in CHECKED and one.help.kind.parse in (None, kinds.names):
        return CHECKED[one.field.name]
    if one.kind is bool:
        return None, not one.negates
    if one.kind in (list[str], list[Path]):
        return "text", [get_args(one.kind)[0]("text")]
    return TYPED[one.help.kind.parse or one.kind]


@functools.cache
def made(name: str) -> tuple[Any, dict[str, Any]]:
    """A command that only keeps what it gets, and where it keeps it."""
    command, seen = COMMANDS[name], {}

    def run(**arguments: Any) -> None:
        seen.update(arguments)

    run.__annotations__ = command.run.__annotations__
    app = typer.Typer(add_completion=False)
    app.command()(derive.command()(run).function)
    return typer.main.get_command(app), seen


def objects(name: str, args: list[str]) -> dict[str, Any]:
    """The objects that a command's function gets."""
    click, seen = made(name)
    seen.clear()
    with click.make_context(name, [*args], obj=SECTIONS) as ctx:
        click.invoke(ctx)
    return dict(seen)


def required(name: str, but: str = "", typed: str | None = None) -> list[str]:
    """Arguments without which the command does not run, except `but`; `typed` is in its place where it has no flag."""
    found: list[str] = []
    for one in COMMANDS[name].options.values():
        if one.default is dataclasses.MISSING and one.name != but:
            found += [*one.flags[:1], "text"]
        elif one.name == but and not one.flags and typed is not None:
            found.append(typed)
    return found


@pytest.mark.parametrize("owner", CLASSES, ids=lambda owner: owner.__name__)
def test_every_field_has_help_and_is_on_the_command_line_unless_it_says_not(owner: type) -> None:
    there = {(one.field.name, one.help.flag) for _, one in OPTIONS}
    for field in dataclasses.fields(owner):
        known: OptionHelp = help_of(field)
        assert known.text.endswith((".", "]"))
        assert known.flag is None or (field.name, known.flag) in there


@pytest.mark.parametrize("owner", CLASSES, ids=lambda owner: owner.__name__)
def test_options_are_frozen_and_their_defaults_are_allowed(owner: type) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        owner().seed = 1


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_typed_is_what_python_passes(tmp_path: Path, name: str) -> None:
    """By an option, by `--set` and in a `--config` file alike; each option of the command."""
    for one in COMMANDS[name].options.values():
        typed, value = example(one)
        before = [*required(name, one.name, typed), *first(name, one)]
        flag = one.flags[0].partition("/")[0] if one.flags else None
        ways = [[*before, *([flag] if flag else []), *([typed] if flag and typed is not None else [])]]
        if one.flags:
            path, plain = tmp_path / "c.yaml", "true" if typed is None else typed
            path.write_text(f"{name}: {{{one.key}: " + (f"'{plain}'" if one.kind in (str, Path) else plain) + "}")
            ways += [[*before, "--config", str(path)], [*before, "--set", f"{name}.{one.key}={plain}"]]
        hint = inspect.get_annotations(COMMANDS[name].run)[one.owner]
        usual = objects(name, [*required(name), *first(name, one)])[one.owner]
        for args in ways:
            got = objects(name, args)[one.owner]
            if given_of(hint):
                assert got == {one.field.name: value}, args
            else:
                assert getattr(got, one.field.name) == value, args
                changes_defaults = one.name in ("quick", "by", "aggregate", "shift_column")
                named = {} if changes_defaults else vars(usual)
                assert got == type(usual)(**{**named, one.field.name: value}), args


def test_the_list_of_commands_is_made_without_importing_them() -> None:
    code = "import sys; from probekit.cli.main import run; run(['--help']); print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    modules = out.splitlines()[-1].split()
    assert {name for name in modules if name.startswith("probekit.cli.")} == {
        "probekit.cli.commands",
        "probekit.cli.console",
        "probekit.cli.main",
    }
    assert "probekit.options" not in modules
    for name, command in COMMANDS.items():
        assert SUMMARIES[name] == inspect.getdoc(command.run).splitlines()[0]  # pyright: ignore[reportOptionalMemberAccess]
        assert f"\n  {name:<{max(map(len, COMMANDS))}}  {SUMMARIES[name]}\n" in out


def test_a_name_that_is_no_command_is_refused() -> None:
    assert len(COMMANDS) == len(SUMMARIES)
    assert "extrct" not in COMMANDS
    with pytest.raises(KeyError):
        COMMANDS["extrct"]


@pytest.mark.parametrize("name", COMMANDS)
def test_without_options_python_defaults_hold(name: str) -> None:
    for owner, got in objects(name, required(name)).items():
        hint = inspect.get_annotations(COMMANDS[name].run)[owner]
        if not given_of(hint):
            fields = [field for field in dataclasses.fields(hint) if field.default is dataclasses.MISSING]
            assert got == hint(**{field.name: getattr(got, field.name) for field in fields})


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_every_option_in_order(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert main.run([name, "--help"]) == 0
    out = capsys.readouterr().out.partition("Options:")[2]
    flags = [*(one.flags[0] for one in COMMANDS[name].options.values() if one.flags), "--config", "--set"]
    lines = [re.sub(r"^  -., ", "  ", line) for line in out.splitlines()]
    at = [next(i for i, x in enumerate(lines) if re.match(f"  {flag.partition('/')[0]}( |$)", x)) for flag in flags]
    assert at == sorted(at)


def test_no_function_of_the_command_line_has_a_list_of_options() -> None:
    for path in Path(derive.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                assert len(node.args.args) + len(node.args.kwonlyargs) <= 8, f"{path.name}: {node.name}"


def test_two_options_of_one_name_are_refused() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Job(Output):
        seed: int = option(0, "A seed.")

    def job(job: Job, task: options.TaskOptions) -> None: ...

    with pytest.raises(TypeError, match="two options have one name"):
        cli_options(job)
    with pytest.raises(TypeError, match=r"no options \['absent'\]"):
        cli_options(lambda: None, "absent")


def test_a_command_of_one_class_needs_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Job(Output):
        path: Path = argument("A path.")
        rate: float = option(0.5, "A rate.")

    @derive.command("rate")
    def job(job: Job) -> None:
        """Do it."""
        print(job)

    assert isinstance(job, Command)
    assert list(job.options) == ["rate", "path", "json", "quiet"]


def test_a_field_may_be_taken_over_with_another_text() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Job:
        seed: int = like(options.ModelOptions, "seed", "Another text.", flag="--seed")

    (field,) = dataclasses.fields(Job)
    assert (help_of(field).text, help_of(field).flag) == ("Another text.", "--seed")
    assert help_of(dataclasses.fields(options.ModelOptions)[-1]).flag == "--model-seed"


def test_a_docstring_has_an_entry_for_each_option() -> None:
    @keywords(options.TaskOptions)
    def verb(source: str, options: options.TaskOptions) -> options.TaskOptions:
        """Do it.

        Args:
            source: a name.
            options: as keyword arguments.
        """
        return options

    doc = verb.__doc__ or ""
    assert max(map(len, doc.splitlines())) <= 120
    for field in dataclasses.fields(options.TaskOptions):
        assert f"\n            {field.name}: " in doc
    assert verb("x", limit=3) == options.TaskOptions(limit=3)
    with pytest.raises(TypeError, match=r"verb\(\) has no option 'limits'; did you mean limit"):
        verb("x", limits=3)  # pyright: ignore[reportCallIssue]


def test_the_reference_has_every_option() -> None:
    commands, python = PAGES["commands"](), PAGES["python"]()
    for name, one in OPTIONS:
        section = commands.partition(f"## `probekit {name}`\n")[2].partition("\n## ")[0]
        assert f"| `{(one.flags or (one.help.metavar or one.name.upper(),))[0]}".replace("|", "\\|")[2:] in section
    for call, owner in FUNCTIONS.items():
        section = python.partition(f"## `{call}`\n")[2].partition("\n## ")[0]
        assert all(f"| `{field.name}` |" in section for field in dataclasses.fields(owner))
    assert set(CLASSES) <= {base for owner in [*FUNCTIONS.values(), options.TransferOptions] for base in owner.__mro__}


TOGETHER = {
    "extract": ["stats stats_only", "random_init model_seed", "engine workers gpus_per_worker address"],
    "train-probe": ["controls control_type control_C", "title no_title width format", "nuisance shift_column"],
    "causal": ["title no_title width format", "answers answer_at answers_label"],
}
NEEDED = {
    "extract": "model dataset points layers position text_column label_column limit out dry_run",
    "train-probe": "layer point label probe position quick out baseline metric C",
}


def test_help_begins_with_what_most_people_need_and_keeps_related_options_together() -> None:
    for name, needed in NEEDED.items():
        shown = [key for key, one in COMMANDS[name].options.items() if one.flags]
        assert shown[:10] == needed.split()
    for name, groups in TOGETHER.items():
        shown = " ".join(COMMANDS[name].options)
        assert [group for group in groups if group not in shown] == []


@pytest.mark.parametrize("page", PAGES)
def test_the_tables_of_the_reference_have_equal_columns(page: str) -> None:
    columns = 0  # of the table so far
    for line in PAGES[page]().splitlines():
        if not line.startswith("|"):
            columns = 0
            continue
        found = line.replace("\\|", "").count("|") - 1
        columns = columns or found
        assert found == columns > 1, line
        assert "<" not in line.replace("&lt;", "")


def test_exit_codes_are_listed_once() -> None:
    rows = [line.split("|")[1].strip() for line in PAGES["exit-codes"]().splitlines() if line.startswith("| ")]
    assert rows[2:] == ["0", "2", "3", "4", "5", "130", "138", "143"]

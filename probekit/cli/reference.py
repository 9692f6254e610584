"""The reference pages in Markdown, generated from the options: `python -m probekit.cli.reference [commands]`.

`python -m probekit.cli.reference python` prints the options of the Python functions, `... exit-codes` the exit codes,
`... capabilities` which options do not go together, `... models` the page of the models that load, and
`... readme-models` README's list of them.
"""

import dataclasses
import inspect
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import MISSING
from typing import TYPE_CHECKING, Any, get_type_hints

from probekit import options
from probekit.cli.commands import COMMANDS
from probekit.cli.derive import Command, help_text
from probekit.cli.fields import CliOption
from probekit.cli.main import OTHERS
from probekit.errors import ProbekitError, UsageError, nearest
from probekit.files.published import PUBLISHED
from probekit.models.packaging import PACKAGED
from probekit.options.capabilities import CAPABILITIES, Needs, OneOf, in_words
from probekit.options.option import help_of
from probekit.tables import markdown_table

if TYPE_CHECKING:
    from probekit.models.family import Family


FAMILIES = "probekit/models/families"
HUB = "https://huggingface.co"
_TOP = """\
Open the model's `config.json` and look for `model_type`. If it is in the table, the model loads by its name or
folder; nothing else is needed:

<!-- not run: takes a minute -->

    probekit selftest --model EleutherAI/pythia-70m
    probekit extract --model EleutherAI/pythia-70m --dataset sst2

Every family is written by hand and equals `transformers` at every layer and point. Weights come from safetensors files,
one or several, with or without the head, under the Hub's names or those that `transformers` writes today. A value
of a field of `config.json` with other arithmetic is refused by name; fields that the class does not read are ignored.

**Packaged as multimodal** (`...ForConditionalGeneration`, with `text_config` and `vision_config`): the text model alone
is read, its tensors under whatever prefix the files have, and nothing of a vision or audio tower. The `model_type` of
`text_config` is then the one to look up. Known packagings, each [compared with the complete class on
text](model-types.md#packaged-as-multimodal):
PACKAGED.

**Multi-token prediction heads** (`mtp...`, as in Qwen3-Next, or a layer after the last with `eh_proj`, `enorm` or
`hnorm`, as in DeepSeek V3 and GLM-4.5) are not read. The plan, the manifest (`left_out`) and `selftest` name them.
Any other layer after the last is refused: config.json counts fewer layers than the files hold.

**In few bits**: FP8 (`fp8`, one scale for each block or tensor), MXFP4, `compressed-tensors` of 4 and 8 bits, GPTQ of
2, 4 and 8 bits and AWQ are widened as they are read, a matrix at a time. Activations are not rounded."""
_SHORT = """\
Short names, for `--model` and for `probekit params`, which counts these models without a network:"""
_OTHERS = """\
Where no file here fits, the class that the installed `transformers` has for the config is run, and one line says so.
`--via probekit` insists on a family, `--via transformers` on the class.
[Model types](model-types.md) says for each `model_type` what loads, with which points and batches:

<!-- not run: takes a minute -->

    probekit selftest --model bigscience/bloom-560m
    probekit extract --model bigscience/bloom-560m --dataset sst2

- **Points**: `embed`, `resid_pre`, `resid_post` and, where the class applies a norm after the last block, `ln_final`.
  `attn_out`, `mlp_out` and `resid_mid` where the blocks have them. Loading checks each of them on random texts, short
  and long, alone and in batches, and leaves out those that fail; `selftest` prints what adds up, and how exactly.
  Queries, patterns and what is inside an MLP have no points. Layers that mix tokens by a recurrence or a convolution
  (Mamba) are never called attention: where some layer is one, every layer has `mixer_out`, what its mixer adds.
- **Batches**: packed blocks where the class honours pairwise masks and position ids, which loading checks; otherwise
  batches of texts of similar length. `selftest` says which, and compares them with each text alone.
- **The same as for the families**: hooks and edits at these points, `generate`, stores, probes, causal experiments.
- **Larger than one device**: `--device-map auto` spreads the layers over GPUs and host memory (for the families too;
  here it needs the package accelerate). `--quantize 8bit` or `4bit` needs accelerate and bitsandbytes, and a class
  whose products are linear modules. [What was tried](models.md#models-larger-than-one-device).

Refused in one line: classes that need code from the model's repository, weights in pickles, models that read images
or sound, encoder-decoders, approximate attention (Longformer, Reformer), and a model that fails these checks. A
model that `transformers` does not have can still be probed: [wrap the module](how-to/wrap-a-module.md), save its
activations and [import them](how-to/import-activations.md), or [write its family](how-to/add-a-family.md)."""


def will_it_load_page() -> str:
    """The page "Will my model load?"."""
    rows = [
        (
            " ".join(f"`{name}`" for name in family.model_types),
            f"{family.loads} (`{file}.py`)",
            ", ".join(f"[{hub_id}]({HUB}/{hub_id})" for hub_id in family.hub_examples) or family.how_to,
            family.refused,
        )
        for file, family in _families().items()
    ]
    names = [
        (f"`{model_type}`", ", ".join(f"`{name}`" for name in found)) for model_type, found in _short_names().items()
    ]
    parts = [
        "# Will my model load?",
        "<!-- Generated by `python -m probekit.cli.reference models`; edit the families instead. -->",
        _TOP.replace("PACKAGED", textwrap.fill(", ".join(f"`{name}`" for name in PACKAGED), 118)),
        markdown_table(("`model_type`", "models", "for example", "not implemented, and refused"), rows),
        _SHORT,
        markdown_table(("`model_type`", "short names"), names),
        "## Any other model",
        _OTHERS,
    ]
    return "\n\n".join(parts) + "\n"


def readme_models() -> str:
    """README's list of the models, each with a link to the file of its family."""
    links = [f"[{family.loads}]({FAMILIES}/{file}.py)" for file, family in _families().items()]
    return textwrap.fill("; ".join(links) + ".", 200, break_long_words=False, break_on_hyphens=False)


def _families() -> "dict[str, Family]":
    from probekit.models.families import FILES, families

    found = {id(family): family for family in families().values()}
    return dict(zip(FILES, found.values(), strict=True))


def _short_names() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, model in PUBLISHED.items():
        found.setdefault(model.fields["model_type"], []).append(name)
    return found


GENERATED = "<!-- Generated by `python -m probekit.cli.reference {page}`; edit the options instead. -->"
FUNCTIONS: dict[str, type] = {
    "load_model(name_or_path)": options.ModelArguments,
    "load_task(source)": options.TaskOptions,
    "extract(model, task)": options.ExtractArguments,
    "import_activations(source)": options.ImportArguments,
    "label(acts, labels)": options.LabelOptions,
    "label_store(path, labels)": options.LabelArguments,
    "train_probes(acts)": options.CurvesArguments,
    "prompted_scores(acts)": options.PromptArguments,
    "results.best.score(model, texts)": options.ScoreOptions,
    "sweep(models, tasks)": options.SweepArguments,
    "transfer(activations)": options.TransferArguments,
    "compare(runs)": options.CompareOptions,
    "causal_curve(model, acts, results)": options.CausalArguments,
    "write_report(runs, out)": options.ReportOptions,
    "model.generate(prompt)": options.GenerateOptions,
    "Monitor(model, probe)": options.MonitorOptions,
    "probekit.inspect.probe_scorer(probe, model)": options.SampleOptions,
    "results.export(place)": options.ExportOptions,
    "push_to_hub(source, repo)": options.PushOptions,
    "TrainingSettings()": options.TrainingSettings,
}
"""Public functions and classes with their options."""

_EVERYWHERE = (
    ("`--config FILE`", "", "YAML with a section for each command; the keys are the long options."),
    ("`--set COMMAND.KEY=VALUE`", "", "Override one value of the file, such as extract.limit=100; may be repeated."),
)


def commands_page() -> str:
    """Every command: what it does, examples, and a table of its options."""
    parts = [_command(name, command) for name, command in COMMANDS.items()]
    return "\n\n".join(["# Commands", GENERATED.format(page="commands"), *parts]) + "\n"


def python_page() -> str:
    """The keyword arguments of every public function."""
    parts = ["# Python options", GENERATED.format(page="python")]
    for call, owner in FUNCTIONS.items():
        rows = [_python_row(field) for field in dataclasses.fields(owner)]
        parts += [f"## `{call}`", markdown_table(("Argument", "Default", "What it does"), rows)]
    return "\n\n".join(parts) + "\n"


def capabilities_page() -> str:
    """Which options exclude or need one another, and why."""
    hints = [hint for command in COMMANDS.values() for hint in get_type_hints(command.run).values()]
    known = [*FUNCTIONS.values(), *(hint for hint in hints if dataclasses.is_dataclass(hint))]
    rows = []
    for row in CAPABILITIES:
        if isinstance(row, OneOf):
            groups = [", ".join(in_words(term, _first(known, group)) for term in group) for group in row.groups]
            rows.append(("; ".join(groups), "take one of each group", row.why))
        else:
            lists = _first(known, [*row.options, *row.others])
            one, other = ([in_words(term, lists) for term in each] for each in (row.options, row.others))
            rule = f"need {' or '.join(other)}" if isinstance(row, Needs) else f"exclude {', '.join(other)}"
            rows.append((", ".join(one), rule, row.why))
    table = markdown_table(("Options", "Rule", "Why"), [[*map(_escaped, row)] for row in rows])
    about = (
        "Options that are refused because of another one, in one line, with exit code 2. What a value, a model, a "
        "store or a file rules out is refused where it is read."
    )
    top = ["# Options that exclude or need one another", GENERATED.format(page="capabilities"), about]
    return "\n\n".join([*top, table]) + "\n"


def _first(known: Sequence[Any], terms: Sequence[str]) -> list[Any]:
    """The lists of options, those with most of the terms first: their flags are meant."""
    return sorted(known, key=lambda each: -sum(term in each.__dataclass_fields__ for term in terms))


def exit_codes_page() -> str:
    """Every exit code, with the Python exception that it belongs to."""
    errors = sorted(ProbekitError.__subclasses__(), key=lambda error: error.exit_code)
    rows = [
        ("0", "", "Done."),
        *((str(error.exit_code), f"`{error.__name__}`", _escaped(inspect.getdoc(error) or "")) for error in errors),
        ("130", "`KeyboardInterrupt`", "Interrupted by Ctrl-C; the last line says how to resume."),
        (
            "138",
            "`KeyboardInterrupt`",
            "The same by SIGUSR1 (SIGUSR2: 140), which Slurm can send before a time limit.",
        ),
        ("143", "`KeyboardInterrupt`", "The same by SIGTERM."),
    ]
    table = markdown_table(("Exit code", "Exception", "When"), rows)
    return "\n\n".join(["# Exit codes", GENERATED.format(page="exit-codes"), table]) + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "commands": commands_page,
    "python": python_page,
    "capabilities": capabilities_page,
    "exit-codes": exit_codes_page,
    "models": will_it_load_page,
    "readme-models": lambda: f"{readme_models()}\n",
}


def _command(name: str, command: Command) -> str:
    paragraphs = inspect.cleandoc(command.run.__doc__ or "").split("\n\n")
    tables: dict[str, list[tuple[str, str, str]]] = {}
    for one in command.options.values():
        tables.setdefault(one.heading, []).append(_command_row(command, one))
    tables.setdefault(OTHERS if len(tables) > 1 else "Options", []).extend(_EVERYWHERE)
    parts = [f"## `probekit {name}`", *map(_paragraph, paragraphs)]
    for heading, rows in tables.items():
        parts.append(markdown_table((heading, "Default", "What it does"), rows))
    return "\n\n".join(parts)


def _paragraph(text: str) -> str:
    """A paragraph of a docstring; a block of examples as code."""
    lines = text.removeprefix("\b\n").split("\n")
    if not lines[0].startswith("Example"):
        return _escaped(" ".join(lines))
    return "\n".join(["```sh", *(line.strip() for line in lines[1:]), "```"])


def _command_row(command: Command, one: CliOption) -> tuple[str, str, str]:
    flags = ", ".join(one.flags) or (one.help.metavar or one.name.upper())
    value = "" if one.kind is bool or not one.flags else f" {one.help.metavar or 'TEXT'}"
    text, default = _default(help_text(command.run, one), one.default, shown=one.kind is not bool)
    return f"`{flags}{value}`".replace("|", "\\|"), default, _escaped(f"{text} {_notes(one)}".strip())


def _notes(one: CliOption) -> str:
    """The notes, unless they are about the Python argument."""
    return "" if one.negates or "Python" in one.help.notes else one.help.notes


def _python_row(field: "dataclasses.Field[Any]") -> tuple[str, str, str]:
    known = help_of(field)
    text, default = _default(known.text, repr(field.default), shown=field.default is not None)
    return f"`{field.name}`", default, _escaped(f"{text} {known.notes}".strip())


def _default(text: str, value: Any, *, shown: bool) -> tuple[str, str]:
    """The text without its "[default: ...]", and the default that it gives, or else the value."""
    text, found, default = text.partition("  [default: ")
    if found:
        return text, _escaped(default.removesuffix("]"))
    if value is MISSING:
        return text, "required"
    return text, f"`{value}`" if shown and value is not None else ""


def _escaped(text: str) -> str:
    return " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|").replace("*", "\\*")


def main(arguments: Sequence[str]) -> None:
    """Print one page. Raises UsageError for an unknown one."""
    page = arguments[0] if arguments else "commands"
    if page not in PAGES:
        raise UsageError(f"no page {page!a}; {nearest(page, PAGES)}")
    print(PAGES[page](), end="")


if __name__ == "__main__":
    main(sys.argv[1:])

"""The question that results answer, as JSON: their folder's name and the command that asks it again are made of it."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probekit.errors import DataError
from probekit.files.plain_files import MAX_TABLE, read_bytes
from probekit.files.records import INFINITY
from probekit.files.run import folder_name, question_digest
from probekit.options.causal import CausalOptions
from probekit.options.curve import TransferOptions
from probekit.options.option import help_of
from probekit.options.probe import ProbeOptions
from probekit.options.prompt import PromptOptions
from probekit.options.report import CompareOptions
from probekit.options.sweep import SweepOptions
from probekit.options.typed import command_line, json_value, typed, unusual

OPTIONS_OF: dict[str, tuple[type, tuple[str, ...]]] = {
    "train-probe": (ProbeOptions, ("probe", "aggregate", "quick", "by", "shift_column")),
    "transfer": (TransferOptions, ("probe",)),
    "causal": (CausalOptions, ("at",)),
    "compare": (CompareOptions, ()),
    "sweep": (SweepOptions, ()),
}
"""Command -> its options, and those of them that decide the defaults of others."""

_ASKED_OF = {
    "probes": "causal",
    "stores": "transfer",
    "runs": "compare",
    "dataset": "sweep",
}  # what is asked besides options -> command
NAME_ORDER = (
    "quick",
    "position",
    "by",
    "within",
    "layers",
    "C",
    "folds",
    "drop_leaks",
    "random_init",
    "ensemble",
    "nuisance",
    "shift_column",
    "controls",
    "control_type",
    "control_C",
    "metric",
    "codelength",
    "intervals",
    "concatenate",
    "least_texts",
    "aggregate",
    "on_bad_row",
)
"""Options in the order of a folder's name; those of later versions follow, and the seed is last."""

OF_BLACK_BOXES = ("black_boxes", "black_boxes_digest", *(field.name for field in dataclasses.fields(PromptOptions)))
"""What a question of `train-probe` says of black boxes; without any it says nothing."""

_ALWAYS_NAMED = ("label", "point", "probe")  # always part of the name
_LONGEST = 200  # characters of a folder's name; file systems take 255 bytes


@dataclass(frozen=True)
class Question:
    """What results answer.

    Attributes:
        command: that asks it.
        kind: of the results, a key of `probekit.results.kinds.KINDS`; "sweep" of a sweep.
        asked: from `asked_by`.
        rest: what a digest in the default folder's name stands for, as JSON; None where the name says all.
    """

    command: str
    kind: str
    asked: dict[str, Any]
    rest: Any = None


def asked_by(options: Any, **more: Any) -> dict[str, Any]:
    """What a command asks, as JSON: every option that it has, files by their content, and what `more` names.

    Raises:
        DataError: a file that cannot be read.
    """
    shown = [field.name for field in dataclasses.fields(options) if help_of(field).flag is not None]
    asked = {name: json_value(getattr(options, name)) for name in shown}
    files = {name: content_of_file(path) for name, path in asked.items() if isinstance(path, Path)}
    return json.loads(json.dumps({**asked, **files, **more}), parse_constant=lambda _: INFINITY)


def content_of_file(path: Path) -> str:
    """A digest of what is in a file. Raises DataError if it cannot be read."""
    try:
        return f"sha256 {hashlib.sha256(read_bytes(path, MAX_TABLE)).hexdigest()}"
    except OSError as error:
        raise DataError(f"cannot read {str(path)!a}: {error.strerror}") from None


def default_folder(question: Question, home: Path, *names: str) -> Path:
    """The folder of results without --out: each question has its own, and the same one finds it again.

    Args:
        question: options of `train-probe` that differ from their defaults are in the name, the rest is in its digest.
        home: the folder that it is in.
        names: what a person reads first; of `train-probe` the label, point and probe that were used.
    """
    if question.rest is not None:
        return home / folder_name([question.command, *names], question.rest)
    label, point, probe = names
    name = "-".join([label, point, _probe_tag(question.asked["probe"], probe), *_tags(question)])
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip(".-")
    if plain != name or len(name) > _LONGEST:  # 0,3 and 0-3 would have the same name
        plain = f"{plain[:180]}-{question_digest(name)[:8]}"
    return home / plain


def _probe_tag(probe: Any, name: str) -> str:
    if isinstance(probe, list):
        return "-".join(probe)
    if not isinstance(probe, dict):
        return name
    return "-".join([probe["name"], *(f"{key}-{value}" for key, value in probe.items() if key != "name")])


def _tags(question: Question) -> list[str]:
    asked, (options, forms) = question.asked, OPTIONS_OF[question.command]
    named = {name: value for name, value in unusual(options, asked, forms).items() if name not in _ALWAYS_NAMED}
    if not isinstance(asked["probe"], dict):
        named.pop("aggregate", None)  # the probe's name says it
    if asked["random_init"]:
        named["random_init"] = True
    if asked.get("sae_digest"):
        named["sae"] = asked["sae_digest"]
    if asked.get("black_boxes"):
        named["baseline"] = asked["black_boxes_digest"]
    tags = {field.name: help_of(field).tag for field in dataclasses.fields(options)}
    order = dict.fromkeys([*NAME_ORDER, *(name for name in named if name != "seed"), "seed"])
    spelled = {name: name.replace("_", "-") if tags.get(name) is None else tags[name] for name in order}
    return [_tag(str(spelled[name]), named[name]) for name in order if name in named]


def _tag(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return name if value else f"no-{name}"
    values = [str(each).removesuffix(".0") for each in value] if isinstance(value, list) else [str(value)]
    return "-".join([name, *values] if name else values)


def words_of(asked: Mapping[str, Any], of: Sequence[str], more: Iterable[str] = ()) -> list[str]:
    """The words of the command that asks a question again.

    Args:
        asked: from `asked_by`, as results record it; options at their defaults need no words.
        of: the arguments: a store, stores, probes or runs; of a sweep --model and --dataset with theirs.
        more: further words, such as --out.
    """
    command = next((command for key, command in _ASKED_OF.items() if key in asked), "train-probe")
    options, forms = OPTIONS_OF[command]
    baselines = ["random-init"] * bool(asked.get("random_init")) + asked.get("black_boxes", [])
    words = typed(options, asked, command, forms) + (["--baseline", ",".join(baselines)] if baselines else [])
    if baselines:
        words += typed(PromptOptions, asked)
    if asked.get("sae"):
        words += ["--sae", ",".join(asked["sae"]), *["--force"] * asked["force"]]
    return ["probekit", command, *of, *words, *more]


def told_apart(asked: Sequence[Mapping[str, Any]], command: str) -> list[str]:
    """The options in which the questions of one command differ, as they are typed; no two texts are equal."""
    options, forms = OPTIONS_OF[command]
    differs = {key for one in asked for key in one if any(other.get(key) != one[key] for other in asked)}
    names: list[str] = []
    for i, one in enumerate(asked):
        own = {key: value for key, value in one.items() if key in differs or key in forms}
        name = command_line(typed(options, own, command, forms)) or "the usual options"
        names.append(f"{name} ({i + 1})" if name in names else name)
    return names

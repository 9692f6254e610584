"""What does not go together: each refusal of an option because of another one, with its reason; without numpy.

A term is the name of an option, which counts where it is not its default, or of a property of the options (`IN_WORDS`).
A row is for all options that have its terms: those of one list, and those of one command. What a value, a model, a
store or a file rules out is refused where it is read.
"""

import dataclasses
from collections.abc import Iterable
from itertools import combinations, product
from pathlib import Path
from typing import Any

from probekit.errors import UsageError
from probekit.files.remote.path import RemotePath


@dataclasses.dataclass(frozen=True)
class OneOf:
    """Groups of options of which one may be given."""

    groups: tuple[tuple[str, ...], ...]
    why: str


@dataclasses.dataclass(frozen=True)
class Excludes:
    """Options that do not go together with any of the others."""

    options: tuple[str, ...]
    others: tuple[str, ...]
    why: str


@dataclasses.dataclass(frozen=True)
class Needs:
    """Options that say nothing without one of the others."""

    options: tuple[str, ...]
    others: tuple[str, ...]
    why: str


CAPABILITIES: tuple[OneOf | Excludes | Needs, ...] = (
    OneOf(
        (
            ("title", "no_title"),
            ("stop_tokens", "no_stop"),
            ("stats", "stats_only"),
            ("dataset", "text"),
            ("prompt", "tokens"),
            ("texts", "to"),
            ("point", "points"),
            ("label", "label_sets"),
            ("probe", "probes"),
        ),
        "they are two forms of one choice",
    ),
    OneOf((("part", "devices", "engine"), ("own_device", "device_map", "devices")), "each says where the work runs"),
    Excludes(("header",), ("columns",), "these name the columns of a file that has no line with their names"),
    # Loading and extracting.
    Excludes(
        ("quantize",), ("random_init", "devices"), "weights are quantized as they are read, on the device that they fit"
    ),
    Excludes(("sae",), ("part", "stats_only"), "latents are kept along with all activations of a complete store"),
    Needs(("force",), ("sae",), "it is for an autoencoder that names another model"),
    Needs(("weights_seed",), ("random_init",), "no weights are drawn"),
    Needs(("revision", "via", "device_map", "quantize"), ("model",), "nothing is loaded without a model"),
    Needs(("workers", "gpus_per_worker", "address"), ("engine",), "they are for a Ray cluster (--engine ray)"),
    Excludes(("stats_only",), ("devices", "engine"), "one process adds up; side by side it is --stats-only --part 1/4"),
    Needs(("picture",), ("dry_run",), "it draws the tokens that a dry run shows"),
    Needs(
        ("temperature", "top_k", "top_p", "generate_seed", "stop_tokens", "no_stop"),
        ("generate",),
        "they are for texts that the model continues (--generate N)",
    ),
    Needs(("top_k", "top_p"), ("temperature",), "they choose among tokens to draw; give a temperature above 0"),
    Excludes(
        ("generate",),
        ("part", "several_revisions"),
        "texts are continued once, by one model, before they are cut or read (probekit generate)",
    ),
    # Training.
    Excludes(
        ("of_sequences",),
        ("by", "nuisance", "shift_column"),
        "a probe over a sequence reads all tokens of a text, and the other one row of it",
    ),
    Excludes(("by",), ("concatenate",), "a curve by position or head reads one layer at a time"),
    Excludes(("by",), ("nuisance",), "nuisances are of one row of each text"),
    Needs(("several_positions",), ("by_position",), "a probe reads one position of each text (--by position)"),
    Excludes(
        ("folds",),
        ("drop_leaks",),
        "folds keep repeated and nearly repeated texts together, so that nothing leaks between them",
    ),
    Excludes(
        ("within",),
        ("nuisance_within", "shift_within"),
        "the column is constant there, so it explains and shifts nothing",
    ),
    Excludes(
        ("shift_column",),
        ("folds", "by", "nuisance", "some_controls", "codelength", "baselines", "random_init", "baseline", "log_to"),
        "a matrix of the values of a column is trained and tested on the task's splits, without a curve's checks",
    ),
    Excludes(("black_boxes",), ("by", "shift_column"), "black boxes are baselines of curves whose rows are texts"),
    Excludes(
        ("ensemble",), ("folds", "by", "shift_column"), "it is of the layers of a curve, chosen on its validation rows"
    ),
    Needs(
        ("prompt", "question", "answers", "shots", "as_chat", "prompt_template"),
        ("prompted",),
        "nothing is prompted without it",
    ),
    Excludes(("projection",), ("by", "within", "shift_column"), "a projection draws one layer of one curve"),
    Excludes(("engine",), ("by", "shift_column"), "Ray spreads the places of curves over workers"),
    # Causal experiments, monitors, and the table of models.
    Needs(("pairs", "exact"), ("patches",), "pairs are patched (--method patch)"),
    Needs(("align",), ("pairs",), "it aligns the texts of a file of pairs"),
    Excludes(
        ("patches_pairs_alone",), ("answers", "answers_label", "answer_at"), "the file of pairs has its own answers"
    ),
    Excludes(("patches_alone",), ("neutral", "at"), "patching edits each position by itself, and harms no other text"),
    Excludes(("at",), ("interchanges",), "interchange takes the coordinate of one token from another text"),
    Excludes(("fpr",), ("threshold", "target"), "the rate chooses the threshold of the second class"),
    Needs(("base_rate",), ("fpr",), "it is of the texts that a threshold flags"),
    Needs(("fpr_of",), ("fpr",), "it says what that rate is of"),
    Needs(("on_alarm",), ("threshold", "fpr"), "an alarm is raised at a threshold"),
    Needs(("out",), ("compare",), "one model has no picture"),
    Excludes(("via",), ("compare", "context", "batch"), "of transformers' models the parameters alone are counted"),
)
"""Every row; the first one that options do not meet is their error."""

IN_WORDS = {
    "own_device": "device (--device)",
    "weights_seed": "seed of the weights (--model-seed)",
    "several_revisions": "several checkpoints (--revision)",
    "of_sequences": "a probe over a sequence (--probe attention or multimax, --aggregate)",
    "several_positions": "several positions (--position)",
    "some_controls": "controls (--controls)",
    "by_position": "by='position' (--by position)",
    "prompted": "--baseline prompted",
    "black_boxes": "black_boxes (--baseline prompted, --baseline scores:FILE)",
    "shift_within": "the same column as shift_column (--shift-column)",
    "nuisance_within": "the same column as nuisance (--nuisance)",
    "label_sets": "labels",
    "patches": "methods with patch (--method patch)",
    "patches_alone": "methods='patch' alone (--method patch)",
    "patches_pairs_alone": "a file of pairs alone (--pairs, --method patch)",
    "interchanges": "interchange (--method interchange)",
}
"""What the terms that are no options are called."""


def refuse(*options: Any) -> None:
    """Raise a UsageError for the first row of `CAPABILITIES` that these lists of options do not meet."""
    usual = [{field.name: field.default for field in dataclasses.fields(each)} for each in options]

    def having(term: str) -> list[tuple[Any, Any]]:
        return [  # of a property, which has no default, 0 is none
            (getattr(each, term), known.get(term, 0))
            for each, known in zip(options, usual, strict=True)
            if hasattr(each, term)
        ]

    def given(term: str) -> bool:
        return any(_counts(value, default) for value, default in having(term))

    def named(term: str) -> str:
        value = next(value for value, default in having(term) if _counts(value, default))
        return in_words(term, options) if term in IN_WORDS or value is True else _with(term, value, options)

    for row in CAPABILITIES:
        if not isinstance(row, Needs):
            for one, other in _pairs(row):
                if given(one) and given(other):
                    tail = "give one of them" if isinstance(row, OneOf) else "leave one of the two out"
                    raise UsageError(f"{named(one)} and {named(other)} exclude each other: {row.why}; {tail}")
        elif any(having(other) for other in row.others) and not any(map(given, row.others)):
            for one in filter(given, row.options):
                wanted = " or ".join(in_words(other, options) for other in row.others)
                raise UsageError(f"{named(one)} needs {wanted}: {row.why}; add what it needs, or leave it out")


def _pairs(row: OneOf | Excludes) -> list[tuple[str, str]]:
    """Those that exclude each other."""
    if isinstance(row, OneOf):
        return [pair for group in row.groups for pair in combinations(group, 2)]
    return [*product(row.options, row.others)]


def in_words(term: str, options: Iterable[Any] = ()) -> str:
    """`"top_k"` -> "top_k (--top-k)", as these options are typed; of a property what it says."""
    return IN_WORDS.get(term) or f"{term}{_flag(term, options)}"


def _with(term: str, value: Any, options: Iterable[Any]) -> str:
    if not isinstance(value, str | int | float | Path | RemotePath):  # was typed otherwise
        return in_words(term, options)
    shown = value if isinstance(value, str | int | float) else str(value)
    return f"{term}={shown!a:.40}{_flag(term, options)}"


def _flag(term: str, options: Iterable[Any]) -> str:
    """The flag of the first of these lists that has one for the option, in brackets."""
    for each in options:
        if (field := each.__dataclass_fields__.get(term)) is None:
            continue
        flag = field.metadata["help"].flag
        if flag and not flag.startswith("--no-"):  # which asks for the contrary
            return f" (--{term.replace('_', '-')})" if flag == "--" else f" ({flag.split('/')[0]})"
    return ""


def _counts(value: Any, default: Any) -> bool:
    """Whether an option is given: it is neither its default nor empty. Arrays have no one truth."""
    if value is None or value is False or value is default:
        return False
    if isinstance(value, str | tuple) and not value:
        return False
    return not isinstance(value, str | int | float | tuple) or value != default

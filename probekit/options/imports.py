"""The options of `import_activations`."""

from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from probekit.errors import UsageError
from probekit.files.remote.path import RemotePath
from probekit.options.check import is_whole
from probekit.options.engine import ProgressOptions
from probekit.options.kinds import DTYPE, Kind, choice, stacked_layers, whole
from probekit.options.option import CHECKS, OUTPUT, READ, Options, like, option
from probekit.options.task import TaskOptions
from probekit.points import HIDDEN, MAX_LAYERS, Place
from probekit.selections import Selection, check_in_language

if TYPE_CHECKING:
    import torch


def _axis(_: str, value: Any) -> int:
    if value not in (0, 1):
        raise UsageError(f"--stack-axis is the axis of the layers, 0 or 1; got {value!a}")
    return value


def _n_layers(_: str, value: Any) -> int:
    if not (is_whole(value) and 1 <= value <= MAX_LAYERS):
        raise UsageError(f"--n-layers must be in 1..{MAX_LAYERS}; got {value!a}")
    return value


def _position(_: str, value: Any) -> Selection:
    found = Selection.of(value)
    check_in_language(found)
    return found


def _point(_: str, value: Any) -> str:
    """A point without its layer, by its short name."""
    if value == HIDDEN:
        return value
    short, layer = Place.of(value)
    if layer is not None:
        raise UsageError(f"--point takes a point without its layer, such as {short}; got {value!a}")
    return short


@dataclass(frozen=True)
class ImportOptions(Options, heading=READ):
    """Which place each array belongs to, where the labels are, and the names that titles show."""

    labels: str | Path | None = option(
        None,
        "CSV, TSV, JSONL or Parquet with a row for each example, in order, or a .npy.  "
        "[default: labels.npy, or the tensor labels]",
        notes="A column `split` (train, validation, test) is kept; splits that it lacks are carved from train, as "
        "`load_task` does.",
        metavar="FILE",
    )
    _: KW_ONLY
    format: Literal["arrays", "vllm"] = option(
        "arrays",
        "What the files are: arrays whose names give their places, or the requests of vLLM's hidden-state extraction.",
        choice("arrays", "vllm"),
        notes="vllm needs model and dataset.",
    )
    model: str | None = option(
        None,
        "Of vLLM: the model that it ran, whose tokenizer and config.json are read. Of arrays: the model to verify "
        "them against.",
        metavar="NAME|FOLDER",
    )
    dataset: str | None = option(None, "Of vLLM: the texts that it was given, as for extract.", metavar="NAME|PATH")
    point: str | None = option(
        None,
        "Point of arrays whose name gives only a layer: resid_pre, resid_post, hidden_states, ...",
        notes='"hidden_states" is the list of Hugging Face.',
        kind=Kind(_point, metavar="NAME"),
    )
    stack_axis: int | None = option(
        None,
        "Axis of the layers in arrays that stack them with the examples.",
        notes="Such arrays have three axes: [S, N, D] or [N, S, D]. Files of vLLM: only where shapes do not show it.",
        kind=Kind(_axis, metavar="0|1"),
    )
    layers: Iterable[int] | None = option(
        None,
        "Layers of stacked arrays, in their order: 0,4,8 or 2-6.  [default: 0-...]",
        notes="Of vLLM: the ids of eagle_aux_hidden_state_layer_ids, ascending; not needed if they are all layers. In "
        "Python a list of ints.",
        kind=Kind(parse=stacked_layers, metavar="LAYERS"),
    )
    n_layers: int | None = option(
        None,
        "Number of the model's blocks.  [default: one more than the last layer found]",
        Kind(_n_layers, metavar="N"),
    )
    position: str | int | None = option(
        None,
        "Token that the activations belong to, for titles: last, first, mean, 3.",
        notes='Without it, "not recorded". Of vLLM: the token to keep, or all; without it the last one.',
        kind=Kind(_position, Selection.parse, "TOKEN"),
    )
    verify: int | None = option(
        None,
        "Rows to recompute with --model's own forward pass and compare, drawn with --seed; 0 for none.  [default: 20 "
        "where its weights are on this machine and fit its memory]",
        whole(0),
        notes="States that differ by more than the rounding of their type are refused before anything is written, with "
        "the likely reason. Of arrays it needs texts and `position`.",
        heading=CHECKS,
    )
    dtype: "str | torch.dtype | None" = option(
        None,
        "Type on disk: fp32, fp16 or bf16.  [default: that of the files; fp32 for fp64, and where files differ]",
        flag="--store-dtype",
        heading=OUTPUT,
        kind=DTYPE,
    )
    model_name: str = option("unnamed", "Name of the model in titles.", metavar="NAME")
    task_name: str | None = option(
        None, "Name of the task in titles.  [default: the name of the labels file]", metavar="NAME"
    )
    text_column: str | None = option(
        None,
        "Column of the texts.  [default: text, sentence, statement or prompt, if there is one]",
        notes="Without texts there is no bag-of-words baseline.",
        metavar="NAME",
    )
    label_column: str | None = option(None, "Column of the labels.  [default: label or target]", metavar="NAME")
    group_column: str | None = option(None, "Column that keeps rows with an equal value in one split.", metavar="NAME")
    columns: str | Sequence[str] | None = like(TaskOptions, "columns")
    header: bool | None = like(TaskOptions, "header")
    regression: bool = like(TaskOptions, "regression")
    max_classes: int = like(TaskOptions, "max_classes")
    seed: int = option(0, "Seed for carving splits and for drawing the rows to verify.", kind=whole(0))


@dataclass(frozen=True, kw_only=True)
class ImportArguments(ProgressOptions, ImportOptions, heading=OUTPUT):
    """`ImportOptions`, and where the result goes."""

    out: str | Path | RemotePath | None = option(
        None,
        "Where the store goes.  [default: a name under ./runs]",
        notes="An unfinished store of the same import is resumed.",
        metavar="PATH",
    )

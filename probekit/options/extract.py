"""The options of `extract`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from probekit.errors import UsageError
from probekit.files.remote.path import RemotePath
from probekit.options.engine import EngineOptions, ProgressOptions
from probekit.options.generate import ContinuationOptions
from probekit.options.kinds import DTYPE, LAYERS, NAMES, POSITIONS, Kind, choice, names, whole
from probekit.options.option import CHECKS, OUTPUT, READ, RUNS, Options, like, option
from probekit.options.task import OnBadRow, TaskOptions
from probekit.points import parse_points
from probekit.selections import check_in_language
from probekit.text import kind_of

if TYPE_CHECKING:
    import numpy as np
    import torch

OnLong = Literal["cut", "error"]
EditPositions = Literal["all", "read"]


def _positions(name: str, given: Any) -> Any:
    found = POSITIONS.check(name, given)
    for one in found if isinstance(found, list) else [found]:
        check_in_language(one)
    return found


def _points(_: str, points: Any) -> Any:
    """Names of points as they were given; an iterator, which can be read once, as a list."""
    kept = points if isinstance(points, str) else list(points)
    parse_points(kept)
    return kept


def _edits(_: str, edits: Any) -> Any:
    if not hasattr(edits, "items"):
        raise UsageError(f'edits are a dictionary such as {{("resid_pre", 5): add(direction)}}; got {kind_of(edits)}')
    return edits


@dataclass(frozen=True, kw_only=True)
class ExtractOptions(Options, heading=READ):
    """Which activations are kept, of which tokens, and how they are computed."""

    points: str | Iterable[str] = option(
        "resid_pre",
        "Points with commas between them (see: probekit points).",
        notes='In Python also a list, such as ["resid_pre", "attn_out"]. Heads are kept as [N, H * K].',
        kind=Kind(_points, names, "NAMES"),
    )
    layers: str | int | Iterable[int] = option(
        "all",
        "Layers to keep: all, 3, 0,4,8 or 2-6.",
        notes='In Python also [0, 4]. For resid_pre and resid_mid, "all" adds the output of the last block, '
        '("resid_post", n_layers - 1), as the last place of the curve.',
        kind=LAYERS,
    )
    position: "str | int | np.ndarray | Sequence[str | int | np.ndarray] | None" = option(
        None,
        "Tokens to keep: last, mean, 3, all, -5:, last@assistant, mean@user, in:TEXT, ... (see: which-token).  "
        "[default: the task's own]",
        notes="Several selections of one row each have commas between them; in Python also a list, or an int array "
        "[N], one token for each example. A negative number counts from the end. BOS and other context tokens are not "
        "counted. Attention is kept for every pair of tokens, BOS included.",
        kind=Kind(_positions, POSITIONS.parse, "TOKENS"),
    )
    skip_special: bool = option(
        False,
        "Leave special tokens of the text, such as <|im_end|>, out of every selection.",
        notes="Special tokens are those that the tokenizer lists as such.",
    )
    device: "str | torch.device" = option(
        "auto",
        "Where the model runs; auto is where it is.",
        notes="The model is moved back afterwards.",
        flag=None,
    )
    dtype: "str | torch.dtype" = option(
        "float32",
        "Type on disk: fp32, fp16 or bf16.",
        notes="The model computes in its own type.",
        flag="--store-dtype",
        kind=DTYPE,
        heading=OUTPUT,
    )
    batch_tokens: int | None = option(
        None, "Tokens computed at once.  [default: 2048 on a CPU, 16384 elsewhere]", kind=whole(1), heading=RUNS
    )
    bos: bool | None = option(
        None,
        "Put the model's BOS token before each text.  [default: no; BERT's CLS and SEP, Marian's </s>: yes]",
        flag="--bos/--no-bos",
    )
    on_long: OnLong = option(
        "cut",
        "What to do with texts longer than the context.",
        choice("cut", "error"),
        heading=CHECKS,
        notes="A plan or a warning says how many texts were cut, and `meta['cut']` keeps it.",
    )
    on_bad_row: OnBadRow = like(
        TaskOptions,
        "on_bad_row",
        "What to do with rows that cannot be read, such as a text without the tokens of a selection.",
        flag=None,
    )
    block_nodes: int | None = option(
        None,
        "Tokens in a block, within which prefixes are shared; None chooses what costs least for these texts.",
        whole(1),
        flag=None,
    )
    shard_bytes: int | None = option(
        None,
        "Bytes of a shard at most, the unit that is saved, resumed and given to workers.  [default: 64,000,000]",
        notes="A shard has one batch at least (batch_tokens makes those smaller). On a CPU it also ends after some "
        "seconds of work.",
        kind=whole(1),
        heading=RUNS,
    )
    share: bool = option(True, "Compute a prefix that texts have in common once.", flag=None)
    chat_template: str | Path | None = option(
        None,
        "Jinja file that makes texts of chats, or the name of one of the model's.  [default: the model's own]",
        notes="In Python also the template itself. Texts are those of `apply_chat_template` of transformers.",
        metavar="FILE",
    )
    add_generation_prompt: bool = option(
        False,
        "End each chat with the beginning of the assistant's turn.",
        notes="The template decides what that is.",
    )
    edits: "Mapping[Any, Any] | None" = option(
        None,
        'Edits that the model runs with: {("resid_pre", 5): project_out(direction)}.',
        Kind(_edits),
        notes="See `probekit.interventions`; edits with rows [N, ...] have one for each example. The activations of an "
        "edited place are those after the edit. Edits may have positions of their own: "
        "add(direction, positions=4). A store records them with the checksums of their tensors.",
        flag=None,
    )
    edit_positions: EditPositions = option(
        "all",
        'The tokens to edit, of edits without positions: "all", context tokens too, or "read", those at `position`.',
        choice("all", "read"),
        notes='With "read", or with edits that have rows, texts share no prefixes.',
        flag=None,
    )


@dataclass(frozen=True, kw_only=True)
class ExtractArguments(ProgressOptions, EngineOptions, ContinuationOptions, ExtractOptions, heading=OUTPUT):
    """`ExtractOptions`, how texts are continued first, where the result goes, and who does the work."""

    out: str | Path | RemotePath | None = option(
        None,
        "Where the store goes, also s3://BUCKET/FOLDER, gs:// or hf://.  [default: a name under ./runs]",
        notes="In Python None keeps the tensors in memory, on the device. A path makes a store there, or resumes one "
        "that an earlier run with the same options left unfinished.",
        metavar="PATH",
    )
    sae: Any = option(
        None,
        "Also keep the latents of these sparse autoencoders or transcoders: folders, or hf://owner/name/folder.",
        NAMES,
        notes="Files of SAELens, sparsify and Gemma Scope; in Python also what `load_sae` gives. The store keeps those "
        "latents that are not 0, the share of the variance that each autoencoder explains, and the loss that it adds. "
        "Without points, the places that they read are extracted.",
        metavar="PATHS",
    )
    force: bool = option(False, "With sae: go on where an autoencoder names another model.")
    stats: bool = option(
        False,
        "Also write the sums that ridge, LDA and mean-diff need.",
        notes="They are `Store.statistics`; a complete store gets them without the model running again.",
    )

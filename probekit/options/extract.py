"""The options of `extract`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from probekit.errors import UsageError
from probekit.files.remote.path import RemotePath
from probekit.options import parse
from probekit.options.engine import EngineOptions
from probekit.options.generate import ContinuationOptions
from probekit.options.option import like, option
from probekit.options.progress import ProgressOptions
from probekit.options.task import OnBadRow, TaskOptions
from probekit.points import check_layers, parse_points
from probekit.selections import PER_EXAMPLE, as_position, check_together
from probekit.text import kind_of

if TYPE_CHECKING:
    import numpy as np
    import torch

OnLong = Literal["cut", "error"]
EditPositions = Literal["all", "read"]


@dataclass(frozen=True, kw_only=True)
class ExtractOptions:
    """Which activations are kept, of which tokens, and how they are computed."""

    points: str | Iterable[str] = option(
        "resid_pre",
        "Points with commas between them (see: probekit points).",
        notes='In Python also a list, such as ["resid_pre", "attn_out"]. Heads are kept as [N, H * K].',
        metavar="NAMES",
        parse=parse.names,
    )
    layers: str | int | Iterable[int] = option(
        "all",
        "Layers to keep: all, 3, 0,4,8 or 2-6.",
        notes='In Python also [0, 4]. For resid_pre and resid_mid, "all" adds the output of the last block, '
        '("resid_post", n_layers - 1), as the last place of the curve.',
        metavar="LAYERS",
    )
    position: "str | int | np.ndarray | Sequence[str | int | np.ndarray] | None" = option(
        None,
        "Tokens to keep: last, mean, 3, all, -5:, last@assistant, mean@user, in:TEXT, ... (see: which-token).  "
        "[default: the task's own]",
        notes="Several selections of one row each have commas between them; in Python also a list, or an int array "
        "[N], one token for each example. A negative number counts from the end. BOS and other context tokens are not "
        "counted. Attention is kept for every pair of tokens, BOS included.",
        metavar="TOKENS",
        parse=parse.positions,
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
        metavar="TYPE",
        flag="--store-dtype",
        parse=parse.dtype,
    )
    batch_tokens: int | None = option(
        None, "Tokens computed at once.  [default: 2048 on a CPU, 16384 elsewhere]", metavar="N", least=1
    )
    bos: bool | None = option(
        None,
        "Put the model's BOS token before each text.  [default: no; BERT's CLS and SEP, Marian's </s>: yes]",
        flag="--bos/--no-bos",
    )
    on_long: OnLong = option(
        "cut",
        "What to do with texts longer than the context.",
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
        flag=None,
    )
    shard_bytes: int | None = option(
        None,
        "Bytes of a shard at most, the unit that is saved, resumed and given to workers.  [default: 64,000,000]",
        notes="A shard has one batch at least (batch_tokens makes those smaller). On a CPU it also ends after some "
        "seconds of work.",
        metavar="N",
        least=1,
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
        notes="See `probekit.interventions`; edits with rows [N, ...] have one for each example. The activations of an "
        "edited place are those after the edit. Edits may have positions of their own: "
        "add(direction, positions=4). A store records them with the checksums of their tensors.",
        flag=None,
    )
    edit_positions: EditPositions = option(
        "all",
        'The tokens to edit, of edits without positions: "all", context tokens too, or "read", those at `position`.',
        notes='With "read", or with edits that have rows, texts share no prefixes.',
        flag=None,
    )

    def __post_init__(self) -> None:
        """Check every value that can be checked without the model and the task. Raises UsageError."""
        for name in ("batch_tokens", "block_nodes", "shard_bytes"):
            size: Any = getattr(self, name)
            if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
                raise UsageError(f"{name} is a positive whole number; got {size!r}")
        if not isinstance(self.points, str):
            object.__setattr__(self, "points", list(self.points))  # it may be an iterator
        parse_points(self.points)
        object.__setattr__(self, "position", _selections(self.position))
        if isinstance(self.layers, str):
            check_layers(self.layers)
        if self.edit_positions not in get_args(EditPositions):
            raise UsageError(f"edit_positions is all or read; got {self.edit_positions!a:.60}")
        if self.edits is not None and not hasattr(self.edits, "items"):
            raise UsageError(
                f'edits are a dictionary such as {{("resid_pre", 5): add(direction)}}; got {kind_of(self.edits)}'
            )
        if self.on_long not in get_args(OnLong):
            raise UsageError(f"on_long is cut or error; got {self.on_long!r}")
        if self.on_bad_row not in get_args(OnBadRow):
            raise UsageError(f"on_bad_row is error or skip; got {self.on_bad_row!a:.60}")


def _selections(position: Any) -> Any:
    """The selections as the language writes them; numbers and arrays of indices stay.

    Raises:
        UsageError: text outside the language, or selections that cannot be read at once.
    """
    if not isinstance(position, str | list | tuple):
        return position
    several = [position] if isinstance(position, str) else position
    found = [as_position(one) if isinstance(one, str) else one for one in several]
    check_together([str(one) if isinstance(one, str | int) else PER_EXAMPLE for one in found])
    return found[0] if isinstance(position, str) else found


@dataclass(frozen=True, kw_only=True)
class ExtractArguments(EngineOptions, ContinuationOptions, ExtractOptions):
    """`ExtractOptions`, how texts are continued first, where the result goes, and who does the work."""

    out: str | Path | RemotePath | None = option(
        None,
        "Where the store goes, also s3://BUCKET/FOLDER, gs:// or hf://.  [default: a name under ./runs]",
        notes="In Python None keeps the tensors in memory, on the device. A path makes a store there, or resumes one "
        "that an earlier run with the same options left unfinished.",
        metavar="PATH",
    )
    stats: bool = option(
        False,
        "Also write the sums that ridge, LDA and mean-diff need.",
        notes="They are `Store.statistics`; a complete store gets them without the model running again.",
    )
    progress: bool | None = like(ProgressOptions, "progress")

    def __post_init__(self) -> None:
        """Check all lists of options."""
        ExtractOptions.__post_init__(self)
        ContinuationOptions.__post_init__(self)
        EngineOptions.__post_init__(self)
        if self.part is not None and self.generate is not None:
            raise UsageError(
                "part (--part) cuts texts that are there, and generate (--generate) writes them first; write them with "
                "probekit generate or extract without --part, or spread the work with --devices or --engine ray"
            )

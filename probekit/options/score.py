"""The options of `score`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probekit.options import parse
from probekit.options.check import check_among, check_fpr, check_whole
from probekit.options.extract import ExtractOptions
from probekit.options.load import DeviceOptions
from probekit.options.option import like, option
from probekit.options.progress import ProgressOptions
from probekit.options.task import DataFormat, OnBadRow, TaskOptions

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class TextOptions:
    """Which columns of a dataset hold the texts; labels are not read."""

    text_column: str | None = like(TaskOptions, "text_column")
    messages_column: str | None = like(TaskOptions, "messages_column")
    id_column: str | None = like(
        TaskOptions, "id_column", "Column of the rows' ids.  [default: file and row, such as new:17]"
    )
    span_column: str | None = like(TaskOptions, "span_column")
    columns: str | Sequence[str] | None = like(TaskOptions, "columns", "Names for the columns without a header.")
    header: bool = like(TaskOptions, "header")
    data_format: DataFormat | None = like(TaskOptions, "data_format")
    on_bad_row: OnBadRow = like(
        TaskOptions, "on_bad_row", "What to do with rows without a usable text, or without the token that is read."
    )

    def __post_init__(self) -> None:
        TaskOptions(**vars(self))


@dataclass(frozen=True)
class ProbeDeviceOptions(DeviceOptions):
    """`DeviceOptions`, with the type in which the probe's activations were computed as the default."""

    dtype: str = option(
        "",
        "Type to compute in: fp32, bf16 or fp16.  [default: that of the probe's activations]",
        metavar="TYPE",
        parse=parse.dtype,
    )


@dataclass(frozen=True, kw_only=True)
class ScoreOptions:
    """What is scored, what is flagged, and how the model runs."""

    place: str | None = option(
        None, 'Place whose probe is applied, such as "resid_pre.5"; None is the best.', flag=None
    )
    tokens: bool = option(
        False,
        "Score every token, not only those that the probe was trained on.",
        notes="A column says which tokens are of the kind that the probe was trained on; the others are extrapolation.",
    )
    fpr: float | None = option(
        None,
        "Flag rows at a threshold chosen on validation for this false-positive rate, such as 0.01; for two classes.",
        notes="The summary says what the threshold gives on test.",
        metavar="RATE",
    )
    any_model: bool = option(
        False,
        "Score with a model or tokenizer other than the probe's, such as a fine-tuned one.",
        notes="Fingerprints are compared and differences are said, but not refused.",
    )
    on_bad_row: OnBadRow = like(
        ExtractOptions, "on_bad_row", "What to do with texts without the token that the probe reads.", flag=None
    )
    chat_template: str | Path | None = like(ExtractOptions, "chat_template")
    batch_tokens: int | None = like(ExtractOptions, "batch_tokens")
    device: "str | torch.device" = like(ExtractOptions, "device", flag=None)
    edits: "Mapping[Any, Any] | None" = like(
        ExtractOptions,
        "edits",
        "The edits that the model ran with when the probe was trained.",
        notes="Their checksums are compared with those that the results record.",
    )
    progress: bool | None = like(ProgressOptions, "progress")

    def __post_init__(self) -> None:
        check_fpr(self.fpr)
        if self.batch_tokens is not None:
            check_whole("batch_tokens", self.batch_tokens)
        check_among("on_bad_row", self.on_bad_row, ("error", "skip"))

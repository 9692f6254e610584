"""The options of `score` and `Monitor`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probekit.errors import UsageError
from probekit.options.check import is_real
from probekit.options.engine import ProgressOptions
from probekit.options.extract import ExtractOptions
from probekit.options.kinds import DTYPE, RATE, Kind, choice
from probekit.options.load import DeviceOptions
from probekit.options.option import CHECKS, READ, RUNS, Options, like, option
from probekit.options.task import DataFormat, OnBadRow, TaskOptions

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class TextOptions(Options, heading=READ):
    """Which columns of a dataset hold the texts; labels are not read."""

    text_column: str | None = like(TaskOptions, "text_column")
    messages_column: str | None = like(TaskOptions, "messages_column")
    id_column: str | None = like(
        TaskOptions, "id_column", "Column of the rows' ids.  [default: file and row, such as new:17]"
    )
    span_column: str | None = like(TaskOptions, "span_column")
    columns: str | Sequence[str] | None = like(TaskOptions, "columns", "Names for the columns without a header.")
    header: bool | None = like(TaskOptions, "header")
    data_format: DataFormat | None = like(TaskOptions, "data_format")
    on_bad_row: OnBadRow = like(
        TaskOptions, "on_bad_row", "What to do with rows without a usable text, or without the token that is read."
    )


@dataclass(frozen=True)
class ProbeDeviceOptions(DeviceOptions, heading=RUNS):
    """`DeviceOptions`, with the type in which the probe's activations were computed as the default."""

    dtype: str = option(
        "", "Type to compute in: fp32, bf16 or fp16.  [default: that of the probe's activations]", kind=DTYPE
    )


@dataclass(frozen=True, kw_only=True)
class ScoreOptions(ProgressOptions, heading=CHECKS):
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
        kind=RATE,
    )
    fpr_of: str = option(
        "conversation",
        "What the rate of --fpr is of: each text, flagged if its score so far reaches the threshold at any token "
        "(conversation), or each score (score).",
        notes="Scores so far are known of probes over a sequence, and of probes that were trained on every token; for "
        "others the two are the same. Of a probe over a sequence, `score` is the final score of a text, and of a probe "
        "of tokens that of a token.",
        kind=choice("conversation", "score"),
    )
    base_rate: float | None = option(
        None,
        "Report the precision at this base rate, the share of all texts that are of the second class, such as 0.001.",
        notes="It follows from the rates on test. Test sets have far more texts of the second class than traffic has, "
        "so that their own precision says little.",
        kind=RATE,
    )
    sae: Any = option(
        None,
        "The autoencoder of a probe of latents.  [default: the path that the results record]",
        notes="In Python also what `load_sae` gives. Its weights are compared with those of the probe's training.",
        metavar="PATH",
        kind=Kind(typed=str),
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


def _thresholds(_: str, value: Any) -> Any:
    """A threshold, or one for each probe by name; those of None are left out."""
    for one in value.values() if isinstance(value, Mapping) else [value]:
        if one is not None and not (is_real(one) and abs(one) < float("inf")):
            raise UsageError(f"a threshold is a finite number, got {one!a:.60}; give the score that raises an alarm")
    return value


@dataclass(frozen=True)
class MonitorOptions(Options):
    """What raises an alarm, and what an alarm does."""

    place: Any = option(
        None,
        'The place of a fitted probe, such as "resid_pre.5"; of results, the place to take.  [default: the best]',
        flag=None,
    )
    threshold: float | Mapping[str, float] | None = option(
        None,
        "A score of at least this raises an alarm; a dictionary has one for each probe by name.",
        Kind(_thresholds),
        flag=None,
    )
    fpr: float | None = option(
        None,
        "Take the threshold that validation chose for this false-positive rate; for results of two classes.",
        RATE,
        notes="Of probes over a sequence, and of probes that were trained on every token, it is the rate at which "
        "harmless texts raise an alarm at any token. Of others it is a rate of texts that are scored once; a monitor "
        "compares every token, so more texts raise alarms.",
        flag=None,
    )
    fpr_of: str = like(
        ScoreOptions,
        "fpr_of",
        'What the rate of fpr is of: "conversation", alarms at any token of a text, or "score", each score.',
        notes="",
        flag=None,
    )
    on_alarm: Callable[[Any], object] | None = option(
        None,
        "Called with each `Alarm`; if it returns True, the text ends before its next token is chosen.",
        flag=None,
    )
    each: bool = option(
        False,
        "Raise an alarm at every token at the threshold, rather than at the first of a text and probe.",
        flag=None,
    )
    prompt: bool = option(
        False,
        "Raise alarms at tokens of the prompt too, and count them in `running`; they are scored in any case.",
        flag=None,
    )
    sae: Any = option(
        None,
        "The autoencoder of a probe of latents, or its path.  [default: the path that the results record]",
        flag=None,
    )
    target: Any = option(None, "The class whose score is watched, by name.  [default: the second of two]", flag=None)
    any_model: bool = option(
        False, "Watch a model with other weights than those that the results were trained on.", flag=None
    )

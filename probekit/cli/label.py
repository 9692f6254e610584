"""`probekit label`: labels for a store whose texts had none, or further labels."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from probekit.cli import console
from probekit.cli.derive import command
from probekit.cli.fields import Output, argument
from probekit.files.remote.path import AnyPath
from probekit.manifest import check_is_store
from probekit.options import LabelArguments
from probekit.text import counted, listed, printable

if TYPE_CHECKING:
    from probekit.activations import LabelledStore


@dataclass(frozen=True, kw_only=True)
class LabelJob(Output):
    """The store and the file of labels."""

    store: AnyPath = argument("A store made by `probekit extract` or `probekit import`.", metavar="STORE")
    labels: Path = argument("CSV, TSV, JSONL or Parquet with an id and a label in each row.", metavar="LABELS")


@command(
    "store labels id_column label_column group_column split_column name regression on_bad_row replace seed validation "
    "max_classes columns header data_format"
)
def label(job: LabelJob, options: LabelArguments) -> None:
    """Join labels to the texts of a store, by id.

    Texts that were extracted without labels get their splits with the first labels, carved as extract carves them. The
    ids are those of --id-column of extract; without it, file and row, such as prompts:0.

    \b
    Examples:
        probekit label runs/STORE labels.csv
        probekit label runs/STORE judged.jsonl --id-column key --label-column honest --on-bad-row skip
    """
    check_is_store(job.store)
    from probekit.activations import label_store

    done = label_store(job.store, job.labels, **vars(options))
    console.answer(job, done.as_dict, done.path, _summary(done))


def _summary(done: "LabelledStore") -> str:
    task, info = done.task, done.info
    skipped = sum(info["skipped"].values())
    lines = [
        f"{done.name}: {info['labelled']:,} of {counted(len(task), 'text')} labelled"
        + (f"; {counted(skipped, 'row')} of the labels skipped ({_kinds(info['skipped'])})" if skipped else "")
        + ("" if done.is_new else "; the store had these labels already")
    ]
    for split, classes in task.counts(done.name).items():
        if classes:
            lines.append(f"{split:<11}{listed([f'{name} {n:,}' for name, n in classes.items()])}")
    first = next(iter(task.labels))
    more = "" if first == done.name and not task.token_labels else f" --label {done.name}"
    lines.append(f"train on them: probekit train-probe {done.path}{more}")
    return "\n".join(map(printable, lines))


def _kinds(skipped: dict[str, int]) -> str:
    return listed([f"{kind.replace('_', ' ')} {n:,}" for kind, n in skipped.items()])

"""The options of `label` and `probekit label`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from probekit.errors import UsageError, nearest
from probekit.options.check import check_names, check_whole
from probekit.options.option import like, option
from probekit.options.task import DataFormat, OnBadRow, TaskOptions


@dataclass(frozen=True, kw_only=True)
class LabelOptions:
    """Which columns hold ids and labels, and what is done with rows that cannot be joined."""

    id_column: str | None = option(None, "Column of the ids.  [default: id]", metavar="NAME")
    label_column: str | None = option(None, "Column of the labels.  [default: label or target]", metavar="NAME")
    group_column: str | None = like(TaskOptions, "group_column", notes="Only with the first labels of the texts.")
    split_column: str | None = like(
        TaskOptions,
        "split_column",
        notes="Only with the first labels of the texts: the splits that they have then are those of all label sets.",
    )
    name: str | None = option(None, "Name of the label set.  [default: the name of the label column]", metavar="NAME")
    regression: bool = like(TaskOptions, "regression")
    on_bad_row: OnBadRow = option(
        "error",
        "What to do with unknown ids, texts without a label, and rows without a usable one.",
        notes='"skip" counts them: such rows are left out, and texts without a label stay unlabelled; probes are '
        "trained on the others. An id that occurs twice has no label then.",
    )
    seed: int | None = option(
        None,
        "Seed for carving splits.  [default: that of the texts, or 0]",
        notes="Splits are carved with the first labels of the texts, as `load_task` carves them.",
        metavar="N",
        least=0,
    )
    validation: bool = like(TaskOptions, "validation")
    max_classes: int = like(TaskOptions, "max_classes")
    columns: str | Sequence[str] | None = like(TaskOptions, "columns", "Names for the columns without a header.")
    header: bool = like(TaskOptions, "header")
    data_format: DataFormat | None = like(TaskOptions, "data_format", "Format of the file.  [default: by its ending]")

    def __post_init__(self) -> None:
        if self.seed is not None:
            object.__setattr__(self, "seed", check_whole("seed", self.seed, 0))
        check_whole("max_classes", self.max_classes, least=2)
        if self.columns is not None:
            object.__setattr__(self, "columns", check_names("columns", self.columns))
        if self.on_bad_row not in get_args(OnBadRow):
            raise UsageError(
                f"unknown on_bad_row {self.on_bad_row!a}; {nearest(str(self.on_bad_row), get_args(OnBadRow))}"
            )
        if self.name is not None and not self.name.strip():
            raise UsageError("the name of a label set is empty; write one, or leave --name out")


@dataclass(frozen=True, kw_only=True)
class LabelArguments(LabelOptions):
    """`LabelOptions`, and what is done with labels that the store has."""

    replace: bool = option(
        False,
        "Replace the labels of this name that the store has.",
        notes="Splits stay, unless these are its only labels.",
    )

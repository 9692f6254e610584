"""The options of `load_task`, and of `label`, which joins labels to texts that are there."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from probekit.options.kinds import DIFFERENT_NAMES, Kind, choice, not_blank, whole
from probekit.options.option import CHECKS, READ, Options, like, option
from probekit.selections import Selection

OnBadRow = Literal["error", "skip"]
RareClasses = Literal["error", "drop", "merge"]
DataFormat = Literal["csv", "tsv", "json", "jsonl", "parquet", "conllu"]


@dataclass(frozen=True)
class TaskOptions(Options, heading=READ):
    """Which columns are read, how many texts, and what is done with unusable rows."""

    text_column: str | None = option(
        None, "Column of the texts.  [default: text, sentence, statement or prompt]", metavar="NAME"
    )
    label_column: str | None = option(
        None,
        "Column of the labels, or several: label,source; in CoNLL-U upos, xpos, deprel, feats.NAME, head_distance or "
        "depth.  [default: label or target]",
        notes="A table without such a column gives texts without labels; `probekit label` joins labels later. Each "
        "column is a label set; splits are carved for the first, and a text may lack a label of the others.",
        metavar="NAMES",
    )
    token_label_column: str | None = option(
        None,
        "Column of labels for every token: lists by token or by character, or of {start, end, label}.",
        notes="null is no label. In a list of stretches of characters, one without start and end labels all other "
        "tokens. A token that meets several stretches has the label of most of its characters. These labels become the "
        "default label set; texts keep the white space at their end.",
        metavar="NAME",
    )
    id_column: str | None = option(
        None,
        "Column of the rows' ids, by which labels can be joined later.  [default: file and row, such as train:17]",
        metavar="NAME",
    )
    group_column: str | None = option(
        None,
        "Column that keeps rows with an equal value in one split.",
        notes="Groups that share a text are merged under the name of the first. Data that comes split is left as it "
        'is; `info["groups_across_splits"]` counts the groups that span splits.',
        metavar="NAME",
    )
    keep_columns: str | Sequence[str] | None = option(
        None,
        "Other columns to keep with the texts, for train-probe --nuisance and --shift-column: source,domain.",
        notes="Numbers or texts; a cell may be missing. In Python also a list.",
        kind=DIFFERENT_NAMES,
    )
    limit: int | None = option(
        None,
        "Keep at most N texts of each split; where examples are words, all words of N texts.",
        notes="Classes keep their shares; where examples are words, each class occurs.",
        kind=whole(1),
    )
    seed: int = option(
        0,
        "Seed of everything drawn from the data.",
        notes="It decides the carved splits, what `limit` keeps, and the built-in tasks.",
        kind=whole(0),
    )
    keep_blanks: bool = option(
        False,
        "Keep white space at the end of texts.",
        notes="Otherwise it is removed, and the texts are counted.",
    )
    on_bad_row: OnBadRow = option(
        "error",
        "What to do with rows without a usable text or label.",
        notes='"skip" leaves them out and counts them.',
        kind=choice("error", "skip"),
        heading=CHECKS,
    )
    position: str | None = option(
        None,
        "Tokens that are read: last, first, mean, last@assistant, ...; None is the task's own.",
        Kind(lambda _, value: Selection.parse(value)),
        notes='That is "last", except for some built-in tasks.',
        flag=None,
    )
    regression: bool = option(
        False,
        "Treat whole-number labels, such as years, as numbers, not classes.",
        notes="Labels with fractions are always numbers.",
    )
    span_column: str | None = option(
        None,
        "Column of [start, end], or of lists of {start, end, label}; or two: start,end.",
        notes="The characters of each row's word; `end` is exclusive. CSV and TSV write [4, 7], 4:7 or 4-7. A list "
        "gives one example for each of its spans (see `tasks.tables.sources.unfolded`). CoNLL-U needs no such column.",
        metavar="NAMES",
    )

    columns: str | Sequence[str] | None = option(
        None,
        "Names for the columns of CSV, TSV or text files without a header: text,label.",
        notes="In Python also a list. One name for each column, in order; a column that no option names is not read. "
        "Those of a text file are recognised where its content leaves no doubt.",
        kind=DIFFERENT_NAMES,
    )
    header: bool | None = option(
        None,
        "Whether the first line of CSV and TSV files names the columns.  [default: yes, unless `columns` does]",
        notes='Without a header, and without `columns`, the columns are called "1", "2" and so on.',
        flag="--header/--no-header",
    )
    data_format: DataFormat | None = option(
        None,
        "Format of the data.  [default: by the file's ending; for stdin, by its content]",
        choice("csv", "tsv", "json", "jsonl", "parquet", "conllu"),
    )
    split_column: str | None = option(
        None,
        "Column that says train, validation (dev) or test of each row.  [default: split or is_test, if it says so]",
        notes="Read where one table has all splits. SentEval's tr, va and te are known as well, and truth values in a "
        "column called is_test, is_train or is_validation.",
        metavar="NAME",
    )
    validation: bool = option(
        True,
        "Carve a validation split where none is given.",
        notes="Without one, train and test stay as they are, and nothing can be chosen on validation.",
        flag="--validation/--no-validation",
    )
    rare_classes: RareClasses = option(
        "error",
        "What to do with classes that some split lacks.",
        notes='"drop" leaves their examples out; "merge" makes them one class, "other". Both name and count them in '
        '`info["rare_classes"]`. A `limit` that is too small for all classes makes some of them rare.',
        kind=choice("error", "drop", "merge"),
        heading=CHECKS,
    )
    max_classes: int = option(
        2000, "Refuse a label column of more classes, such as a column of ids.", kind=whole(2), heading=CHECKS
    )
    messages_column: str | None = option(
        None,
        "Column of chats, lists of {role, content}, instead of texts.  [default: messages]",
        notes="JSONL, Parquet, `datasets` and Python objects can hold them. The model's chat template makes texts of "
        "them. A named text column goes first.",
        metavar="NAME",
        flag="--messages-column",
    )
    name: str | None = option(None, "Name of the task in titles; None is that of the file, dataset or type.", flag=None)


@dataclass(frozen=True, kw_only=True)
class LabelOptions(Options, heading=READ):
    """Which columns hold ids and labels, and what is done with rows that cannot be joined."""

    id_column: str | None = option(None, "Column of the ids.  [default: id]", metavar="NAME")
    label_column: str | None = option(None, "Column of the labels.  [default: label or target]", metavar="NAME")
    group_column: str | None = like(TaskOptions, "group_column", notes="Only with the first labels of the texts.")
    split_column: str | None = like(
        TaskOptions,
        "split_column",
        notes="Only with the first labels of the texts: the splits that they have then are those of all label sets.",
    )
    name: str | None = option(None, "Name of the label set.  [default: the name of the label column]", not_blank())
    regression: bool = like(TaskOptions, "regression")
    on_bad_row: OnBadRow = like(
        TaskOptions,
        "on_bad_row",
        "What to do with unknown ids, texts without a label, and rows without a usable one.",
        notes='"skip" counts them: such rows are left out, and texts without a label stay unlabelled; probes are '
        "trained on the others. An id that occurs twice has no label then.",
    )
    seed: int | None = option(
        None,
        "Seed for carving splits.  [default: that of the texts, or 0]",
        notes="Splits are carved with the first labels of the texts, as `load_task` carves them.",
        kind=whole(0),
    )
    validation: bool = like(TaskOptions, "validation")
    max_classes: int = like(TaskOptions, "max_classes")
    columns: str | Sequence[str] | None = like(TaskOptions, "columns", "Names for the columns without a header.")
    header: bool | None = like(TaskOptions, "header")
    data_format: DataFormat | None = like(TaskOptions, "data_format", "Format of the file.  [default: by its ending]")


@dataclass(frozen=True, kw_only=True)
class LabelArguments(LabelOptions, heading=READ):
    """`LabelOptions`, and what is done with labels that the store has."""

    replace: bool = option(
        False,
        "Replace the labels of this name that the store has.",
        notes="Splits stay, unless these are its only labels.",
    )

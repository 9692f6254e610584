"""The options of `load_task`."""

from dataclasses import dataclass
from typing import Literal, get_args

from probekit.errors import UsageError, nearest
from probekit.options.check import check_whole
from probekit.options.option import option

OnBadRow = Literal["error", "skip"]


@dataclass(frozen=True)
class TaskOptions:
    """Which columns are read, how many texts, and what is done with unusable rows."""

    text_column: str | None = option(
        None, "Column of the texts.  [default: text, sentence, statement or prompt]", metavar="NAME"
    )
    label_column: str | None = option(
        None,
        "Column of the labels; in CoNLL-U upos, xpos, deprel, feats.NAME, head_distance or depth.  "
        "[default: label or target]",
        metavar="NAME",
    )
    group_column: str | None = option(
        None,
        "Column that keeps rows with an equal value in one split.",
        notes="Groups that share a text are merged under the name of the first. Data that comes split is left as it "
        'is; `info["groups_across_splits"]` counts the groups that span splits.',
        metavar="NAME",
    )
    limit: int | None = option(
        None,
        "At most N texts of each split; where examples are words, all words of N texts.",
        notes="Stratified by class; where examples are words, each class occurs.",
        metavar="N",
        least=1,
    )
    seed: int = option(
        0,
        "Seed of everything drawn from the data.",
        notes="Carving splits, the limit, and the built-in tasks.",
        metavar="N",
        least=0,
    )
    keep_blanks: bool = option(
        False,
        "Keep white space at the end of texts.",
        notes="Otherwise it is removed, and the texts are counted.",
    )
    on_bad_row: OnBadRow = option(
        "error",
        "What to do with rows without a usable text or label.",
        notes='"skip" leaves them out and counts them; where examples are words, also those of a class that a split '
        "lacks.",
    )
    position: str | None = option(
        None,
        "Token that is read: last, first or mean; None is the task's own.",
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
        "gives one example for each of its spans (see `tasks.words.unfolded`). CoNLL-U needs no such column.",
        metavar="NAMES",
    )

    name: str | None = option(None, "Name of the task in titles; None is that of the file, dataset or type.", flag=None)

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", check_whole("seed", self.seed, 0))
        for name, known in (("on_bad_row", get_args(OnBadRow)), ("position", ("last", "first", "mean"))):
            value = getattr(self, name)
            if value not in known and not (name == "position" and value is None):
                raise UsageError(f"no {name} {value!a}; {nearest(str(value), known)}")
        if self.limit is not None and self.limit < 1:
            raise UsageError(f"limit must be 1 or more, got {self.limit}")

"""The options of `train_probes`."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

from probekit.errors import UsageError
from probekit.options.check import check_names, is_whole
from probekit.options.curve import (
    AGGREGATES,
    PROBE_NAMES,
    SEQUENCE_NAMES,
    CurveOptions,
    check_strengths_of,
    checked_probe,
    k_in,
    name_in,
)
from probekit.options.engine import ClusterOptions, PartsOptions
from probekit.options.kinds import SIZE, Kind, choice, name_of, names, strings, whole
from probekit.options.option import CHECKS, CHOSEN, OUTPUT, READ, RUNS, like, option
from probekit.options.task import OnBadRow, TaskOptions
from probekit.text import listed

FULL = {"controls": 3, "codelength": True, "baselines": True}  # what is computed unless it is a quick look
BY_POSITION, FROM_END = "position", "position-from-end"  # a curve for each place in the text, counted from either end
BY_HEAD = "head"
TRACKERS = ("wandb", "tensorboard", "trackio")
LEAST_TEXTS = 10
DATA_FILES = (".csv", ".tsv", ".jsonl", ".parquet")
LEAST_FOLDS = 3  # one tests, one chooses, the rest are fitted
METRIC_NAMES = ("accuracy", "balanced_accuracy", "auroc", "average_precision", "f1", "r2", "spearman")
LOSSES = ("brier", "ece", "mae")  # metrics of which lower is better, so none selects
_METRIC = name_of("metric", METRIC_NAMES)


def are_labels(given: Any) -> bool:
    """Whether `labels` holds labels by id, rather than names of label sets."""
    if isinstance(given, str):
        return given.lower().endswith(DATA_FILES)
    if isinstance(given, os.PathLike) or hasattr(given, "items") or hasattr(given, "column_names"):
        return True  # a dict, a Series, a DataFrame, a Dataset
    return isinstance(given, list | tuple) and bool(given) and isinstance(given[0], Mapping | tuple)


def _metric(name: str, metric: Any) -> Any:
    """A metric that can select."""
    if metric in LOSSES:
        raise UsageError(f"lower {metric} is better, and the highest score is selected; take {listed(METRIC_NAMES)}")
    return _METRIC.check(name, metric)


def _folds(_: str, folds: Any) -> int:
    if not is_whole(folds) or folds < LEAST_FOLDS:
        raise UsageError(
            f"nested folds must be {LEAST_FOLDS} or more (one to test, one to choose, the rest to fit); got {folds!a}"
        )
    return int(folds)


def is_of_sequences(probe: Any) -> bool:
    """Whether a probe, or the probe of a name, takes all tokens of a text."""
    name = name_in(probe)
    return name in SEQUENCE_NAMES if isinstance(name, str) else getattr(name, "of_sequences", False)


def _probes(text: str) -> str | tuple[str, ...]:
    """`"logistic"` as it is; `"logistic, mean-diff"` -> `("logistic", "mean-diff")`, each once.

    `"k-sparse-1..512"` is k-sparse-1, k-sparse-2, k-sparse-4 and so on to k-sparse-512.
    """
    several = tuple(dict.fromkeys(one for name in names(text) for one in _doubled(name)))
    return several if len(several) > 1 else "".join(several) or text


def _doubled(name: str) -> list[str]:
    """`"k-sparse-1..4"` -> `["k-sparse-1", "k-sparse-2", "k-sparse-4"]`; another name as it is."""
    first, dots, last = name.partition("..")
    low, high = k_in(first), k_in(f"k-sparse-{last}")
    if not dots or low is None or high is None:
        return [name]
    return [f"k-sparse-{low * 2**i}" for i in range(high.bit_length()) if low * 2**i <= high]


def _several_probes(_: str, given: Any) -> tuple[Any, ...]:
    """Probes in their order, each name once; names are checked."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise UsageError(f"probes= takes a list, such as ['logistic', 'mean-diff']; got {given!a:.80}")
    probes: list[Any] = []
    for probe in given:
        checked_probe("probe", probe)
        if not isinstance(probe, str) or probe not in probes:
            probes.append(probe)
    if not probes:
        raise UsageError("the list of probes is empty; name one or more")
    return tuple(probes)


@dataclass(frozen=True, kw_only=True)
class ProbeOptions(CurveOptions, heading=CHECKS):
    """Which probe is fitted where, how it is chosen, and which checks are run."""

    point: str | None = like(
        CurveOptions,
        "point",
        "Point to read; on the command line also several with commas, or all.  [default: the store's first]",
    )
    label: str | None = like(
        CurveOptions,
        "label",
        "Label set to predict; on the command line also several with commas, or all.  [default: the task's target]",
    )
    probe: Any = like(
        CurveOptions,
        "probe",
        f"{', '.join(PROBE_NAMES[:-1])} or {PROBE_NAMES[-1]}; k-sparse-4 reads 4 features, and k-sparse-1..512 makes a "
        "curve of each k, doubled from 1 to 512; on the command line also several with commas.  "
        "[default: logistic; ridge where labels are numbers]",
        kind=Kind(checked_probe, _probes, "NAME"),
        notes="k-sparse-4 uses the 4 best features, k-sparse alone 16. On the command line k-sparse-1..512 is 1, 2, 4 "
        "and so on to 512 features, a curve each: the picture is of score by k, and validation chooses k. In Python "
        "also a probe class, an instance, or any scikit-learn classifier or regressor, which is cloned for each fit, "
        "has no certificate and is not saved. An instance keeps its parameters; a C other than the default is then the "
        "only one tried.",
    )
    on_bad_row: OnBadRow = like(TaskOptions, "on_bad_row", "What to do with texts without the token to read.")
    aggregate: str | None = option(
        None,
        f"Predict each text's label from all its tokens: {', '.join(AGGREGATES[:-1])} or {AGGREGATES[-1]} of the "
        "scores of a linear probe.",
        notes="The probe (logistic, ridge, lda or mean-diff) is fitted to every token with its text's label; the "
        "scores of a text's tokens become one, which is calibrated on train. Needs a store of all tokens. Table, "
        "picture and files compare it with the probes of the mean and of the last token, on the same rows.",
        kind=choice(*AGGREGATES),
        heading=CHOSEN,
        tag="",
    )
    quick: bool = option(
        False,
        "A first look: scores and intervals, without control tasks, code length, bag of words, near-duplicates and "
        "p-values.",
        notes="What you ask for by name is computed all the same: controls, codelength, baselines; drop_leaks and "
        "folds look for near-duplicates. The results say what was left out (`meta['left_out']`).",
    )
    controls: int | None = option(
        None,
        "Draws of the control task (Hewitt and Liang 2019); 0 leaves it out.  [default: 3; with --quick, or a probe "
        "over a sequence, 0]",
        kind=whole(0),
    )
    control_type: str = option(
        "token",
        "What gets a random label: each distinct token that is read (token), or each distinct text (text).",
        kind=choice("token", "text"),
        tag="control",
    )
    control_C: str = option(
        "label",
        "C of the control tasks: the one chosen for the label (label), or chosen anew for each control task (own).",
        notes="Hewitt and Liang compare the same probe on both tasks; `own` fits every C to every control task.",
        kind=choice("label", "own"),
        flag="--control-C",
        tag="control-C",
    )
    codelength: bool | None = option(
        None,
        "Measure the online code length (Voita and Titov 2020); for the logistic probe only.  [default: True; with "
        "quick False]",
        off="Leave the code length out.",
        flag="--no-codelength",
    )
    folds: int | None = option(
        None,
        "Nested folds, 3 or more, over all rows, for small sets.  [default: the splits]",
        Kind(_folds, metavar="K", typed=int),
        heading=CHOSEN,
    )
    drop_leaks: bool = option(
        False,
        "Leave out texts that are also in a later split.",
        notes="Folds do not need it: near-duplicates share a fold.",
    )
    metric: str | None = option(
        None,
        "Score to choose by and to draw: accuracy, balanced_accuracy, auroc, average_precision, f1; for numbers r2, "
        "spearman.  [default: accuracy; auroc where a class has more than 80%; r2]",
        kind=Kind(_metric, metavar="NAME"),
        heading=CHOSEN,
        tag="",
    )
    intervals: bool = option(
        True,
        "Resample the test rows for 95% intervals, the band, the tied places and p-values.",
        off="Leave out intervals, the band, tied places and p-values: quicker, where only scores are wanted.",
        flag="--no-intervals",
    )
    by: str | None = option(
        None,
        "position: a curve for each place in the text, counted from the first token; position-from-end: from the last; "
        "head: a curve for each attention head.",
        notes="Each place is probed on the texts that have it, and each selection that was kept on all texts. A head "
        "is its part of z, q, k, v or result, at one token of each text. Control tasks and code length are left out "
        "unless asked for by name; the baseline is the majority class.",
        kind=choice(BY_POSITION, FROM_END, BY_HEAD),
        heading=READ,
    )
    least_texts: int = option(
        LEAST_TEXTS,
        "Texts of each class that a position needs in each split or fold, with --by; or a value in train and test, "
        "with --shift-column and --within.",
        notes="Positions with fewer are left out, and the results name them. Where tokens have labels, classes with "
        "fewer are left out at that position, if two remain; with folds such positions are left out. A regression "
        "needs as many in all.",
        kind=whole(1),
        heading=READ,
    )
    within: str | None = option(
        None,
        "A curve for the rows with each value of this column: length, tokens, position, frequency, a kept column or a "
        "label set.",
        notes="Each is fitted, chosen and tested on these rows alone. Frequency is how often the token (or word) that "
        "is read is read in train; many numbers are cut at the quartiles of train. Values with fewer rows of a class "
        "than `least_texts` in train or test have no curve. The call returns `ProbeCurves`, and with `by` or "
        "`shift_column`, a grid for each value, `ProbeGrids`.",
        metavar="COLUMN",
        heading=READ,
    )
    nuisance: str | Sequence[str] | None = option(
        None,
        "Columns that the probe may be reading instead: length, tokens, position, frequency, kept columns or label "
        "sets.",
        notes="A model of these alone is a baseline, with the probe's protocol and budget; a second curve shows the "
        "probes after the columns are regressed out of the activations, linearly and on the fitted rows. `extract "
        "--keep-columns` keeps columns. Length is in characters, words, sentences and tokens; position is the token's "
        "place in its text. In Python also a list.",
        kind=Kind(check_names, names, "NAMES"),
    )
    shift_column: str | None = option(
        None,
        "Train on the rows with one value of this column, test on those with each: a matrix of values.",
        notes="A kept column, another label set, length (in words), tokens, position or frequency; many numbers are "
        "cut at the quartiles of train. C and layer are chosen on validation rows of the training values. With three "
        "values or more the last row is trained on all values but the tested one. The call returns "
        "`TransferResults`; of several points, label sets or probes, and with `within`, `ProbeGrids`.",
        metavar="NAME",
    )
    ensemble: bool = option(
        False,
        "Add the ensemble of the layers that validation chooses: the mean of their calibrated scores.",
        notes="Layers are ranked by validation, and the first k are taken, for the k whose mean is best there. It is "
        "one more line of the table and the picture. `pk.ensemble` makes it of seeds and probes too.",
        heading=CHOSEN,
    )
    baselines: bool | None = option(
        None,
        "Add the baselines that need no model (majority class, bag of words, text length) and the embedding.  "
        "[default: True; with quick those that cost nothing]",
        flag=None,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if len({is_of_sequences(probe) for probe in self.each_probe}) > 1 and self.aggregate is None:
            raise UsageError(
                "a probe over a sequence takes all tokens of a text, and the others one row; train them in two calls"
            )
        for name, value in _usual(self).items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        if not self.by_position and isinstance(self.position, list):
            object.__setattr__(self, "position", self.position[0])

    @property
    def makes_grids(self) -> bool:
        """Whether the results are grids: by position, by head, or a matrix of values."""
        return self.by is not None or self.shift_column is not None

    @property
    def of_sequences(self) -> bool:
        """Whether the probe takes all tokens of a text."""
        return self.aggregate is not None or any(is_of_sequences(probe) for probe in self.each_probe)

    @property
    def by_position(self) -> bool:
        """Whether there is a curve for each place in the text."""
        return self.by in (BY_POSITION, FROM_END)

    @property
    def several_positions(self) -> bool:
        """Whether several selections of tokens are named."""
        return isinstance(self.position, list) and len(self.position) > 1

    @property
    def some_controls(self) -> bool:
        """Whether control tasks are asked for."""
        return bool(self.controls)

    @property
    def shift_within(self) -> bool:
        """Whether the column of `within` is that of the shift."""
        return self.within is not None and self.within == self.shift_column

    @property
    def nuisance_within(self) -> bool:
        """Whether the column of `within` is a nuisance."""
        return self.within is not None and self.within in (self.nuisance or ())

    @property
    def each_probe(self) -> tuple[Any, ...]:
        """The probes, mostly one."""
        return self.probe if isinstance(self.probe, tuple) else (self.probe,)


@dataclass(frozen=True, kw_only=True)
class ProbeArguments(PartsOptions, ClusterOptions, ProbeOptions, heading=RUNS):
    """`ProbeOptions`, who does the work, and what only Python can pass."""

    random_init: Any = option(
        None, "Activations of the same places from the same model with random weights, as a baseline.", flag=None
    )
    black_boxes: Any = option(
        None,
        "Scores of black boxes as baselines: from `prompted_scores` or `load_scores`, the path of a file, or a list.",
        notes="They are calibrated on validation, and compared with the probe on the same rows (paired).",
        flag=None,
    )
    log_to: str | None = option(
        None,
        f"Log numbers, picture and settings to {', '.join(TRACKERS[:-1])} or {TRACKERS[-1]}, where it is installed.",
        notes="A run named after model, task, label and probe in the project probekit; the step is the layer. An "
        "active run of wandb is continued; tensorboard writes to ./tensorboard.",
        metavar="TRACKER",
        heading=OUTPUT,
        flag=None,
    )
    memory: str | int | None = option(
        None,
        "Memory that the activations and their fits may take, such as 8GB; larger places are read from disk in every "
        "pass.  [default: what is free]",
        notes="Free is what the machine has, and what control groups (Slurm, containers) leave this process. Logistic, "
        "ridge, LDA, mean-diff and k-sparse can read from a store; another probe of a place that does not fit is "
        "refused. With --engine ray it is the memory of each task.",
        kind=SIZE,
        flag=None,
    )


@dataclass(frozen=True, kw_only=True)
class PositionArguments(ProbeArguments):
    """`ProbeArguments` for a curve at each position, for type checkers."""

    by: str = field(metadata=next(one.metadata for one in fields(ProbeOptions) if one.name == "by"))


@dataclass(frozen=True, kw_only=True)
class CurvesArguments(ProbeArguments):
    """`ProbeArguments` for several curves in one call."""

    points: str | Iterable[str] | None = option(
        None,
        'Several points, a curve for each: a list of names, or "all" that were extracted.',
        notes="A place belongs to one curve only: with the point of the output (resid_post) among them, the other "
        "curves end at their own last place. Layers are those of the points that have layers.",
        flag=None,
    )
    probes: Sequence[Any] | None = option(
        None,
        "Several probes, a curve for each: a list of names, classes or instances.",
        Kind(_several_probes),
        notes="They share rows, control tasks and baselines, and read each place once. C is for those that have one.",
        flag=None,
    )
    labels: Any = option(
        None,
        'Several label sets, a curve for each: a list of names, or "all" of the task. Or labels by id, which are '
        "joined first: a dict id -> label, a Series, a DataFrame, or the path of a file.",
        notes="With `points`, `probes` or names of label sets the call returns `ProbeCurves`, even for one curve; with "
        "`by` or `shift_column` `ProbeGrids`. Options for labels by id are those of `label`.",
        flag=None,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.probe, tuple):
            raise UsageError(f"probe= takes one probe, got {len(self.probe)}; give several as probes=")
        if self.probes is not None:
            check_strengths_of(self.probes, self.C)
        for several in ("points", "labels"):
            given = getattr(self, several)
            if given is None or (several == "labels" and are_labels(given)):
                continue
            object.__setattr__(self, several, given if given == "all" else strings(several, given))

    @property
    def several(self) -> bool:
        """Whether several curves were requested, rather than one."""
        named = (self.points, self.probes, self.label_sets, self.within)
        return any(given is not None for given in named)

    @property
    def each_probe(self) -> tuple[Any, ...]:
        """The probes, mostly one."""
        return super().each_probe if self.probes is None else tuple(self.probes)

    @property
    def label_sets(self) -> Any:
        """The label sets to make curves of; None where `labels` holds labels by id."""
        return None if self.joined is not None else self.labels

    @property
    def joined(self) -> Any:
        """Labels by id, to be joined; None where `labels` names label sets."""
        return self.labels if self.labels is not None and are_labels(self.labels) else None


def _usual(options: "ProbeOptions") -> dict[str, Any]:
    """What is computed where it is neither asked for nor left out by name."""
    less = {"controls": 0, "codelength": False}
    if options.quick or options.by is not None or options.shift_column is not None:
        return less
    return FULL | less if options.of_sequences else FULL


class _Frame(Protocol):
    """A DataFrame or a Series of pandas."""

    @property
    def iloc(self) -> Any: ...


# a path that is a text could also be a name: type checkers take it for one
LabelsById = Mapping[Any, Any] | _Frame | os.PathLike[str] | Sequence[tuple[Any, Any] | Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class _WithLabels:
    labels: LabelsById | None = like(CurvesArguments, "labels")


@dataclass(frozen=True, kw_only=True)
class OneCurveArguments(_WithLabels, ProbeArguments):
    """`ProbeArguments` with labels by id, which make no further curve."""


@dataclass(frozen=True, kw_only=True)
class OnePositionArguments(_WithLabels, PositionArguments):
    """`PositionArguments` with labels by id."""

"""Baselines that are scores by row id: of a prompted model, or of an external judge in a file.

They are calibrated on the rows that choose (`probekit.probes.calibration`: one slope, and a bias for each class), and
tested on the rows and resamples of the probe.

Axes: M rows with scores, N rows of a label set, C classes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from probekit.errors import DataError, UsageError
from probekit.evaluation.compare.baseline_fits import BAG_OF_BIGRAMS, BAG_OF_WORDS, UNCHOSEN_C, BaselineFit, dense_fits
from probekit.evaluation.compare.baselines import Baseline, LabelledInputs, scored_fits
from probekit.evaluation.compare.lead import paired_difference
from probekit.evaluation.fits.protocol import Protocol, Round
from probekit.evaluation.plan import CurvePlan
from probekit.evaluation.request import Request
from probekit.evaluation.results.data import EMBEDDING, ENSEMBLE, NUISANCE
from probekit.evaluation.scores.metrics import Predictions, metrics_of
from probekit.probes.base import predicted_labels, probabilities
from probekit.probes.calibration import fit_scale
from probekit.tasks.labels import group_name, name_flaw
from probekit.tasks.tables.columns import ID_COLUMNS
from probekit.tasks.tables.data_table import choose_column, quote
from probekit.tasks.tables.readers import read_table
from probekit.text import counted, kind_of, listed, utf8_text

SCORE, TOKENS = "score", "tokens"  # columns of a file
TAKEN = ("majority", "mean", BAG_OF_WORDS, BAG_OF_BIGRAMS, "length", "word-type", NUISANCE, EMBEDDING, ENSEMBLE)
GIVE = "give pk.prompted_scores(...), or the path of a file with the columns id and score"


@dataclass(frozen=True, eq=False)
class BlackBoxScores:
    """What something that is no probe gives rows for their labels, before it is calibrated.

    Attributes:
        name: of the baseline, such as "prompted" or "judge.csv".
        ids: of M rows.
        values: float64 [M], higher for the second class (or the number itself); or [M, C], one for each class.
        classes: their names, in the order of the columns; empty for one score a row.
        label: the label set that they answer; None for any.
        tokens: int64 [M], how many tokens were read for each row; None where that is not known.
        log_odds: whether they are log odds, or log-probabilities of the classes.
        record: JSON-able: how they were made.
    """

    name: str
    ids: list[str]
    values: np.ndarray
    classes: tuple[str, ...] = ()
    label: str | None = None
    tokens: np.ndarray | None = None
    log_odds: bool = False
    record: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        M, shape = len(self.ids), np.shape(self.values)
        wanted = (M, len(self.classes)) if self.classes else (M,)
        if shape != wanted or (self.tokens is not None and np.shape(self.tokens) != (M,)):
            raise DataError(f"{self.name}: {M:,} ids need scores {list(wanted)} and as many tokens; got {list(shape)}")
        if not np.isfinite(self.values).all():
            raise DataError(f"{self.name}: a score is not a finite number; leave its row out")
        if len(set(map(group_name, self.ids))) < M:
            raise DataError(f"{self.name}: an id occurs twice; keep one of its scores")

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        cost = "" if self.tokens is None else f", {self.tokens.mean():.1f} tokens a row"
        return f"BlackBoxScores({self.name!r}: {counted(len(self), 'row')}{cost})"


class BoxFit(NamedTuple):
    """A black box as a baseline of one label set.

    Attributes:
        baseline: its result and predictions.
        tokens: the mean of the test rows; None where that is not known.
        row_tokens: int64 [N], of each row; 0 for one that neither calibrates nor tests; None where that is not known.
        n_calibrated: the rows that it was calibrated on.
        reversed: the AUROC of its scores on these rows where it is below 0.5, which made the slope 0; None elsewhere.
        source: the scores before calibration.
    """

    baseline: Baseline
    tokens: float | None
    row_tokens: np.ndarray | None
    n_calibrated: int
    reversed: float | None
    source: BlackBoxScores

    @property
    def name(self) -> str:
        """Of the baseline."""
        return self.baseline.result.name


def opened(given: Any, ids: Sequence[str]) -> list[BlackBoxScores]:
    """Black boxes, files read; each row of theirs is one of the task's.

    Args:
        given: scores, paths, or a list of them; None is none.
        ids: of all rows of the task.

    Raises:
        UsageError: something else, or no such file.
        DataError: a file that cannot be used, or an id that the task does not have.
    """
    several = [] if given is None else given if isinstance(given, list | tuple) else [given]
    boxes = [one if isinstance(one, BlackBoxScores) else load_scores(one) for one in several]
    known = {group_name(one) for one in ids}
    for box in boxes:
        if unknown := [one for one in box.ids if group_name(one) not in known]:
            some = listed([quote(one) for one in ids], most=3)
            raise DataError(
                f"{box.name}: no row has the id {quote(unknown[0])} ({len(unknown):,} of {len(box):,} are unknown), "
                f"only {some}; give scores of this task's rows"
            )
    return boxes


def load_scores(path: str | Path) -> BlackBoxScores:
    """Scores of an external judge by row id, for `train_probes(acts, black_boxes=...)`.

    Args:
        path: a CSV, TSV, JSONL or Parquet file with a column `id`, and a column `score` (of two classes higher means
            the second) or a column for each class, named after it. A column `tokens` is the cost of each row.

    Raises:
        UsageError: no such file, or no column of ids.
        DataError: it is damaged, an id occurs twice, or a score is no finite number.
    """
    if not isinstance(path, str | Path):
        raise UsageError(f"black boxes are scores or files; got {kind_of(path)}; {GIVE}")
    file = Path(path).expanduser()
    if not file.is_file():
        raise UsageError(f"no file of scores {str(path)!a}; {GIVE}")
    table = read_table(file)
    own = choose_column(table, None, ID_COLUMNS, "id")
    columns = {name.strip(): name for name in table.columns if name != own}
    tokens = columns.pop(TOKENS, None)
    if not columns:
        raise DataError(f"{table.name} has ids and no scores; add a column score, or one for each class")
    scores = {SCORE: columns[SCORE]} if SCORE in columns else columns
    cells = table.column(own)
    for row, cell in enumerate(cells):
        if flaw := table.bad.get(row) or name_flaw(cell, "id"):
            raise DataError(f"{table.where(row)}: {flaw[1]}")
    ids, first = [group_name(one) for one in cells], dict[str, int]()
    for row, one in enumerate(ids):
        if first.setdefault(one, row) != row:
            raise DataError(
                f"{table.where(row)}: the id {quote(one)} is that of {table.where(first[one])} too; keep one"
            )
    costs = None if tokens is None else np.round(_numbers(table, tokens)).astype(np.int64)
    if costs is not None and len(below := np.flatnonzero(costs < 0)):
        raise DataError(f"{table.where(int(below[0]))}: expected tokens of 0 or more, got {int(costs[below[0]])}")
    values = [_numbers(table, name) for name in scores.values()]
    return BlackBoxScores(
        name=utf8_text(file.name),
        ids=ids,
        values=values[0] if SCORE in columns else np.stack(values, axis=1),
        classes=() if SCORE in columns else tuple(scores),
        tokens=costs,
        record={"file": utf8_text(file.name), "sha256": table.sha256},
    )


def _numbers(table: Any, column: str) -> np.ndarray:
    found = np.empty(len(table.lines))
    for row, cell in enumerate(table.column(column)):
        try:
            found[row] = np.nan if isinstance(cell, bool) else float(cell)
        except (TypeError, ValueError):
            found[row] = np.nan
        if not np.isfinite(found[row]):
            raise DataError(f"{table.where(row)}: expected a finite number in {column!a:.40}, got {quote(cell)}")
    return found


def check_boxes(boxes: Sequence[BlackBoxScores], labels: Sequence[str]) -> None:
    """Raise a UsageError for a name that another baseline has, or for a label set that is not probed."""
    if taken := [box.name for box in boxes if box.name in TAKEN]:
        raise UsageError(f"{taken[0]!a} is the name of another baseline; give these scores a name of their own")
    for label in labels:
        own = [box.name for box in boxes if box.label in (None, label)]
        if twice := [name for name in own if own.count(name) > 1]:
            raise UsageError(f"two black boxes for {label!a} are named {twice[0]!a:.60}; give each its own name")
    if astray := [box for box in boxes if box.label not in (None, *labels)]:
        raise UsageError(
            f"the scores of {astray[0].name!a:.60} are of the label {astray[0].label!a:.60}, and {listed(labels)} "
            "is probed; make them with label=..."
        )


def black_box_fits(boxes: Sequence[BlackBoxScores], request: Request, plan: CurvePlan) -> list[BoxFit]:
    """Each black box that answers the label set, calibrated and scored.

    It is calibrated on the validation rows; without them, and with nested folds, on the rows that the probe is fitted
    on. Test rows take no part.

    Raises:
        DataError: a row that calibrates or tests has no score; scores of other classes.
    """
    own = [box for box in boxes if box.label in (None, request.label)]
    return [_fit(box, request, plan) for box in own]


def _fit(box: BlackBoxScores, request: Request, plan: CurvePlan) -> BoxFit:
    labels, n_classes, protocol = request.labels, request.n_classes, plan.grid.protocol
    found = judged_rows(box, request.acts.task.ids)
    rounds = [_calibrated_on(protocol, each) for each in protocol.rounds]
    needed = np.unique(np.concatenate([*rounds, protocol.test]))
    if len(missing := needed[found[needed] < 0]):
        split = request.acts.task.splits[missing[0]]
        raise DataError(
            f"{box.name}: no score for the row {quote(request.acts.task.ids[missing[0]])} of {split} "
            f"({len(missing):,} of the {len(needed):,} rows that calibrate or test have none); add them"
        )
    columns = class_columns(box, tuple(request.acts.label_names[request.label]), request.label)
    values = np.where(found[:, None] < 0, 0.0, columns[np.maximum(found, 0)])  # rows without a score take no part
    fits = [_calibrated(box, values, labels, rows, n_classes) for rows in rounds]
    scored = {split: rows for split, rows in protocol.rows.items() if (found[rows] >= 0).all()}
    examples = LabelledInputs(None, None, None, labels, n_classes)
    baseline = scored_fits(fits, examples, protocol, plan.bootstrap, scored)
    own = None if box.tokens is None else np.where(found < 0, 0, box.tokens[np.maximum(found, 0)])
    tokens = None if own is None else float(own[protocol.test].mean())
    return BoxFit(baseline, tokens, own, len(rounds[0]), _reversed(values, labels, rounds, n_classes, fits), box)


def judged_rows(box: BlackBoxScores, ids: Iterable[Any]) -> np.ndarray:
    """The row of each id among the scores, int64 [N]; -1 where there is none; 1 and "1 " are one id."""
    row_of = {group_name(one): row for row, one in enumerate(box.ids)}
    return np.array([row_of.get(group_name(one), -1) for one in ids], dtype=np.int64)


def _reversed(
    values: np.ndarray, labels: np.ndarray, rounds: Sequence[np.ndarray], n_classes: int, fits: Sequence[BaselineFit]
) -> float | None:
    """The mean AUROC of scores [N, 1] on the rows that calibrate, where that is below 0.5 and no slope is above 0."""
    if n_classes != 2 or any(np.ptp(fit.scores) > 0 for fit in fits):
        return None
    raw = values[:, 0]
    asked = [Predictions(labels[rows], predicted_labels(raw[rows]), raw[rows], n_classes) for rows in rounds]
    mean = float(np.mean([metrics_of(one).get("auroc", np.nan) for one in asked]))
    return mean if mean < 0.5 else None


def _calibrated_on(protocol: Protocol, each: Round) -> np.ndarray:
    if protocol.folds is None and protocol.parts:
        return protocol.parts[0]
    return np.flatnonzero(protocol.masks[each.mask])


def class_columns(box: BlackBoxScores, names: tuple[str, ...], label: str) -> np.ndarray:
    """The scores as columns [M, K]: one for two classes and for numbers (no names), else one for each class.

    Raises:
        DataError: scores of other classes.
    """
    values = box.values.astype(np.float64)
    if values.ndim == 1 and len(names) in (0, 2):
        return values[:, None]
    if values.ndim == 1 or set(box.classes) != set(names):
        got = "one score for each row" if values.ndim == 1 else f"columns {listed(box.classes, most=4)}"
        wanted = f"a column for each class of {label!a:.40} ({listed(names, most=4)})"
        wanted = f"one score for each row of {label!a:.40}" if not names else wanted
        raise DataError(f"{box.name}: expected {wanted}, got {got}; name them so")
    values = values[:, [box.classes.index(name) for name in names]]
    return values[:, 1:] - values[:, :1] if len(names) == 2 else values


def calibrated_scores(
    box: BlackBoxScores, values: np.ndarray, labels: np.ndarray, rows: np.ndarray, n_classes: int
) -> np.ndarray:
    """Columns [N, K] as log odds [N] of two classes, or logits [N, C], that these rows calibrate."""
    scale = fit_scale(values[rows], labels[rows], box.log_odds, biased=True)
    scores = scale.slope * values + scale.shift
    return scores[:, 0] if n_classes == 2 else scores


def _calibrated(
    box: BlackBoxScores, values: np.ndarray, labels: np.ndarray, rows: np.ndarray, n_classes: int
) -> BaselineFit:
    """The scores [N, K] as log odds that these rows calibrate; of numbers a line through them."""
    if not n_classes:
        return dense_fits(box.name, values, labels, rows, n_classes, [UNCHOSEN_C])[0]
    scores = calibrated_scores(box, values, labels, rows, n_classes)
    return BaselineFit(box.name, predicted_labels(scores), scores, probabilities=probabilities(scores))


def black_box_records(fits: Sequence[BoxFit], quoted: Predictions | None, plan: CurvePlan) -> dict[str, dict[str, Any]]:
    """Name -> how far the quoted score is ahead, paired on the same rows; what the black box costs, how it was made."""
    found: dict[str, dict[str, Any]] = {}
    for fit in fits:
        over = interval = None
        if quoted is not None:
            over, interval = paired_difference(quoted, fit.baseline.test, plan.headline, plan.bootstrap)
        total = None if fit.source.tokens is None else int(fit.source.tokens.sum())
        found[fit.baseline.result.name] = {
            "over": over,
            "interval": interval,
            "tokens": fit.tokens,
            "total_tokens": total,
            "calibrated_on": fit.n_calibrated,
            "reversed": fit.reversed,
            "record": fit.source.record,
        }
    return found

"""Score new texts: extraction and probe in one pass, of which nothing is kept but the scores.

Texts are read some thousand at a time, in their order, each with the plan and the shard loop of `extract`.

Axes: N texts, R rows (texts, or tokens), D width.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probekit.activations.plan.build import plan_extraction
from probekit.activations.plan.plan import ExtractionPlan
from probekit.activations.plan.reading.read_positions import layout_of, read_positions
from probekit.activations.plan.token_ids import has_texts, targets_task
from probekit.activations.run.loop import hooked_points, run_shards, unpacked
from probekit.errors import DataError, ResumeMismatch
from probekit.evaluation.fits.predict import decisions
from probekit.evaluation.results.data import ProbeData
from probekit.evaluation.results.spread import distances, usual_line
from probekit.evaluation.scores.alarms import alarms_at, rises_of
from probekit.machine.progress import progress_bar
from probekit.models.base import LanguageModel
from probekit.options import ScoreOptions
from probekit.options.option import keywords
from probekit.probes.base import as_numpy, predicted_labels
from probekit.probes.running import running_scores
from probekit.probes.sequence.ragged import Ragged, in_memory
from probekit.scoring.calibrate import calibrated
from probekit.scoring.explain import about_scores, unusual_note
from probekit.scoring.probe import ScoringProbe, compare_models, extraction_of, probe_of, template_difference
from probekit.scoring.results import Scores
from probekit.scoring.rows import ScoreRows, ScoreTally, joined_rows
from probekit.tasks.base import Task
from probekit.tasks.tables.objects import task_of


def token_columns(plan: ExtractionPlan, probe: ScoringProbe, every: bool) -> dict[str, np.ndarray]:
    """Index and text of each token that is a row, and whether the probe was trained on such tokens: [R] each.

    Without `every`, the rows are the tokens that the probe was trained on.
    """
    layout = plan.layout
    counts = layout.counts()
    index = layout.token_index
    if index is None:
        index = np.concatenate([np.arange(n) for n in counts])
    trained = np.ones(len(index), dtype=bool)
    if every:
        ends = np.cumsum(counts)
        for start, end, own in zip(ends - counts, ends, _trained_tokens(plan, probe), strict=True):
            trained[start:end] = np.isin(index[start:end], own)
    return {"token_index": index.astype(np.int64), "tokens": _pieces(plan, counts), "trained": trained}


def _trained_tokens(plan: ExtractionPlan, probe: ScoringProbe) -> Iterator[np.ndarray]:
    """The indices of the tokens of each text that the probe's selection reads; none where it reads their mean."""
    task = targets_task(plan.task) if plan.stack == "decoder" else plan.task
    sequences, skip = plan.sequences, bool(probe.reading.get("skip_special"))
    good = np.arange(len(task))
    reading, bad = read_positions(plan.model, task, sequences, probe.selection, skip)
    if bad:  # texts without the token that is read
        good = np.array([row for row in good if row not in bad], dtype=np.int64)
        task, sequences = task.subset(good), sequences.subset(good)
    found = {}
    if len(good):
        reading, _ = read_positions(plan.model, task, sequences, probe.selection, skip) if bad else (reading, bad)
        layout = layout_of(reading, sequences)
        counts = layout.counts()
        index = layout.token_index
        parts = [np.arange(n) for n in counts] if index is None else np.split(index, np.cumsum(counts)[:-1])
        found = dict(zip(good.tolist(), parts, strict=True))
    return (found.get(row, np.empty(0, dtype=np.int64)) for row in range(len(plan.task)))


def _pieces(plan: ExtractionPlan, counts: np.ndarray) -> np.ndarray:
    """The text of each token; of tokens without characters of their own what the tokenizer calls them, or their id."""
    layout, tokenizer = plan.layout, plan.model.tokenizer
    ids = np.zeros(int(counts.sum()), dtype=np.int64) if layout.tokens is None else layout.tokens
    names = [str(one) for one in ids.tolist()] if tokenizer is None else tokenizer.tokens(ids.tolist())
    texts = plan.task.inputs if plan.stack != "decoder" else plan.task.targets
    if layout.characters is None or not has_texts(plan.task) or texts is None:
        return np.array([str(name) for name in names], dtype=object)
    of = np.repeat(np.arange(len(counts)), counts).tolist()
    rows = zip(of, layout.characters.tolist(), names, strict=True)
    return np.array([str(texts[row][start:end]) or str(name) for row, (start, end), name in rows], dtype=object)


TEXTS_AT_ONCE = 4096  # tokenised and planned at once; the scores of as many are in memory


@keywords(ScoreOptions)
def score_texts(results: ProbeData, model: LanguageModel, texts: Any, options: ScoreOptions) -> Scores:
    """Score new texts with the probe of a place of results; see `ProbeResults.score`.

    Args:
        results: of `train_probes`.
        model: the model that the probe was trained on.
        texts: a list of texts, of token ids or of chats, or a task.
        options: as keyword arguments.
    """
    return run_scoring(plan_scoring(results, model, task_of(texts), options))


def run_scoring(scoring: "Scoring") -> Scores:
    """The scores of all texts of a run; errors as `score_parts`."""
    return Scores(**joined_rows(list(score_parts(scoring)), scoring.meta))


@dataclass(frozen=True, eq=False)
class Scoring:
    """One run: which texts, which probe, and what its scores mean.

    Attributes:
        probe: the probe.
        model: the model that will run.
        task: the texts.
        options: as given.
        by_token: whether each row is a token.
        meta: of the scores.
    """

    probe: ScoringProbe
    model: LanguageModel
    task: Task
    options: ScoreOptions
    by_token: bool
    meta: dict[str, Any]


def plan_scoring(
    results: ProbeData, model: LanguageModel, task: Task, options: ScoreOptions, probe: ScoringProbe | None = None
) -> Scoring:
    """Check everything that can be checked before the model runs; `probe` is one that `probe_of` made before.

    Raises:
        As `ProbeResults.score`.
    """
    probe = probe or probe_of(results, options.place, options)
    if not len(task):
        raise DataError("expected one text or more, got none")
    notes = [*compare_models(probe, model, options, has_texts(task)), *_check_kind(probe, task, options)]
    by_token = options.tokens or probe.each_token
    return Scoring(probe, model, task, options, by_token, about_scores(results, probe, options.tokens, notes))


def scoring_notes(scoring: Scoring, tally: ScoreTally) -> str:
    """What the columns mean, and how many rows are unusual."""
    lines, spread = [*scoring.meta["notes"]], scoring.probe.spread
    if spread is not None and scoring.meta["unusual_above"] is not None and not scoring.meta["without_distance"]:
        unit = "text" if not scoring.by_token else "trained token" if scoring.options.tokens else "token"
        lines.append(unusual_note(tally.trained, tally.unusual, spread, unit))
    return "\n".join(lines)


def _check_kind(probe: ScoringProbe, task: Task, options: ScoreOptions) -> list[str]:
    """Check that the texts are of the kind that the probe was trained on: chats, words or plain texts."""
    kinds = {
        "chats": (task.chats is not None, bool(probe.reading.get("chat"))),
        "words of texts (--span-column)": (task.spans is not None, bool(probe.reading.get("words"))),
    }
    notes = []
    for what, (given, trained) in kinds.items():
        if given == trained or not probe.reading:
            continue
        one, other = (what, "plain texts") if trained else ("plain texts", what)
        difference = f"the probe was trained on {one}, and these are {other}"
        if trained or not options.any_model:
            raise DataError(f"{difference}; give {one}")
        notes.append(difference)
    return notes


def score_parts(scoring: Scoring) -> Iterator[ScoreRows]:
    """The scores of some thousand texts at a time, in the order of the task.

    Raises:
        DataError: texts that cannot be read; NaN or infinity in the activations.
        ResumeMismatch: another chat template than the probe's.
    """
    n = len(scoring.task)
    with progress_bar("score", "texts", n, scoring.options.progress) as bar:
        for start in range(0, n, TEXTS_AT_ONCE):
            rows = np.arange(start, min(n, start + TEXTS_AT_ONCE))
            some = scoring.task if len(rows) == n else scoring.task.subset(rows)
            yield _scored(scoring, some, bar.advance)


def _scored(scoring: Scoring, task: Task, done: Callable[[int], None]) -> ScoreRows:
    """The scores of the texts of one part."""
    probe = scoring.probe
    options = extraction_of(probe, scoring.options, scoring.options.tokens)
    plan = plan_extraction(scoring.model, task, options)
    other = template_difference(scoring.probe.reading, plan.task)
    if other is not None and not scoring.options.any_model:
        raise ResumeMismatch(f"{other}, or score all the same (--any-model, any_model=True)")
    if hooked_points(scoring.model):
        plan = unpacked(plan)
    ids = np.array(plan.task.ids, dtype=object)
    if scoring.by_token:
        ids = np.repeat(ids, plan.layout.counts(plan.places[0]))
    about, index_of = _Columns(len(ids), probe, scoring.by_token), plan.layout.token_index
    with closing(run_shards(plan, False)) as shards:
        for _, rows, values in shards:
            X = torch.cat([values[place] for place in probe.places], dim=1)
            counts = plan.layout.counts(plan.places[0])[rows]
            own = plan.layout.index(plan.places[0], rows)
            index = own if scoring.by_token else rows
            numbers = None if index_of is None else index_of[own]
            about.fill(index, X.to(torch.promote_types(X.dtype, torch.float32)), counts, numbers)
            done(len(rows))
    if skipped := len(task) - len(plan.task):
        done(skipped)
    tokens = token_columns(plan, probe, scoring.options.tokens) if scoring.by_token else {}
    texts = None if scoring.by_token or not has_texts(plan.task) else np.array(plan.task.inputs, dtype=object)
    return about.rows(ids, {**tokens, "texts": texts}, scoring.meta)


class _Columns:
    """The columns that the probe gives, filled shard by shard."""

    def __init__(self, n: int, probe: ScoringProbe, by_token: bool):
        self._probe, self._n = probe, n
        self._as_texts = by_token and probe.probe.of_sequences  # each token is scored as a text of its own
        threshold = None if self._as_texts else probe.threshold
        self._threshold = None if threshold is None else threshold.value
        self._scores: np.ndarray | None = None
        self._predicted = np.zeros(n, dtype=np.int64)
        has_distance = probe.spread is not None and not self._as_texts
        self._distance = np.empty(n) if has_distance else None
        rings = threshold is not None and threshold.of == "conversation" and probe.probe.of_sequences
        self._alarms = np.full((2, n), None, dtype=object) if rings else None

    def fill(self, index: np.ndarray, X: Tensor, counts: np.ndarray, numbers: np.ndarray | None = None) -> None:
        """Score the activations [R, D] of these rows.

        Args:
            index: the rows.
            X: the activations, those of one row after the other.
            counts: tokens of each text.
            numbers: the index of each token in its text, [R]; None where all tokens were read.
        """
        probe = self._probe
        own: Tensor | Ragged = X
        if probe.probe.of_sequences:
            own = in_memory(X, np.ones(len(X), dtype=np.int64) if self._as_texts else counts)
        (found,) = decisions([probe.probe], own, np.arange(len(index)))
        if self._scores is None:
            self._scores = np.empty((self._n, *found.scores.shape[1:]))
        self._scores[index] = found.scores
        if probe.classes:
            self._predicted[index] = predicted_labels(found.scores) if found.predicted is None else found.predicted
        if self._alarms is not None and self._threshold is not None and isinstance(own, Ragged):
            rises = rises_of(running_scores(probe.probe, own))
            at = alarms_at(rises, self._threshold)
            ends, rung = np.cumsum(counts), at >= 0
            named = at if numbers is None else numbers[np.minimum(ends - counts + at, ends - 1)]
            self._alarms[0, index[rung]], self._alarms[1, index[rung]] = named[rung], (counts - 1 - at)[rung]
        if self._distance is not None and probe.spread is not None:
            rows = np.asarray(as_numpy(X), dtype=np.float64)
            if probe.probe.of_sequences:
                ends = np.cumsum(counts)
                rows = np.add.reduceat(rows, ends - counts, axis=0) / counts[:, None]
            self._distance[index] = distances(probe.spread, rows)

    def rows(self, ids: np.ndarray, others: dict[str, Any], meta: dict[str, Any]) -> ScoreRows:
        """The columns with the others."""
        probe, scores = self._probe, self._scores
        assert scores is not None
        names = np.array(probe.classes, dtype=object)
        line = None if probe.spread is None else usual_line(probe.spread)
        is_calibrated = probe.calibration is not None and not self._as_texts
        alarm_at, before_end = (None, None) if self._alarms is None else self._alarms
        flagged = None if self._threshold is None else scores >= self._threshold
        return ScoreRows(
            ids=ids,
            scores=scores,
            predicted=names[self._predicted] if probe.classes else None,
            probabilities=calibrated(probe.calibration, scores) if is_calibrated and probe.calibration else None,
            flagged=flagged if alarm_at is None else np.array([at is not None for at in alarm_at]),
            alarm_at=alarm_at,
            before_end=before_end,
            distance=self._distance,
            unusual=None if self._distance is None or line is None else self._distance > line[0],
            meta=meta,
            **others,
        )

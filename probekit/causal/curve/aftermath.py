"""What an edit leaves: what probes read after it, here and at later layers, and the loss on neutral texts.

Completeness, selectivity and reliability of counterfactual interventions (interchange, steering) follow Canby et al.
2024 (arXiv 2408.15510): the probes are those of the unedited activations, trained on other rows. Probes trained after
the edit would not do: if two classes are exchanged, they learn the exchanged names.

Axes: N rows, D width of the place, P places.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from probekit.activations.activations import ActivationSet
from probekit.causal.behaviour.measure import loss_per_token
from probekit.causal.curve.arms import CHOICES, interchange_arms, steer_arms
from probekit.causal.curve.candidates import PlaceDirections
from probekit.causal.curve.question import CausalQuestion, tokens_of
from probekit.causal.curve.sides import Side
from probekit.causal.data import Effect
from probekit.causal.erasure.completeness import (
    FreshReading,
    FreshScores,
    fresh_probes,
    harmonic_mean,
    mean_of_known,
    read_afresh,
)
from probekit.causal.erasure.erase import Eraser
from probekit.causal.erasure.recovery import extract_edited
from probekit.errors import DataError, UsageError
from probekit.files.plain_files import MAX_TABLE, read_bytes
from probekit.interventions import Edit
from probekit.models.base import LanguageModel
from probekit.points import Place
from probekit.tasks.base import Task
from probekit.tasks.tables.columns import TOKEN_COLUMNS
from probekit.tasks.tables.readers import TXT, read_table
from probekit.tasks.tables.rows import tokens_flaw
from probekit.tasks.token_labels import no_label
from probekit.text import listed


@dataclass(frozen=True)
class ExchangeReading:
    """What the probes of the unedited activations read with an edit.

    Attributes:
        label: the edited label set.
        places: the edited one first, [P].
        completeness: how well the wanted classes are read with the edit, above chance, as a share of how well the own
            ones are read without it, [P]: 1 if every row reads as its wanted class, below 0 if it still reads as its
            own; nan where nothing was read.
        selectivity: how well the other label sets are still read, as a share of before: [P], their mean; nan without
            any.
    """

    label: str
    places: list[Place]
    completeness: list[float]
    selectivity: list[float]

    @property
    def reliability(self) -> list[float]:
        """The harmonic mean of completeness and selectivity, each limited to 0..1: [P]."""
        return [harmonic_mean(*both) for both in zip(self.completeness, self.selectivity, strict=True)]


def read_exchange(
    reading: FreshReading,
    before: Mapping[Place, torch.Tensor],
    after: Mapping[Place, torch.Tensor],
    labels: Mapping[str, np.ndarray],
    wanted_N: np.ndarray,
    label: str,
) -> ExchangeReading:
    """Read rows with and without an edit, by the probes of `read_afresh`.

    Args:
        reading: of the unedited activations; its probes were trained on rows of validation, so give rows of test.
        before: place -> activations of the rows without the edit, [N, D].
        after: with it, at the edited place first, then at later ones.
        labels: label set -> the rows' own classes or numbers, [N].
        wanted_N: the class that the edit is to give each row, [N].
        label: the edited label set, of classes.

    Raises:
        UsageError: a label set without probes, or a place without activations or probes.
    """
    if label not in reading.scores:
        raise UsageError(reading.left_out.get(label, f"no fresh probes of {label!a}; read them first: read_afresh"))
    places = [Place(*place) for place in after]
    if missing := [str(place) for place in places if place not in before or place not in reading.scores[label].probes]:
        raise UsageError(
            f"no unedited activations or probes of {listed(missing)}; read the same places without the edit"
        )
    rows = {name: np.asarray(labels[name]) for name in reading.scores}

    def share(name: str, place: Place, wanted: np.ndarray) -> float:
        scores, there = reading.scores[name], ~no_label(rows[name])  # labels that came later may be of some rows
        if scores.intervals[place][0] <= scores.chance or not there.any():
            return math.nan
        own = _score(scores, place, before[place][there], rows[name][there]) - scores.chance
        found = _score(scores, place, after[place][there], wanted[there]) - scores.chance
        return found / own if own > 0 else math.nan

    others = [name for name in rows if name != label]
    complete = [share(label, place, np.asarray(wanted_N)) for place in places]
    selective = [mean_of_known(share(name, place, rows[name]) for name in others) for place in places]
    return ExchangeReading(label, places, complete, selective)


def _score(scores: FreshScores, place: Place, x_ND: torch.Tensor, wanted_N: np.ndarray) -> float:
    """Balanced accuracy, or R2 of numbers, of the place's probe."""
    predicted_N = scores.probes[place].predict(x_ND)
    if scores.metric == "r2":
        return 1 - float(np.square(wanted_N - predicted_N).sum() / np.square(wanted_N - wanted_N.mean()).sum())
    return float(np.mean([(predicted_N[wanted_N == c] == c).mean() for c in np.unique(wanted_N)]))


COLUMNS = ("text", "sentence")
MOST = 200  # texts; a choice, not measured


def load_neutral(path: str | Path, model: LanguageModel, bos: bool | None = None, most: int = MOST) -> list[list[int]]:
    """The first texts of a file as token ids, cut at the model's context.

    Args:
        path: a text file with a text in each line, or a table (CSV, TSV, JSONL, Parquet) with a column "text" or
            "sentence", or "ids" (or "input_ids") of token ids.
        model: the model that will read them.
        bos: whether texts get context tokens; None: only for models that were never trained without, such as BERT.
        most: how many texts to take.

    Raises:
        DataError: the file cannot be read, has no such column or no text of two tokens or more.
        UsageError: a file of an unknown format.
    """
    path = Path(path)
    texts = _lines(path) if path.suffix.lower() == TXT else _column(path)
    given = [list(ids) for ids in texts[:most] if not isinstance(ids, str)]
    if given:
        return _checked(model, path, [ids[: model.cfg.n_ctx] for ids in given])
    tokenizer = model.need_tokenizer()
    around = tokenizer.sep_token_id is not None and not model.causal if bos is None else bos
    encoded = tokenizer.encode_batch([str(text) for text in texts[:most]], bos=around)
    return _checked(model, path, [each[: model.cfg.n_ctx] for each in encoded])


def _checked(model: LanguageModel, path: Path, ids: list[list[int]]) -> list[list[int]]:
    if wrong := [one for each in ids for one in each if one >= model.cfg.d_vocab]:
        raise DataError(f"{path.name}: token ids of {model.name!a} are 0..{model.cfg.d_vocab - 1}, got {wrong[0]}")
    if not any(len(each) > 1 for each in ids):
        raise DataError(f"{path.name} has no text of two tokens or more, which a loss needs; give running text")
    return ids


def _lines(path: Path) -> list[str]:
    try:
        data = read_bytes(path, MAX_TABLE)
    except OSError as error:
        raise DataError(f"cannot read {str(path)!a}: {error.strerror}") from None
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{path.name} is not UTF-8 at byte {error.start}; save it again as UTF-8") from None
    if not (texts := [line for line in lines if line.strip()]):
        raise DataError(f"{path.name} is empty; expected a text in each line")
    return texts


def _column(path: Path) -> list[str] | list[list[int]]:
    """The texts of a table that are not empty, or its lists of token ids."""
    table = read_table(path)
    name = next((name for name in (*COLUMNS, *TOKEN_COLUMNS) if name in table.columns), None)
    if name is None:
        raise DataError(f"{table.name} has the columns {listed(table.columns)}; expected {' or '.join(COLUMNS)}")
    if name in COLUMNS:
        return [text for text in table.column(name) if isinstance(text, str) and text.strip()]
    for row, cell in enumerate(table.column(name)):
        if flaw := tokens_flaw(cell):
            raise DataError(f"{table.where(row)}: {flaw[1]}")
    return [*table.column(name)]


MOST_FRESH = 1000  # rows of validation, and of test, that fresh probes are trained and scored on
NEUTRAL = 64  # texts of the loss


@dataclass(frozen=True, eq=False)
class Aftermath:
    """What is known before any edit, the same for every place.

    Attributes:
        task: rows of validation and test.
        reading: what fresh probes read there; None if fresh probes were not asked for, or cannot be trained.
        neutral: texts of the loss.
        loss: on them, in nats a token; None where no text has a second token to predict.
    """

    task: Task
    reading: FreshReading | None
    neutral: list[list[int]]
    loss: float | None


def prepare_aftermath(question: CausalQuestion) -> Aftermath:
    """Read the unedited activations afresh, and measure the loss of the unedited model.

    Raises:
        DataError: a file of neutral texts that cannot be read.
    """
    rng, splits = np.random.default_rng([question.options.seed, 3]), question.acts.task.splits
    rows = np.concatenate(
        [np.sort(rng.permutation(np.flatnonzero(splits == split))[:MOST_FRESH]) for split in ("validation", "test")]
    )
    task, reading = question.acts.task.subset(rows), None
    if question.options.completeness:
        index = torch.from_numpy(rows)
        places = [Place(layer.point, layer.layer) for layer in question.layers]
        own = ActivationSet({place: question.acts[place][index] for place in places}, task)
        try:
            reading = read_afresh(own, seed=question.options.seed)
        except DataError:  # too few rows of a class: the rest of the run needs no fresh probes
            reading = None
    neutral = _neutral(question, rng)
    has_mask = question.model.causal or question.model.tokenizer is not None  # which the loss of an encoder needs
    loss = loss_per_token(question.model, neutral) if has_mask and any(len(text) > 1 for text in neutral) else None
    return Aftermath(task, reading, neutral, loss)


def after_edits(
    question: CausalQuestion,
    known: Aftermath,
    test: Side,
    fitted: PlaceDirections,
    eraser: Eraser | None,
    effects: Sequence[Effect],
) -> dict[str, dict[str, Any]]:
    """What the chosen edit of each method leaves at a place, and at later ones: method -> measures, JSON-able.

    Args:
        question: what is asked.
        known: before any edit.
        test: the test rows, with their activations at the place.
        fitted: the place's directions.
        eraser: LEACE of the label; None if erasure was not asked for.
        effects: at the place. Those on validation choose the direction and the scale.

    Returns:
        "collateral"; and, where fresh probes could read the label, "completeness" (a list: at the place, then at later
        ones, up to the first where nothing was read before), "completeness_interval", "selectivity", "reliability".
    """
    place = Place(effects[0].point, effects[0].layer)
    found = {}
    for method, (direction, scale) in _chosen(effects).items():
        if method == "erase" and eraser is not None:
            found[method] = _after_erasure(question, known, place, eraser)
            continue
        here = _edit(method, fitted, test, direction, scale)
        there = _edit(method, fitted, _elsewhere(question, known, test, place), direction, scale)
        found[method] = _collateral(question, known, {place: there})
        if known.reading is not None and question.label in known.reading.scores:
            found[method] |= _after_exchange(question, known.reading, place, test, here)
    return found


def _chosen(effects: Sequence[Effect]) -> dict[str, tuple[str, float | None]]:
    """Method -> direction and scale with the largest effect on validation."""
    chosen = {}
    for method, directions in CHOICES.items():
        own = [e for e in effects if (e.method, e.split) == (method, "validation") and e.direction in directions]
        own = [e for e in own if math.isfinite(e.effect)]
        if own:
            best = max(own, key=lambda effect: effect.effect)
            chosen[method] = best.direction, best.scale
    return chosen


def _edit(method: str, fitted: PlaceDirections, side: Side, direction: str, scale: float | None) -> Edit:
    """The edit of the rows of a side."""
    if method == "interchange":
        arms = interchange_arms(fitted, side, with_placebos=False)
    else:
        arms = steer_arms(fitted, [scale or 0.0], side, with_placebos=False)
    return next(arm.edit for arm in arms if arm.direction == direction)


def _elsewhere(question: CausalQuestion, known: Aftermath, test: Side, place: Place) -> Side:
    """The neutral texts as rows: coordinates come from train rows, and the classes take turns."""
    n, classes = len(known.neutral), np.unique(test.labels)
    drawn = np.random.default_rng([question.options.seed, 4]).choice(question.train, n)
    labels = np.arange(n) % len(classes)
    return replace(
        test,
        labels=classes[labels],
        other=classes[(labels + 1) % len(classes)],
        counterpart=np.arange(n),
        x_ND=question.acts[place][torch.from_numpy(drawn)].to(test.x_ND),
    )


def _collateral(question: CausalQuestion, known: Aftermath, edits: dict[Place, Any]) -> dict[str, Any]:
    if known.loss is None:
        return {}
    return {"collateral": loss_per_token(question.model, known.neutral, edits) - known.loss}


def _after_erasure(question: CausalQuestion, known: Aftermath, place: Place, eraser: Eraser) -> dict[str, Any]:
    """Collateral, and what fresh probes read, trained and scored with the edit."""
    edits = {place: eraser.edit}
    found = _collateral(question, known, edits)
    if known.reading is None or question.label not in known.reading.scores:
        return found
    after = _edited(question, known.task, place, edits)
    fresh = fresh_probes(known.reading, ActivationSet({place: after[place]}, known.task), question.label)
    completeness, ends = fresh.completeness, list(fresh.completeness_intervals[0])
    if later := {each: x for each, x in after.items() if each != place}:  # the other labels are read here alone
        own = ActivationSet(later, _with_one_label(known.task, question.label))
        completeness += fresh_probes(known.reading, own, question.label).completeness
    if np.isfinite(ends).all():
        found["completeness_interval"] = ends
    return found | _shares(completeness, fresh.selectivity[0])


def _with_one_label(task: Task, label: str) -> Task:
    names = {label: task.label_names[label]}
    return replace(task, labels={label: task.labels[label]}, label_names=names, target=label)


def _after_exchange(
    question: CausalQuestion, reading: FreshReading, place: Place, test: Side, edit: Edit
) -> dict[str, Any]:
    """What probes of the unedited activations read on the test rows with the edit."""
    task = question.acts.task.subset(test.index)
    after = _edited(question, task, place, {place: edit})
    rows = torch.from_numpy(test.index)
    before = {each: question.acts[each][rows] for each in after}
    read = read_exchange(reading, before, after, task.labels, test.other, question.label)
    return _shares(read.completeness, read.selectivity[0])


def _shares(completeness: list[float], selectivity: float) -> dict[str, Any]:
    """The measures that are numbers."""
    shown = next((i for i, share in enumerate(completeness) if math.isnan(share)), len(completeness))
    found: dict[str, Any] = {"completeness": completeness[:shown]} if shown else {}
    for name, share in (("selectivity", selectivity), ("reliability", harmonic_mean(completeness[0], selectivity))):
        if not math.isnan(share):
            found[name] = share
    return found


def _edited(question: CausalQuestion, task: Task, place: Place, edits: dict[Place, Any]) -> ActivationSet:
    """Activations of the rows with the edit, at its place and at later ones of the curve."""
    every = [Place(layer.point, layer.layer) for layer in question.layers]
    return extract_edited(question.model, question.acts, task, every[every.index(place) :], edits, question.options.at)


def _neutral(question: CausalQuestion, rng: np.random.Generator) -> list[list[int]]:
    """Texts of a file, or texts of the task that no effect is measured on."""
    if question.options.neutral is None:
        rows = np.sort(rng.permutation(question.train)[:NEUTRAL])
        return [ids for ids in tokens_of(question.model, question.acts, rows)[0] if len(ids) > 1]
    return load_neutral(question.options.neutral, question.model, question.acts.meta.get("bos"))

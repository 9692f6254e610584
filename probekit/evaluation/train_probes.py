"""A probe at every place of a curve: fitted on train, chosen on validation, scored on test, doubted in every way.

The audit comes first; control tasks, baselines, code lengths and the comparison of the places stand beside the curve.

Axes: N examples.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from probekit.activations.activations import Activations
from probekit.errors import DataError
from probekit.evaluation.compare.codelength import OnlineCode
from probekit.evaluation.compare.controls import control_labels, control_types
from probekit.evaluation.compare.judge_baselines import baselines_of
from probekit.evaluation.fits.fit_grid import columns_of, with_every_class
from probekit.evaluation.fits.layer import Question, answers_of, chosen_inside, compared, lead, optimism, procedure
from probekit.evaluation.fits.protocol import Protocol, check_taught, drawn_together, of_folds, of_splits, rows_together
from probekit.evaluation.request import Asked, asked_of, same_examples
from probekit.evaluation.results.provenance import origin_of, random_origin
from probekit.evaluation.results.report import LEAST_SEEN
from probekit.evaluation.results.results import LayerResult, ProbeResults
from probekit.evaluation.scores.bootstrap import Bootstrap
from probekit.evaluation.scores.metrics import check_metric, headline
from probekit.options import ProbeArguments, ProbeOptions
from probekit.options.option import keywords
from probekit.tasks.quality.audit import Audit, audit, audit_of_folds
from probekit.tasks.splits import components

FEW = 5  # strengths that the online code mixes


@keywords(ProbeArguments)
def train_probes(acts: Activations, options: ProbeArguments) -> ProbeResults:
    """Train and test a probe at every layer of one point.

    C and the best layer are chosen on the headline of validation (`metric`, or accuracy; AUROC where a class has more
    than 80% of the training labels; R2 for numbers; ties go to the smaller C and the earlier layer); test decides
    nothing. With nested folds both are chosen anew inside each fold, and what is to be quoted is how well that
    procedure does (`results.judged`). One layer's activations are in memory at a time.

    Args:
        acts: from `extract` or `load_activations`.
        options: as keyword arguments.

    Raises:
        UsageError: an unknown probe, point, label or metric, a layer that is not there, a C that is not positive and
            finite, a probe of classes for labels that are numbers; `drop_leaks` with folds.
        DataError: NaN or infinity in the activations; labels out of range; a class missing from a split or a fold, or
            once the leaks are left out.
    """
    asked, seed = asked_of(acts, options), options.seed
    metric = None if options.metric is None else check_metric(options.metric, asked.n_classes)
    noise = None if options.random_init is None else same_examples(asked, options.random_init, options.position)
    found, rows = _rows(asked, options)
    draws, control = _controls(asked, rows, options)
    question = replace(_question(asked, rows, draws, options.codelength, seed, metric), is_fair=_is_fair(control))
    tick = _ticker(options.progress, len(asked.places) * (1 if noise is None else 2))
    answers = answers_of(asked.acts, asked.places, question, tick)
    curve, whole = compared(answers, question)
    beside = baselines_of(asked, question, answers) if options.baselines else []
    results = ProbeResults(
        layers=curve,
        baselines=[result for result, _ in beside],
        meta={
            **origin_of(asked, question, found, options.drop_leaks, seed),
            "control": control,
            **whole,
            "random_init": random_origin(options.random_init),
        },
        random_init=_random(asked, question, noise, tick),
    )
    if options.folds is None:
        said, results.meta["procedure"] = answers[curve.index(results.best)].verdict.test, None
    else:
        said, layers_inside = chosen_inside(answers, question)
        results.meta["procedure"] = procedure(said, layers_inside, question)
    others = [(result, its) for result, its in beside if its is not said]  # the embedding may be the best itself
    results.meta["lead"] = lead(said, others, question)
    results.meta["optimism"] = optimism(curve, results.best, question.headline, results.judged[0])
    return results


def curve_alone(asked: Asked, seed: int, done: Callable[[], None]) -> ProbeResults:
    """The curve of `train_probes` on the task's splits, fitted, chosen and scored alike, with nothing to doubt it by.

    Places are not compared, the data is not audited, and there are no controls, codes and baselines.

    Args:
        asked: the curve to be drawn.
        seed: of the resamples.
        done: called after each place.
    """
    task = asked.acts.task
    task.check(asked.label)
    question = _question(asked, of_splits(task.splits, np.ones(len(task), dtype=bool)), [], codelength=False, seed=seed)
    layers = [answer.result for answer in answers_of(asked.acts, asked.places, question, done)]
    return ProbeResults(layers, [], origin_of(asked, question, Audit(asked.label, {}), drop_leaks=False, seed=seed))


def _rows(asked: Asked, options: ProbeOptions) -> tuple[Audit, Protocol]:
    """The audit, and which rows are fitted, choose and test."""
    task = asked.acts.task
    if options.folds is not None:
        return _folds(asked, options.folds, options.seed)
    task.check(asked.label)
    found = audit(task, asked.label)
    kept = np.ones(len(task), dtype=bool)
    if not options.drop_leaks:
        return found, of_splits(task.splits, kept)
    kept[found.leaks] = False
    try:
        task.subset(kept).check(asked.label)
    except DataError as error:
        raise DataError(
            f"too little is left once the texts that are also in a later split are left out (drop_leaks): {error}"
        ) from None
    return replace(found, dropped=True), of_splits(task.splits, kept)


def _folds(asked: Asked, folds: int, seed: int) -> tuple[Audit, Protocol]:
    task = asked.acts.task
    alone = task.info.get("no_texts")
    texts = np.arange(len(task)) if alone else rows_together(task.inputs, None)
    together = texts if task.groups is None else components(texts.tolist(), task.groups.tolist())
    protocol = of_folds(asked.labels, together, np.ones(len(task), dtype=bool), folds, seed)
    check_taught(protocol, asked.labels, task.label_names[asked.label], asked.label)
    return audit_of_folds(task, asked.label, texts), protocol


def _controls(asked: Asked, rows: Protocol, options: ProbeOptions) -> tuple[list[np.ndarray], dict[str, Any] | None]:
    """The labels of the control tasks, [N] each, and their record; None where none were asked for."""
    draws, kind = options.controls, options.control_type
    if draws == 0:
        return [], None
    types = control_types(asked.acts, kind)
    if types is None:
        return [], {"type": None, "draws": 0, "asked": draws, "seen": 0.0}
    drawn = control_labels(asked.labels, types, asked.n_classes, draws, options.seed, rows.taught)
    usable = with_every_class(rows, drawn, asked.n_classes)
    name = kind if kind == "text" or isinstance(types[0], int) else "word"
    return usable, {"type": name, "draws": len(usable), "asked": draws, "seen": _seen(rows, types)}


def _seen(rows: Protocol, types: list[Any]) -> float:
    """The share of the test rows whose type stands among the rows that teach for them."""
    known = [{types[i] for i in np.flatnonzero(rows.masks[each.mask])} for each in rows.rounds]
    there = [types[i] in types_known for each, types_known in zip(rows.rounds, known, strict=True) for i in each.test]
    return float(np.mean(there))


def _is_fair(control: dict[str, Any] | None) -> bool:
    return control is not None and control["type"] != "text" and control.get("seen", 0) >= LEAST_SEEN


def _question(
    asked: Asked, rows: Protocol, draws: list[np.ndarray], codelength: bool, seed: int, metric: str | None = None
) -> Question:
    labels, groups = asked.labels[rows.taught], drawn_together(asked.acts.task)
    code = None
    if codelength and asked.n_classes and asked.probe == "logistic":
        used, own = rows.used, np.searchsorted(rows.used, rows.taught)
        of = None if groups is None else np.asarray(groups)[used]
        code = OnlineCode(asked.labels[used], asked.n_classes, own, _thinned(asked.grid), seed, of)
    return Question(
        probe=asked.kind,
        columns=columns_of(rows, [asked.labels, *draws], asked.n_classes, asked.grid),
        headline=metric or headline(np.bincount(labels, minlength=asked.n_classes) if asked.n_classes else []),
        bootstrap=Bootstrap(len(rows.test), seed, None if groups is None else np.asarray(groups)[rows.test]),
        code=code,
        seed=seed,
        metric=metric,
    )


def _thinned(grid: list[float | None]) -> list[float | None]:
    """A few strengths of a long grid, both ends among them: the code mixes them, so it loses next to nothing."""
    return grid if len(grid) <= FEW else [grid[i] for i in np.linspace(0, len(grid) - 1, FEW).round().astype(int)]


def _random(asked: Asked, question: Question, acts: Activations | None, done: Callable[[], None]) -> list[LayerResult]:
    """The curve of random weights: numbers alone."""
    if acts is None:
        return []
    return [replace(answer.result, probe=None) for answer in answers_of(acts, asked.places, question.alone(), done)]


def _ticker(progress: Callable[[int, int], None] | None, total: int) -> Callable[[], None]:
    done = 0

    def tick() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    return tick

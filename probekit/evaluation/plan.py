"""The plan of a curve: its fits and scores. They are the same for all places, so the plan is made once."""

from dataclasses import dataclass, replace

import numpy as np

from probekit.evaluation.compare.codelength import OnlineCode
from probekit.evaluation.compare.controls import NO_CONTROLS, ControlTasks, measures_memory
from probekit.evaluation.fits.fit_grid import FitGrid, fit_grid, target_only
from probekit.evaluation.fits.protocol import Protocol
from probekit.evaluation.request import Request
from probekit.evaluation.rows import resampling_units
from probekit.evaluation.scores.bootstrap import Bootstrap
from probekit.evaluation.scores.metrics import default_metric
from probekit.probes import Probe

CODE_STRENGTHS = 5  # the online code mixes its probes, so a few strengths of a long grid lose next to nothing


@dataclass(frozen=True, eq=False)
class CurvePlan:
    """The fits and scores of every place.

    Attributes:
        probe: unfitted; copied for each problem.
        grid: the fits; its label sets after the first are control tasks.
        headline: the metric that chooses.
        metric: the headline if it was requested by name; None if the labels decided.
        bootstrap: resamples of the test rows; None for no intervals.
        code: online code of the training labels, or None.
        label_names: of the classes; none for a regression.
        control_C: whether control tasks are fitted at the C that is chosen for the "label", or choose their "own".
        selectivity: whether the control tasks can be learnt for the test rows, so that selectivity measures memory.
    """

    probe: Probe
    grid: FitGrid
    headline: str
    metric: str | None
    bootstrap: Bootstrap | None
    code: OnlineCode | None = None
    selectivity: bool = False
    label_names: tuple[str, ...] = ()
    control_C: str = "label"


def plan_curve(
    request: Request,
    protocol: Protocol,
    seed: int,
    metric: str | None = None,
    controls: ControlTasks = NO_CONTROLS,
    codelength: bool = False,
    intervals: bool = True,
) -> CurvePlan:
    """The plan of a request.

    Args:
        request: the curve.
        protocol: the rows that are fitted, choose and test.
        seed: of the resamples and the code's order.
        metric: the headline; None leaves it to the labels.
        controls: control tasks.
        codelength: whether to measure the online code, where the probe allows it.
        intervals: whether to resample the test rows.
    """
    labels, units = request.labels[protocol.train], resampling_units(request.acts.task)
    counts = np.bincount(labels, minlength=request.n_classes) if request.n_classes else []
    label_sets = [request.labels, *controls.labels]
    return CurvePlan(
        probe=request.probe,
        grid=fit_grid(protocol, label_sets, request.n_classes, request.strengths),
        headline=metric or default_metric(counts),
        metric=metric,
        bootstrap=_bootstrap(protocol, units, seed) if intervals else None,
        code=_online_code(request, protocol, seed, units) if codelength and request.probe.for_codelength else None,
        selectivity=measures_memory(controls),
        label_names=tuple(request.acts.label_names[request.label]),
        control_C=controls.C,
    )


def _bootstrap(protocol: Protocol, units: np.ndarray | None, seed: int) -> Bootstrap:
    return Bootstrap(len(protocol.test), seed, None if units is None else np.asarray(units)[protocol.test])


def _online_code(request: Request, protocol: Protocol, seed: int, units: np.ndarray | None) -> OnlineCode:
    rows, strengths = protocol.fitted, request.strengths
    if len(strengths) > CODE_STRENGTHS:  # both ends included
        strengths = [strengths[i] for i in np.linspace(0, len(strengths) - 1, CODE_STRENGTHS).round().astype(int)]
    train, groups = np.searchsorted(rows, protocol.train), None if units is None else np.asarray(units)[rows]
    return OnlineCode(request.labels[rows], request.n_classes, train, strengths, seed, groups)


def numbers_only(plan: CurvePlan) -> CurvePlan:
    """The plan without control tasks and code."""
    return replace(plan, grid=target_only(plan.grid), code=None)

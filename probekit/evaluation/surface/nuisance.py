"""The curve without the nuisance columns, and how far each place changes, paired on the same test rows."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from probekit.evaluation.compare.lead import paired_difference
from probekit.evaluation.curve import Fitted, FittedPlace, fit_places
from probekit.evaluation.fits.stream import check_room
from probekit.evaluation.label_sets import LabelSetPlan
from probekit.evaluation.results.data import NUISANCE, BaselineResult
from probekit.evaluation.surface.residual import Residualised
from probekit.points import Place


def fit_residual(sets: Sequence[LabelSetPlan], places: Sequence[Place], done: Callable[[], None]) -> list[Fitted]:
    """For each label set the same fits, control tasks included, on the activations without its nuisances."""
    known: dict[tuple[int, bytes, bytes], Residualised] = {}
    sources, plans = [], []
    for each in sets:
        assert each.nuisance is not None
        for place in places:  # what is left of the rows is in memory
            check_room(each.requests[0].features, place)
        features, protocol = each.requests[0].features, each.plan.grid.protocol
        key = (id(features), each.nuisance.features.tobytes(), b"".join(mask.tobytes() for mask in protocol.masks))
        if key not in known:
            known[key] = Residualised(features, each.nuisance.features, protocol.masks, protocol.final)
        sources.append(known[key])
        plans.append(replace(each.plan, code=None))
    return fit_places(sources, plans, places, done)


def nuisance_record(
    label_set: LabelSetPlan, fitted: Sequence[FittedPlace], without: Sequence[FittedPlace]
) -> dict[str, Any]:
    """What the columns alone give on test, and the change of each place without them: JSON-able."""
    assert label_set.nuisance is not None
    plan = label_set.plan
    alone = next(each.result for each in label_set.baselines if each.result.name == NUISANCE)
    changes = [_change(one, other, plan.headline, plan.bootstrap) for one, other in zip(fitted, without, strict=True)]
    return {
        "names": label_set.nuisance.names,
        "sizes": label_set.nuisance.sizes,
        "rank": label_set.nuisance.rank,
        "alone": _score(alone, plan.headline),
        "changes": changes,
    }


def _score(alone: BaselineResult, metric: str) -> dict[str, Any]:
    ends = alone.intervals.get(metric)
    return {"value": alone.metrics["test"].get(metric), "interval": None if ends is None else list(ends)}


def _change(one: FittedPlace, other: FittedPlace, metric: str, bootstrap: Any) -> dict[str, Any]:
    """The score without the columns minus the score with them, with its interval."""
    over, interval = paired_difference(other.fit.test, one.fit.test, metric, bootstrap)
    return {"place": one.result.place, "change": over, "interval": interval}

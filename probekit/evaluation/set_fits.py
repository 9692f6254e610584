"""Every fit that the curves need: of the labels, of random weights, of one row for each text, without nuisances."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from probekit.activations.activations import Activations
from probekit.evaluation.compare.same_rows import fit_pooled, other_features
from probekit.evaluation.curve import Fitted, announcer, fit_places, ticker
from probekit.evaluation.fits.stream import OnPass
from probekit.evaluation.label_sets import LabelSetPlan
from probekit.evaluation.plan import numbers_only
from probekit.evaluation.reading import of_rows
from probekit.evaluation.request import random_init_activations
from probekit.evaluation.surface.nuisance import fit_residual
from probekit.options import CurvesArguments
from probekit.points import Place

FITTING = "fitting probes"


@dataclass(frozen=True, eq=False)
class SetFits:
    """The fits of one label set and probe, by place.

    Attributes:
        own: of the activations.
        random: of the same architecture with random weights; may be empty.
        pooled: of other features of the same rows, by name; may be empty.
        residual: after the nuisance columns were regressed out; may be empty.
    """

    own: Fitted
    random: Fitted = field(default_factory=dict)
    pooled: dict[str, Fitted] = field(default_factory=dict)
    residual: Fitted = field(default_factory=dict)


def _on_pass(options: CurvesArguments) -> OnPass:
    """Says that a place is read from disk, at each pass."""
    begin = announcer(options.on_part)
    return lambda place, number: begin(f"{FITTING}, {place} from disk (pass {number})")


FitPlaces = Callable[
    [Activations, CurvesArguments, Sequence[LabelSetPlan], Sequence[Place], Callable[[], None]], list[Fitted]
]
"""What `fit_places` gives for these label sets, made by others; the last argument is called after each place."""


def fit_sets(
    acts: Activations,
    sets: Sequence[LabelSetPlan],
    options: CurvesArguments,
    fit_elsewhere: FitPlaces | None = None,
) -> list[SetFits]:
    """The fits of each label set; a place is read once for all of them. `fit_elsewhere` makes those of the labels.

    Raises:
        DataError: NaN or infinity in the activations, or random weights without a place that is probed.
    """
    first, plans = sets[0].requests[0], [each.plan for each in sets]
    places = list(dict.fromkeys(place for request in sets[0].requests for place in request.places))
    noise = options.random_init
    if noise is not None:
        noise = random_init_activations(noise, acts.task, first, places, options)
    features = [each.requests[0].features for each in sets]
    others = other_features(features, options)
    parts = 1 + (noise is not None) + any(others) + bool(options.nuisance)
    done = ticker(options.on_progress, len(places) * parts)
    if fit_elsewhere is not None:
        own = fit_elsewhere(acts, options, sets, places, done)
    else:
        own = fit_places(features, plans, places, done, _on_pass(options))
    pooled = fit_pooled(others, plans, places, options, done)
    random: list[Fitted] = [{}] * len(sets)
    if noise is not None:
        noisy = [of_rows(noise, each.requests[0].rows) for each in sets]
        random = fit_places(noisy, [numbers_only(plan) for plan in plans], places, done)
    residual = fit_residual(sets, places, done) if options.nuisance else [{}] * len(sets)
    return [SetFits(*each) for each in zip(own, random, pooled, residual, strict=True)]

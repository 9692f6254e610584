"""Train probes, in this process or on a Ray cluster, and log what came out."""

import warnings

from probekit.activations.activations import Activations
from probekit.engines.ray_probes import check_engine, fit_places_on_ray
from probekit.errors import StorageError
from probekit.evaluation.by_position.results import PositionResults
from probekit.evaluation.results.curves import ProbeCurves
from probekit.evaluation.results.grids import Grid, ProbeGrids
from probekit.evaluation.results.results import ProbeResults
from probekit.evaluation.train_probes import train_curves, with_labels
from probekit.logging_to.check import check_tracker
from probekit.logging_to.trackers import log_results
from probekit.options import CurvesArguments
from probekit.options.option import keywords_of_three
from probekit.options.probe import OneCurveArguments, OnePositionArguments


@keywords_of_three(
    (OnePositionArguments, PositionResults), (OneCurveArguments, ProbeResults), (CurvesArguments, ProbeCurves)
)
def train_probes(acts: Activations, options: CurvesArguments) -> ProbeResults | ProbeCurves | Grid | ProbeGrids:
    """Train and test a probe at every layer of one point, or of several points, label sets and kinds of probe.

    C and the best layer are chosen on the headline of validation (`metric`, or accuracy; AUROC where a class has
    more than 80% of the training labels; R2 for numbers). Ties go to the lower log loss (of numbers, squared
    error), then to the smaller C, then to the earlier layer. Test decides nothing. With nested folds both are
    chosen anew inside each fold, and the number to quote is that of the procedure (`results.estimate`). As many
    layers are fitted at once, and are in memory, as torch has threads, unless memory is short; on a GPU one. The
    numbers do not depend on the threads. A place of a store that does not fit in memory with its fits is read from
    disk in every pass (see `memory`): the numbers are the same within the certificates.

    A task without validation rows is fitted on all of train if there is one C, and then no layer is selected. If there
    are several, a tenth of the training rows chooses, as after `load_task`, with a warning.

    Args:
        acts: from `extract` or `load_activations`.
        options: as keyword arguments. Where `labels` holds labels by id rather than names, they are joined first, as
            `label(acts, labels)` does it.

    Returns:
        `ProbeResults`, the curve of one point and label set; with `points`, `probes` or several `labels`,
        `ProbeCurves`; with `by`, `PositionResults`, or `HeadResults` with by="head"; with `shift_column`,
        `TransferResults`; with these and several points, probes or label sets, `ProbeGrids`.

    Raises:
        UsageError: an unknown probe, point, label or metric, a layer that is not there, a C that is not positive and
            finite, a probe of classes for labels that are numbers; `drop_leaks` with folds.
        DataError: NaN or infinity in the activations; labels out of range; a class missing from a split or a fold, or
            once the leaks are left out.
    """
    if options.log_to is not None:
        check_tracker(options.log_to)
    if options.engine is None:
        results = train_curves(acts, options)
    else:
        acts, options = with_labels(acts, options)
        check_engine(acts, options)
        results = train_curves(acts, options, fit_places_on_ray)
    if options.log_to is not None:
        try:
            log_results(results, options.log_to)
        except StorageError as error:  # hours of fits are not lost to a tracker
            warnings.warn(str(error), stacklevel=3)
    return results

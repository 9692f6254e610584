"""Probes by name: one of this package by its name, class, instance or file, or any scikit-learn estimator."""

from pathlib import Path
from typing import Any

from probekit.errors import UsageError, nearest
from probekit.files.hub import is_address
from probekit.options.check import check_path
from probekit.options.curve import k_in
from probekit.probes.base import Probe
from probekit.probes.estimator import EstimatorClassifier, EstimatorProbe, EstimatorRegressor
from probekit.probes.files import read_probe
from probekit.probes.in_results import probe_in, results_folder, split_place
from probekit.probes.lda import LDAProbe, MeanDifferenceProbe
from probekit.probes.logistic.probe import LogisticProbe
from probekit.probes.mlp import MLPProbe
from probekit.probes.ridge import RidgeProbe, RidgeRegressionProbe
from probekit.probes.scikit_learn import clone
from probekit.probes.sequence.aggregate import TOKEN_PROBES, AggregateProbe
from probekit.probes.sequence.attention import AttentionProbe, MultiMaxProbe
from probekit.probes.sparse import KSparseProbe
from probekit.text import listed

PROBES: dict[str, type[Any]] = {
    "logistic": LogisticProbe,
    "ridge": RidgeProbe,
    "lda": LDAProbe,
    "mean-diff": MeanDifferenceProbe,
    "mlp": MLPProbe,
    "k-sparse": KSparseProbe,
}
REGRESSORS: dict[str, type[Any]] = {"ridge": RidgeRegressionProbe}
SEQUENCE_PROBES: dict[str, type[Any]] = {"attention": AttentionProbe, "multimax": MultiMaxProbe}  # of all tokens
SAVED: tuple[type[Any], ...] = (
    *PROBES.values(),
    *REGRESSORS.values(),
    *SEQUENCE_PROBES.values(),
    AggregateProbe,
)


def load_probe(path: str | Path) -> Any:
    """Load the fitted probe that `probe.save(path)` wrote: same class, same predictions.

    Args:
        path: where it was saved; or a folder of results, here or on the Hub, and a place in it:
            "hf://owner/name:resid_pre.5". Without a place it is the probe of the best layer.

    Raises:
        UsageError: no such place in the results, or no such repository.
        DataError: missing or damaged files, or files that are not a complete probe.
    """
    folder, place = split_place(str(path) if is_address(path) else str(check_path("path", path)))
    if is_address(folder) or Path(folder).is_dir():
        path = probe_in(results_folder(folder), place)
    return read_probe(check_path("path", path), {probe.__name__: probe for probe in SAVED})


def find_probe(given: Any, n_classes: int, label: str = "the label", aggregate: str | None = None) -> Probe:
    """An unfitted probe for labels with `n_classes` classes, or for numbers (0).

    Args:
        given: a name of `PROBES` or `REGRESSORS`; a probe or its class; a scikit-learn classifier or regressor or its
            class. An instance's parameters are kept. None is the default: logistic, or ridge for numbers.
        n_classes: 0 for a regression.
        label: the label set's name, for messages.
        aggregate: how scores of tokens become one of their text; `given` is then the probe of the tokens.

    Raises:
        UsageError: not a probe, or a probe of classes for numbers, or of numbers for classes.
    """
    probe = _instance(("logistic" if n_classes else "ridge") if given is None else given, n_classes)
    probe = probe if aggregate is None else _aggregated(probe, aggregate)
    if probe.of_sequences and n_classes == 0:
        raise UsageError(
            f"a probe over a sequence predicts classes, and {label!a} holds a number for each text; read one row for "
            "each text (--position mean or last), or make classes of the numbers"
        )
    if probe.predicts == "classes" and n_classes == 0:
        raise UsageError(
            f"the probe {probe_name(probe)} predicts classes, and {label!a} holds a number for each example; "
            f"take {listed(REGRESSORS)} or a scikit-learn regressor, or make classes of the numbers"
        )
    if probe.predicts == "numbers" and n_classes:
        raise UsageError(
            f"the probe {probe_name(probe)} predicts numbers, and {label!a} has classes; "
            f"take {', '.join(PROBES)} or a scikit-learn classifier"
        )
    return probe


def probe_name(probe: Probe) -> str:
    """The probe's name ("k-sparse-4"), or its call if a parameter is not the default ("LogisticProbe(C=4)")."""
    if isinstance(probe, AggregateProbe):
        return f"{probe.aggregate}-over-tokens-{probe.probe}"
    every = PROBES | REGRESSORS | SEQUENCE_PROBES
    names = {kind: name for name, kind in every.items()} | {kind: name for name, kind in PROBES.items()}
    if type(probe) in names and probe.get_params() == type(probe)().get_params():
        return names[type(probe)]
    if isinstance(probe, KSparseProbe) and probe.get_params() == KSparseProbe(k=probe.k).get_params():
        return f"k-sparse-{probe.k}"
    shown = probe.estimator if isinstance(probe, EstimatorProbe) else probe
    return " ".join(ascii(shown).split())


def _instance(given: Any, n_classes: int) -> Probe:
    if isinstance(given, str):  # "ridge" names two, and the labels decide
        if (k := k_in(given)) is not None:
            return KSparseProbe(k=k)
        first, second = (PROBES, REGRESSORS) if n_classes else (REGRESSORS, PROBES)
        kind = first.get(given, second.get(given, SEQUENCE_PROBES.get(given)))
        if kind is None:
            raise UsageError(f"unknown probe {given!a}; {nearest(given, PROBES | REGRESSORS | SEQUENCE_PROBES)}")
        return kind()
    if isinstance(given, type):
        try:
            given = given()
        except TypeError as error:
            raise UsageError(f"probe {given.__name__} needs arguments ({error}); give an instance") from None
    if not isinstance(given, Probe) and not _is_classifier_or_regressor(given):
        raise UsageError(
            f"probe must be a name ({', '.join(PROBES)}), a probe, or a scikit-learn classifier or regressor with fit "
            f"and predict; got {type(given).__name__}"
        )
    try:
        unfitted: Any = clone(given)
    except (RuntimeError, TypeError) as error:
        raise UsageError(f"probe {type(given).__name__} cannot be cloned for each fit: {error}") from None
    if isinstance(unfitted, Probe):
        return unfitted
    from sklearn.base import is_classifier

    return (EstimatorClassifier if is_classifier(unfitted) else EstimatorRegressor)(unfitted)


def _is_classifier_or_regressor(given: Any) -> bool:
    from sklearn.base import BaseEstimator, is_classifier, is_regressor  # see `probes.scikit_learn`

    # of the class: an unfitted instance may lack `predict` until it is fitted, as a StackingClassifier does
    has_both = all(callable(getattr(type(given), name, None)) for name in ("fit", "predict"))
    return isinstance(given, BaseEstimator) and has_both and (is_classifier(given) or is_regressor(given))


def _aggregated(probe: Probe, aggregate: str) -> AggregateProbe:
    """The probe over a sequence that aggregates the scores of this probe of tokens."""
    if isinstance(probe, AggregateProbe) and probe.aggregate == aggregate:
        return probe
    name = next((name for name, kind in [*TOKEN_PROBES.items(), *REGRESSORS.items()] if type(probe) is kind), None)
    if name is None:
        shown = f"{probe_name(probe)} aggregates by itself" if probe.of_sequences else f"got {probe_name(probe)}"
        raise UsageError(f"--aggregate (aggregate=) takes a linear probe of tokens, {listed(TOKEN_PROBES)}; {shown}")
    own, usual = probe.get_params(), type(probe)().get_params()
    if changed := [key for key in own if key != "C" and own[key] != usual[key]]:
        raise UsageError(f"--aggregate (aggregate=) takes no {changed[0]} of the token probe; leave it out")
    return AggregateProbe(name, aggregate, C=own.get("C", 1.0))

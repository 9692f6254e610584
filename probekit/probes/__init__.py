"""Probes: what activations know, as scikit-learn estimators that take numpy and torch."""

from probekit.probes.base import ClassifierProbe, LinearProbe, Probe
from probekit.probes.load import PROBES, REGRESSORS, load_probe
from probekit.probes.logistic import LogisticProbe
from probekit.probes.mean_difference import MeanDifferenceProbe
from probekit.probes.moments import MomentsProbe
from probekit.probes.ridge import RidgeProbe, RidgeRegressionProbe, fit_ridge_path

__all__ = [
    "PROBES",
    "REGRESSORS",
    "ClassifierProbe",
    "LinearProbe",
    "LogisticProbe",
    "MeanDifferenceProbe",
    "MomentsProbe",
    "Probe",
    "RidgeProbe",
    "RidgeRegressionProbe",
    "fit_ridge_path",
    "load_probe",
]

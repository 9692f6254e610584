"""Probes: linear classifiers of activations, as scikit-learn estimators that take numpy and torch."""

from probekit.probes.base import LinearProbe
from probekit.probes.load import PROBES, load_probe
from probekit.probes.logistic import LogisticProbe
from probekit.probes.mean_difference import MeanDifferenceProbe
from probekit.probes.moments import MomentsProbe
from probekit.probes.ridge import RidgeProbe

__all__ = ["PROBES", "LinearProbe", "LogisticProbe", "MeanDifferenceProbe", "MomentsProbe", "RidgeProbe", "load_probe"]

"""Probes: scikit-learn estimators of labels from activations, which take numpy and torch."""

from probekit.probes.base import ClassifierProbe, LinearProbe, Probe
from probekit.probes.estimator import EstimatorClassifier, EstimatorRegressor
from probekit.probes.find import PROBES, REGRESSORS, SEQUENCE_PROBES, find_probe, load_probe, probe_name
from probekit.probes.lda import LDAProbe, MeanDifferenceProbe
from probekit.probes.logistic.probe import LogisticProbe, fit_logistic_path
from probekit.probes.mlp import MLPProbe
from probekit.probes.moments import MomentsProbe
from probekit.probes.ridge import RidgeProbe, RidgeRegressionProbe, fit_ridge_path
from probekit.probes.sequence.aggregate import AggregateProbe
from probekit.probes.sequence.attention import AttentionProbe, MultiMaxProbe
from probekit.probes.sequence.base import SequenceProbe
from probekit.probes.sequence.ragged import Ragged
from probekit.probes.sparse import KSparseProbe, Ranking, rank_neurons

__all__ = [
    "PROBES",
    "REGRESSORS",
    "SEQUENCE_PROBES",
    "AggregateProbe",
    "AttentionProbe",
    "ClassifierProbe",
    "EstimatorClassifier",
    "EstimatorRegressor",
    "KSparseProbe",
    "LDAProbe",
    "LinearProbe",
    "LogisticProbe",
    "MLPProbe",
    "MeanDifferenceProbe",
    "MomentsProbe",
    "MultiMaxProbe",
    "Probe",
    "Ragged",
    "Ranking",
    "RidgeProbe",
    "RidgeRegressionProbe",
    "SequenceProbe",
    "find_probe",
    "fit_logistic_path",
    "fit_ridge_path",
    "load_probe",
    "probe_name",
    "rank_neurons",
]

"""Logistic regression to a certified optimum: the probe, and the solver behind it."""

from probekit.probes.logistic.probe import LogisticProbe, fit_logistic_path

__all__ = ["LogisticProbe", "fit_logistic_path"]

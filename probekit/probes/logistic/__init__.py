"""Logistic regression to a certified optimum: the probe, and the solvers behind it."""

"""Fit the probes of a layer and choose the regularisation."""

"""Baselines, control tasks and codelength of a probe, and the comparison of the layers."""

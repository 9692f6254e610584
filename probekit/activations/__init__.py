"""Activations: what passes named points of a model on the inputs of a task, in memory or in a store on disk."""

from probekit.activations.sets import Activations, ActivationSet

__all__ = ["ActivationSet", "Activations"]

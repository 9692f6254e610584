"""Activations: what passes named points of a model on the inputs of a task, in memory or in a store on disk."""

from probekit.activations.extract import extract, run_plan
from probekit.activations.listing import StoreInfo, default_path, list_stores, newest_store
from probekit.activations.planning import ExtractionPlan, plan
from probekit.activations.repair import Repaired, repair
from probekit.activations.sets import Activations, ActivationSet
from probekit.activations.store import Store, load_activations
from probekit.activations.verify import Broken, Verification, verify

__all__ = [
    "ActivationSet",
    "Activations",
    "Broken",
    "ExtractionPlan",
    "Repaired",
    "Store",
    "StoreInfo",
    "Verification",
    "default_path",
    "extract",
    "list_stores",
    "load_activations",
    "newest_store",
    "plan",
    "repair",
    "run_plan",
    "verify",
]

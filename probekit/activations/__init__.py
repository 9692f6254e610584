"""Activations of a model at named points on the inputs of a task, in memory or in a store on disk."""

from probekit.activations.activations import Activations, ActivationSet
from probekit.activations.estimate import Estimate, describe_estimate, estimate
from probekit.activations.extract import extract_statistics, run_plan, run_statistics
from probekit.activations.imports.plan import ImportPlan, describe_import, import_as_dict
from probekit.activations.imports.run import import_activations, plan_import, run_import
from probekit.activations.labelled import (
    LabelledStore,
    label,
    label_store,
    record_of_labels,
    with_label_columns,
)
from probekit.activations.parts.cut import PartProgress
from probekit.activations.parts.merge import Merged, merge_stores
from probekit.activations.parts.run import PartDone, run_part
from probekit.activations.plan.build import plan_extraction
from probekit.activations.plan.identity import checkpoints_path, default_path
from probekit.activations.plan.plan import ExtractionPlan
from probekit.activations.plan.summary import describe_plan, plan_as_dict
from probekit.activations.random_init import random_init_of
from probekit.activations.repair import Repaired, repair
from probekit.activations.store.check import Broken, Verification, verify
from probekit.activations.store.listing import StoreInfo, list_stores, newest_store
from probekit.activations.store.reader import Store, load_activations
from probekit.activations.sums.moments import SplitMoments
from probekit.activations.sums.statistics import Statistics, load_statistics, statistics_bytes, statistics_progress

__all__ = [
    "ActivationSet",
    "Activations",
    "Broken",
    "Estimate",
    "ExtractionPlan",
    "ImportPlan",
    "LabelledStore",
    "Merged",
    "PartDone",
    "PartProgress",
    "Repaired",
    "SplitMoments",
    "Statistics",
    "Store",
    "StoreInfo",
    "Verification",
    "checkpoints_path",
    "default_path",
    "describe_estimate",
    "describe_import",
    "describe_plan",
    "estimate",
    "extract_statistics",
    "import_activations",
    "import_as_dict",
    "label",
    "label_store",
    "list_stores",
    "load_activations",
    "load_statistics",
    "merge_stores",
    "newest_store",
    "plan_as_dict",
    "plan_extraction",
    "plan_import",
    "random_init_of",
    "record_of_labels",
    "repair",
    "run_import",
    "run_part",
    "run_plan",
    "run_statistics",
    "statistics_bytes",
    "statistics_progress",
    "verify",
    "with_label_columns",
]

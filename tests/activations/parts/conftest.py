"""A plan of several shards, and the stores that one process makes of it; tests only read them."""

from pathlib import Path

import pytest
from part_cases import plan_of_files

from probekit.activations import run_plan
from probekit.activations.plan.plan import ExtractionPlan


@pytest.fixture(scope="package")
def plan(tmp_path_factory: pytest.TempPathFactory) -> ExtractionPlan:
    return plan_of_files(tmp_path_factory.mktemp("given"))


@pytest.fixture(scope="package")
def single(plan: ExtractionPlan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of one process, with statistics."""
    path = tmp_path_factory.mktemp("single") / "store"
    run_plan(plan, path, progress=False, stats=True)
    return path

"""A tiny GPT-2, a tokenizer of single characters, and tasks of known lengths."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from store_cases import ROW_BYTES, Letters, make_model, make_task

from probekit.activations.plan import build as planning
from probekit.models.families.gpt2 import GPT2
from probekit.tasks.base import Task


@pytest.fixture(scope="session")
def tiny() -> Callable[..., GPT2]:
    return partial(make_model, tokenizer=Letters)


@pytest.fixture(scope="session")
def letters() -> Callable[..., Task]:
    return make_task


@pytest.fixture
def model() -> GPT2:
    return make_model(tokenizer=Letters)


@pytest.fixture
def task() -> Task:
    return make_task()


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "SHARD_BYTES", 6 * ROW_BYTES)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a test's store goes."""
    return tmp_path / "runs" / "store"

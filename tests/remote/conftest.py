"""Small shards, and a place in memory that each test has for itself."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import remote_cases

from probekit.activations.plan import build as planning
from probekit.activations.store import examples as stored_examples
from probekit.files.remote import attempts
from probekit.files.remote.path import RemotePath, as_path


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "SHARD_BYTES", remote_cases.SHARD_BYTES)
    monkeypatch.setattr(stored_examples, "PIECE_ROWS", remote_cases.PIECE_ROWS)
    monkeypatch.setattr(attempts, "FIRST_WAIT", 0.001)


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Iterator[RemotePath]:
    """A place in memory; what is there is gone after the test."""
    made = as_path(f"memory://test/{abs(hash(request.node.nodeid))}")
    assert isinstance(made, RemotePath)
    yield made
    for one in list(made.rglob("*")):
        one.unlink()


@pytest.fixture(scope="session")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store on disk that every other must equal."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "SHARD_BYTES", remote_cases.SHARD_BYTES)
        patch.setattr(stored_examples, "PIECE_ROWS", remote_cases.PIECE_ROWS)
        path = tmp_path_factory.mktemp("usual") / "store"
        remote_cases.run_to(path)
    return path

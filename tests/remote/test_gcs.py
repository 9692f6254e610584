"""Google's object store, through gcsfs and a stand-in for the server: the same store, and the first writer wins."""

from collections.abc import Iterator

import pytest
from gcs_server import GcsServer
from remote_cases import content, run_to

from probekit.activations import load_activations, verify
from probekit.errors import StorageError
from probekit.files.remote import attempts, filesystems
from probekit.files.remote.path import RemotePath, as_path


@pytest.fixture
def gcs(monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsServer]:
    server = GcsServer()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.address)
    monkeypatch.setattr(filesystems, "_made", {})
    anonymous = {**filesystems.SCHEMES["gs"].options, "token": "anon"}
    scheme = filesystems.Scheme("gcsfs", "gcs", anonymous, True, "")
    monkeypatch.setitem(filesystems.SCHEMES, "gs", scheme)
    yield server
    server.close()


def test_it_equals_the_store_on_disk_file_by_file(gcs, usual):
    place = as_path("gs://bucket/store")
    assert isinstance(place, RemotePath)
    run_to(place)
    assert content(place) == content(usual)
    assert verify(place).is_sound
    run_to(place)
    assert content(place) == content(usual)
    assert load_activations(place).task.fingerprint() == load_activations(usual).task.fingerprint()


def test_the_verbs(gcs):
    place = as_path("gs://bucket/x")
    assert isinstance(place, RemotePath)
    assert not place.exists()
    assert (place / "a").create(b"one")
    assert not (place / "a").create(b"two")
    assert any("ifGenerationMatch=0" in line for line in gcs.requests)
    assert (place / "a").read_bytes() == b"one"
    assert (place / "a").read_bytes(1, 2) == b"n"
    assert [one.name for one in place.iterdir()] == ["a"]
    assert (place / "a").stat().st_size == 3
    (place / "a").unlink()
    (place / "a").unlink(missing_ok=True)
    assert not place.exists()


def test_a_server_that_is_not_there_is_told_soon(gcs, monkeypatch):
    monkeypatch.setattr(attempts, "_reached", set())
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    with pytest.raises(StorageError, match="no answer after 3 attempts"):
        as_path("gs://bucket/x").exists()

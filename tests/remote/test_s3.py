"""A real S3 server: nothing is lost when writers die, connections break, uploads are cut or objects are damaged."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from remote_cases import N_SHARDS, computed_shards, content, run_to
from s3_server import ACCESS, BUCKET, CuttingProxy, S3Server, clean_environment
from store_cases import make_model

from probekit.activations import Store, load_activations, repair, verify
from probekit.cli.main import run as run_command
from probekit.errors import StorageError
from probekit.files import durable
from probekit.files.durable import remove_stale, write_named
from probekit.files.remote import attempts, filesystems
from probekit.files.remote.filesystems import filesystem
from probekit.files.remote.path import RemotePath, as_path

_clients: dict[int, Any] = {}  # by port: each takes half a second to make


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    made = S3Server()
    with pytest.MonkeyPatch.context() as patch:
        use(patch, made.port)
        filesystem("s3").call_s3("create_bucket", Bucket=BUCKET)
    yield made
    made.close()


def use(patch: pytest.MonkeyPatch, port: int) -> None:
    """Talk to S3 at this port, with nothing of this machine's settings."""
    for name in os.environ:
        if name.startswith("AWS_"):
            patch.delenv(name)
    for name, value in {**ACCESS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}.items():
        patch.setenv(name, value)
    patch.setattr(filesystems, "_made", _clients.setdefault(port, {}))


@pytest.fixture
def s3(server: S3Server, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> RemotePath:
    """A place that no other test has."""
    use(monkeypatch, server.port)
    made = as_path(f"s3://{BUCKET}/{abs(hash(request.node.name))}")
    assert isinstance(made, RemotePath)
    return made


def test_it_equals_the_store_on_disk_file_by_file_also_after_damage(s3, usual):
    store, local = run_to(str(s3)), load_activations(usual)
    assert isinstance(store, Store)
    written = content(s3)
    assert written == content(usual)
    for data in (*written.values(), (s3 / "manifest.json").read_bytes()):
        assert ACCESS["AWS_SECRET_ACCESS_KEY"].encode() not in data
    for place in local:
        assert torch.equal(store[place], local[place])
    assert verify(s3).is_sound
    shard = sorted((s3 / "shards").iterdir())[1]
    data = shard.read_bytes()
    shard.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    found = verify(s3)
    assert [one.file for one in found.broken] == [f"shards/{shard.name}"]
    assert "repair" in found.advice
    with pytest.raises(StorageError, match="checksum"):
        [store[place] for place in store]
    repair(s3, make_model())
    assert content(s3) == written


def test_a_writer_killed_in_the_middle_loses_nothing(s3, usual, server, monkeypatch):
    tests = str(Path(__file__).parents[1])
    call = f"remote_cases.die_after(1, {str(s3)!r}, {torch.get_num_threads()})"
    code = f"import sys; sys.path.insert(0, {tests!r}); import remote_cases; {call}"
    env = {**clean_environment(), **server.env}
    done = subprocess.run([sys.executable, "-c", code], env=env, timeout=120, capture_output=True)
    assert done.returncode == -9, done.stderr.decode()
    assert not (s3 / "manifest.json").exists()
    there = [int(one.stem) for one in (s3 / "records").glob("*.json")]
    assert 0 < len(there) < N_SHARDS
    computed = computed_shards(monkeypatch)
    run_to(s3)
    assert sorted(computed + there) == list(range(N_SHARDS))
    assert content(s3) == content(usual)


def test_two_writers_at_once_leave_one_store(s3, usual):
    errors: list[BaseException] = []

    def write() -> None:
        try:
            run_to(s3)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write) for _ in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    assert errors == []
    assert not any(one.is_alive() for one in threads)
    assert content(s3) == content(usual)


def test_dropped_connections_and_cut_uploads_change_nothing(s3, usual, server, monkeypatch):
    monkeypatch.setattr(attempts, "LONGEST_WAIT", 0.01)
    proxy = CuttingProxy(server.port)
    try:
        with monkeypatch.context() as patch:
            use(patch, proxy.port)
            run_to(s3)
            store, local = load_activations(s3), load_activations(usual)
            for place in local:
                assert torch.equal(store[place], local[place])
    finally:
        proxy.close()
    assert proxy.cut > 5
    assert content(s3) == content(usual)


def test_the_first_writer_wins(s3):
    assert (s3 / "a").create(b"one")
    assert not (s3 / "a").create(b"two")
    assert (s3 / "a").read_bytes() == b"one"
    assert (s3 / "a").read_bytes(5, 9) == b""
    (s3 / "empty").write_bytes(b"")
    assert (s3 / "empty").read_bytes(0, 5) == b""


def test_a_listing_is_never_old(s3, server):
    """Another client writes and removes between two listings."""
    (s3 / "a").write_bytes(b"1")
    assert [one.name for one in s3.iterdir()] == ["a"]
    other = filesystems._make("s3", filesystems.SCHEMES["s3"])
    other.pipe_file((s3 / "b").key, b"2")
    assert [one.name for one in s3.iterdir()] == ["a", "b"]
    assert (s3 / "b").exists()
    other.rm_file((s3 / "a").key)
    assert not (s3 / "a").exists()
    assert [one.name for one in s3.iterdir()] == ["b"]


def test_unfinished_uploads_are_invisible_and_aborted_when_they_are_old(s3, monkeypatch):
    bucket, _, key = (s3 / "shards" / "x").key.partition("/")
    files = filesystem("s3")
    ask = files.call_s3
    ask("create_multipart_upload", Bucket=bucket, Key=key)
    assert not (s3 / "shards" / "x").exists()

    def uploads_after(minutes: float) -> int:
        """How many are left, if they began so many minutes ago: this server says of all that they began in 2010."""

        def asked(verb, **about):
            answer = ask(verb, **about)
            for one in answer.get("Uploads", []):
                one["Initiated"] = datetime.now(UTC) - timedelta(minutes=minutes)
            return answer

        with monkeypatch.context() as patch:
            patch.setattr(files, "call_s3", asked)
            remove_stale(s3 / "shards")
        return len(ask("list_multipart_uploads", Bucket=bucket, Prefix=key).get("Uploads", []))

    assert uploads_after(minutes=50) == 1
    remove_stale(s3 / "other")
    assert uploads_after(minutes=50) == 1
    assert uploads_after(minutes=70) == 0


def test_large_objects_go_in_parts_and_the_first_writer_wins_there_too(s3, monkeypatch):
    from probekit.files.remote import path

    monkeypatch.setattr(path, "ONE_REQUEST", 10 << 20)  # a part of S3 has at least 5 MB
    data = os.urandom(1 << 20) * 12
    assert (s3 / "a").create(data)
    assert (s3 / "a").read_bytes() == data
    assert not (s3 / "a").create(data[::-1])
    assert (s3 / "a").read_bytes(0, 9) == data[:9]
    monkeypatch.setattr(durable, "ONE_REQUEST", 10 << 20)
    write_named(s3, (data[i : i + (1 << 20)] for i in range(0, len(data), 1 << 20)), lambda: "b")
    assert (s3 / "b").read_bytes() == data


@pytest.mark.parametrize(
    "command", [["verify"], ["ls"], ["extract", "--model", "none/such", "--dataset", "agreement", "--out"]]
)
def test_a_bucket_that_is_not_there_is_told_in_one_line(s3, capsys, command):
    """Also before the model is loaded."""
    assert run_command([*command, "s3://no-such-bucket/store"]) in (3, 4)
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) == 1
    assert "no-such-bucket" in shown[0]
    assert ACCESS["AWS_SECRET_ACCESS_KEY"] not in shown[0]


def test_a_server_that_is_not_there_is_told_in_one_line(s3, capsys, monkeypatch):
    use(monkeypatch, 9)
    monkeypatch.setattr(attempts, "_reached", set())
    assert run_command(["verify", str(s3)]) == 4
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) == 1
    assert "no answer" in shown[0]
    assert "AWS_ENDPOINT_URL" in shown[0]

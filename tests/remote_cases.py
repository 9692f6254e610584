"""What the tests of stores in an object store share: a small run to any place, and what is there afterwards."""

import os
import signal
from typing import Any

import pytest
import torch
from store_cases import make_model, make_task

from probekit.activations.plan import build as planning
from probekit.activations.run import loop
from probekit.activations.store import examples as stored_examples
from probekit.activations.store.writer import StoreWriter
from probekit.files.remote.path import AnyPath, RemotePath
from probekit.verbs.extract import extract

N = 40
SHARD_BYTES, PIECE_ROWS, N_SHARDS = 6 * 7 * 16 * 4, 16, 3  # several shards, several pieces of examples
HOW: dict[str, Any] = {"points": ["resid_pre", "q"], "batch_tokens": 30, "progress": False}


def run_to(out: str | AnyPath | None, **changes: Any) -> Any:
    return extract(make_model(), make_task(N, texts=False), out=out, **{**HOW, **changes})


def computed_shards(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that gets the number of each shard that is computed from now on."""
    computed, compute = list[int](), loop.compute_shard

    def spy(plan: Any, number: int, *rest: Any) -> Any:
        computed.append(number)
        return compute(plan, number, *rest)

    monkeypatch.setattr(loop, "compute_shard", spy)
    return computed


def content(path: AnyPath) -> dict[str, bytes]:
    """Every file but the manifest, whose date differs, with its bytes."""
    if isinstance(path, RemotePath):
        found = {str(one.relative_to(path)): one.read_bytes() for one in path.rglob("*")}
    else:
        found = {str(one.relative_to(path)): one.read_bytes() for one in path.rglob("*") if one.is_file()}
    assert found.pop("manifest.json", None) is not None
    return found


def die_after(n: int, out: str, threads: int) -> None:
    """In a process of its own: extract to `out`, and end as kill -9 does when n records are there."""
    torch.set_num_threads(threads)  # products in another number of threads have other last bits
    planning.SHARD_BYTES, stored_examples.PIECE_ROWS = SHARD_BYTES, PIECE_ROWS
    write, done = StoreWriter._put, []

    def put(self: StoreWriter, *args: Any, **kwargs: Any) -> None:
        write(self, *args, **kwargs)
        done.append(args[0])
        if len(done) == n:
            os.kill(os.getpid(), signal.SIGKILL)

    StoreWriter._put = put  # pyright: ignore[reportAttributeAccessIssue]
    run_to(out)

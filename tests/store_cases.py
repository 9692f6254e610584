"""What the tests of the store share: a small run to disk, stopped where one likes, and its files."""

from pathlib import Path
from typing import Any

import torch

from probekit.activations import plan_extraction
from probekit.activations.plan.plan import shard_rows
from probekit.activations.store.format import read_plan, read_record
from probekit.activations.store.writer import StoreWriter
from probekit.files.durable import TEMPORARY
from probekit.options import ExtractOptions
from probekit.verbs.extract import extract

HOW = {"points": ["resid_pre", "q"], "batch_tokens": 16, "block_nodes": 8}
ROW_BYTES = 7 * 16 * 4


def run(model: Any, task: Any, out: Path | None = None, **changes: Any) -> Any:
    return extract(model, task, out=out, **{**HOW, **changes})


def plan_of(model: Any, task: Any, **options: Any) -> Any:
    return plan_extraction(model, task, ExtractOptions(**options))


def files(path: Path) -> list[Path]:
    return sorted(p for p in path.rglob("*") if p.is_file())


def lasting(path: Path) -> dict[Path, bytes]:
    """Every file but the manifest, whose date differs, with its bytes."""
    return {p.relative_to(path): p.read_bytes() for p in files(path) if p.name != "manifest.json"}


def of_shards(path: Any) -> dict[Path, bytes]:
    """As `lasting`, without statistics, cuts into parts, and what a killed process left half written."""
    found = {name: data for name, data in lasting(path).items() if name.parts[0] not in ("statistics", "parts")}
    return {name: data for name, data in found.items() if not name.name.startswith(TEMPORARY)}


def assert_equal(one: Any, other: Any) -> None:
    assert list(one) == list(other)
    for place, x in one.items():
        assert x.dtype is other[place].dtype
        assert torch.equal(x.view(torch.uint8), other[place].view(torch.uint8))


class Stopped(Exception):
    pass


def stop_after(monkeypatch: Any, n: int | None, error: type[BaseException] = Stopped) -> list[int]:
    """Let n shards be written whole and stop before the next one; the numbers of those that are written."""
    written: list[int] = []
    write = StoreWriter.write

    def counted(self: StoreWriter, number: int, rows: Any, tensors: Any) -> Any:
        if len(written) == n:
            raise error
        done = write(self, number, rows, tensors)
        written.append(number)
        return done

    monkeypatch.setattr(StoreWriter, "write", counted)
    return written


def rows_of(made: Any, numbers: Any) -> int:
    """Examples of these shards of a plan."""
    return sum(len(shard_rows(made, number)) for number in numbers)


def shard_of(path: Any, number: int) -> Path:
    """The file of a shard."""
    return path / "shards" / read_record(path, read_plan(path), number)[0].file


def flip(file: Any, at: int = -1) -> None:
    """Alter one bit."""
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)

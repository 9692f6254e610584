"""What the tests of the store share: a tiny model and task, a run to disk, stopped where one likes, and its files."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from probekit.activations import plan_extraction
from probekit.activations.plan.plan import shard_rows
from probekit.activations.store.format import read_plan, read_record
from probekit.activations.store.writer import StoreWriter
from probekit.files.durable import TEMPORARY
from probekit.models.families.gpt2 import GPT2, GPT2Config
from probekit.options import ExtractOptions
from probekit.tasks.base import SPLITS, Task
from probekit.verbs.extract import extract

HOW = {"points": ["resid_pre", "q"], "batch_tokens": 16, "block_nodes": 8}
ROW_BYTES = 7 * 16 * 4
N = 23


class Letters:
    """One token per letter, a = 1; id 0 is the BOS."""

    fingerprint = "letters"
    bos_token_id = 0
    sep_token_id = None
    special_ids: frozenset[int] = frozenset()

    def encode_batch(self, texts: list[str], bos: bool = False) -> list[list[int]]:
        return [[0] * bos + [ord(c) - ord("a") + 1 for c in text] for text in texts]

    def decode(self, ids: list[int]) -> str:
        return "".join("<bos>" if i == 0 else chr(ord("a") + i - 1) for i in ids)

    def offsets_batch(self, texts: list[str]) -> list[list[tuple[int, int]]]:
        return [[(i, i + 1) for i in range(len(text))] for text in texts]


def make_model(seed: int = 0, tokenizer: type | None = None, **changes: Any) -> GPT2:
    sizes = {"d_model": 16, "n_heads": 2, "d_mlp": 24, "n_layers": 3, "n_ctx": 12, "d_vocab": 27, "init_std": 0.3}
    model = GPT2(GPT2Config(**{**sizes, "bos_token_id": 0, **changes})).init_weights(seed)
    model.tokenizer = tokenizer and tokenizer()
    model.name = "tiny"
    assert sum(p.numel() for p in model.parameters()) < 20_000
    return model


def make_task(n: int = N, shortest: int = 1, longest: int = 12, seed: int = 0, texts: bool = True) -> Task:
    rng = np.random.default_rng(seed)
    words = [rng.integers(1, 27, size=rng.integers(shortest, longest + 1)).tolist() for _ in range(n)]
    return Task(
        name="letters",
        inputs=["".join(chr(ord("a") + i - 1) for i in word) for word in words] if texts else words,
        labels={"odd": np.arange(n) % 2, "third": np.arange(n) % 3},
        label_names={"odd": ["no", "yes"], "third": ["0", "1", "2"]},
        splits=np.array([SPLITS[i % 3] for i in range(n)]),
        target="odd",
        ids=[f"train:{i + 100}" for i in range(n)],
        info={"seed": seed, "dropped_blanks": 4, "skipped_rows": 2},
    )


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

"""A tiny GPT-2, a tokenizer of single characters, and tasks of known lengths."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from store_cases import ROW_BYTES

from probekit.activations.plan import build as planning
from probekit.models.families.gpt2 import GPT2, GPT2Config
from probekit.tasks.base import SPLITS, Task

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


def make_model(seed: int = 0, **changes: Any) -> GPT2:
    sizes = {"d_model": 16, "n_heads": 2, "d_mlp": 24, "n_layers": 3, "n_ctx": 12, "d_vocab": 27, "init_std": 0.3}
    model = GPT2(GPT2Config(**{**sizes, "bos_token_id": 0, **changes})).init_weights(seed)
    model.tokenizer = Letters()  # pyright: ignore[reportAttributeAccessIssue]
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


@pytest.fixture(scope="session")
def tiny() -> Callable[..., GPT2]:
    return make_model


@pytest.fixture(scope="session")
def letters() -> Callable[..., Task]:
    return make_task


@pytest.fixture
def model() -> GPT2:
    return make_model()


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

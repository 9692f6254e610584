"""The texts of benchmarks/extract.py as token ids; a few of them share prefixes as the full set does."""

import json
import random
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

Texts = list[list[int]]


def tokenized(tokenizer: Path, texts: list[str]) -> Texts:
    from probekit.models.tokenizer_files import read_tokenizer

    found = read_tokenizer(tokenizer)
    assert found, f"no tokenizer in {tokenizer}"
    return found.encode_batch(texts)


def sst2(dataset: str, tokenizer: Path, splits: Iterable[str] = ("train", "validation")) -> Texts:
    from probekit.tasks import load_task

    task = load_task(dataset)
    texts: Any = task.subset(np.isin(task.splits, list(splits))).inputs
    return tokenized(tokenizer, texts)


def neighbours(texts: Texts, n: int, runs: int) -> Texts:
    """n texts (fewer where stretches meet) in `runs` stretches of the sorted texts, in the order of the data."""
    order = sorted(range(len(texts)), key=texts.__getitem__)
    size = n // runs
    starts = np.linspace(0, len(texts) - size, runs + 2)[1:-1].astype(int)
    return [texts[i] for i in sorted({i for start in starts for i in order[start : start + size]})]


def slices(texts: Texts, n: int) -> list[Texts]:
    """The sorted texts cut into n, each in the order of the data."""
    order = sorted(range(len(texts)), key=texts.__getitem__)
    return [[texts[i] for i in np.sort(part)] for part in np.array_split(order, n)]


def prefix_nodes(texts: Texts) -> int:
    """How many different prefixes the texts have: what must be computed at least."""
    pairs = (list(zip(a, b, strict=False)) for a, b in pairwise(sorted(texts)))
    shared = sum(next((i for i, (a, b) in enumerate(pair) if a != b), len(pair)) for pair in pairs)
    return sum(map(len, texts)) - shared


def blimp_pairs(folder: Path, tokenizer: Path, limit: int | None) -> Texts:
    """Both sentences of the first `limit` pairs of every file."""
    sentences = []
    for path in sorted(folder.glob("*.jsonl")):
        pairs = [json.loads(line) for line in path.read_text().splitlines()]
        sentences += [pair[key] for pair in pairs[:limit] for key in ("sentence_good", "sentence_bad")]
    return tokenized(tokenizer, sentences)


def few_shot(texts: Texts, n: int, prefix_tokens: int = 200) -> Texts:
    """A prefix that all have in common, made of texts, and n of the texts that have 5 to 15 tokens."""
    shuffled = random.Random(0).sample(texts, len(texts))
    prefix = [token for text in shuffled for token in text][:prefix_tokens]
    own = [text for text in shuffled if 5 <= len(text) <= 15]
    return [prefix + text for text in own[-n:]]

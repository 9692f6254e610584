"""What the tests of continuations share: a tokenizer of words, tasks of prompts, and writing without a cache."""

from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from probekit.models.tokenizer import Tokenizer
from probekit.tasks.base import SPLITS, Task


def words(n: int) -> Tokenizer:
    """A tokenizer of n words, `w0` and so on; 1 is the BOS."""
    backend: Any = Backend(WordLevel({f"w{i}": i for i in range(n)}))
    backend.pre_tokenizer = WhitespaceSplit()
    return Tokenizer(backend, bos_token_id=1, d_vocab=n)


def prompts(n: int, d_vocab: int, longest: int = 7, seed: int = 0) -> list[list[int]]:
    """Prompts of 1 to `longest` tokens."""
    rng = np.random.default_rng(seed)
    return [rng.integers(2, d_vocab, size=rng.integers(1, longest + 1)).tolist() for _ in range(n)]


def text_of(ids: list[int]) -> str:
    return " ".join(f"w{i}" for i in ids)


def task_of_prompts(n: int = 11, d_vocab: int = 27, texts: bool = True, longest: int = 7, seed: int = 0) -> Task:
    ids = prompts(n, d_vocab, longest, seed)
    return Task(
        "prompts",
        [text_of(own) for own in ids] if texts else ids,
        {"odd": np.arange(n) % 2},
        {"odd": ["no", "yes"]},
        np.array([SPLITS[i % 3] for i in range(n)]),
        "odd",
        ids=[f"train:{i + 100}" for i in range(n)],
    )


@torch.no_grad()
def greedy(model: Any, prompt: list[int], most: int, stops: tuple[int, ...] = ()) -> list[int]:
    """The likeliest tokens one after the other, each from a forward of the whole text by itself; no stop token."""
    made: list[int] = []
    while len(made) < most and len(prompt) + len(made) < model.cfg.n_ctx:
        token = int(model(torch.tensor([prompt + made]))[0, -1].argmax())
        if token in stops:
            break
        made.append(token)
    return made

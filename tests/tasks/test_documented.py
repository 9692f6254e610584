"""The examples of docs/tasks.md run."""

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import probekit as pk
from probekit.models.families.gpt2 import GPT2, GPT2Config

PAGE = (Path(__file__).parents[2] / "docs/tasks.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)
N = 240


class Bytes:
    """One token for each byte."""

    fingerprint = "bytes"
    bos_token_id = None
    sep_token_id = None

    def encode_batch(self, texts: list[str], bos: bool = False) -> list[list[int]]:
        return [list(text.encode()) for text in texts]


def tiny_model() -> GPT2:
    config = GPT2Config(d_model=8, n_heads=2, d_mlp=16, n_layers=2, n_ctx=12, d_vocab=256, init_std=0.3)
    model = GPT2(config).init_weights(0)
    model.tokenizer = Bytes()  # pyright: ignore[reportAttributeAccessIssue]
    return model


@pytest.mark.parametrize("block", BLOCKS)
def test_the_examples_run(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts, labels = [f"text {i}" for i in range(N)], ["yes" if i % 3 else "no" for i in range(N)]
    cities = [f"city {i // 2}" for i in range(N)]
    frame = pd.DataFrame({"text": texts, "label": labels, "city": cities})
    frame.to_csv("cities.csv", index=False)
    given: dict[str, Any] = {
        "texts": texts,
        "labels": labels,
        "cities": cities,
        "frame": frame,
        "other_frame": frame,
        "values": [i / 7 for i in range(N)],
        "odd": [i % 2 for i in range(N)],
        "judged": pd.DataFrame({"id": range(N - 40), "honest": labels[:-40]}),
        "model": tiny_model(),
        "stretches": [[{"start": 0, "end": 4, "label": "name"}, {"label": "other"}] for _ in range(N)],
        "depths": [[i / 7, None] for i in range(N)],
        "splits": ["train"] * 80 + ["validation"] * 80 + ["test"] * 80,
    }
    for line in block.splitlines():
        exec(line, {"pk": pk}, given)
        if "task" in given:
            given["task"].check()
    given["task"].check()

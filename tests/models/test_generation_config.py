"""The tokens that end a text, of generation_config.json, as transformers takes them from there."""

import json
from typing import Any

import pytest
import torch
from models.test_generation import DECODERS, made_distinct

from probekit.errors import DataError
from probekit.models import load_model
from probekit.models.generation import stop_ids
from probekit.verbs.extract import extract


@pytest.fixture
def folder(tmp_path):
    """A llama whose config.json ends texts at 5."""
    torch.manual_seed(1)
    kind, config = DECODERS["llama"]
    made_distinct(kind(config)).save_pretrained(tmp_path)
    return tmp_path


def write(folder, **fields):
    (folder / "generation_config.json").write_text(json.dumps(fields))


def test_texts_end_where_transformers_ends_them(folder):
    prompt = [7, 3, 9, 9, 2]
    free = load_model(folder, device="cpu").generate(prompt, 8, stop_tokens=[])
    end = next(token for token in free[2:] if token not in free[:2])
    write(folder, eos_token_id=[30, end])
    ours = load_model(folder, device="cpu")
    oracle: Any = DECODERS["llama"][0].from_pretrained(folder).eval()
    theirs = oracle.generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=False, pad_token_id=0)[0].tolist()
    assert prompt + ours.generate(prompt, 8) == theirs
    assert theirs[-1] == end
    acts = extract(ours, [prompt], generate=8)
    assert acts.task.inputs == [theirs[:-1]]
    assert acts.task.info["generate"]["stop_tokens"] == sorted({30, end})
    assert stop_ids(ours, [9]) == {9}  # those given replace them


@pytest.mark.parametrize(
    ("fields", "ends"),
    [
        ({"eos_token_id": 8}, {8}),
        ({"eos_token_id": [31, 9]}, {9}),
        ({"eos_token_id": 31}, {5}),
        ({"eos_token_id": None}, {5}),
        ({}, {5}),
    ],
)
def test_one_end_or_those_of_the_config(folder, fields, ends):
    write(folder, **fields)
    assert stop_ids(load_model(folder, device="cpu"), None) == ends


@pytest.mark.parametrize("given", [-1, "5", [2, None], 2.5, True])
def test_what_is_no_token_is_refused(folder, given):
    write(folder, eos_token_id=given)
    with pytest.raises(DataError, match=r"generation_config\.json': eos_token_id must be the id"):
        load_model(folder, device="cpu")

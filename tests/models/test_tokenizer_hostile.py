"""Tokenizers that would hang, panic or fill memory end in a DataError that names them."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from probekit.errors import DataError
from probekit.models import tokenizer_trial
from probekit.models.tokenizer_files import read_tokenizer

CUBIC = "a*a*[^a]"
QWEN = next(expression for expression, name in tokenizer_trial.WELL_KNOWN.items() if name == "Qwen2")


def write(folder: Path, expression: str = "", **changes: Any) -> Path:
    backend = Backend(models.WordLevel({"a": 0, "?": 1}, "?"))
    if expression:
        backend.pre_tokenizer = pre_tokenizers.Split(Regex(expression), "isolated")
    content = json.loads(backend.to_str())
    for name, change in changes.items():
        content[name] = {**content[name], **change} if isinstance(content[name], dict) else change
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


def test_an_expression_of_cubic_time_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_trial, "SECONDS", 2)
    with pytest.raises(DataError, match=r"a\*a\*\[\^a\].*takes more than 2 s"):
        read_tokenizer(write(tmp_path, CUBIC))


def test_replacements_that_fill_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_trial, "SECONDS", 2)
    many = normalizers.Sequence([normalizers.Replace("a", "a" * 100) for _ in range(6)])
    rules = json.loads(many.__getstate__())
    with pytest.raises(DataError, match=r"its replacements.*or 2 GB"):
        read_tokenizer(write(tmp_path, normalizer=rules))


def test_an_expression_that_the_engine_gives_up_on_names_the_text(tmp_path: Path) -> None:
    tokenizer = read_tokenizer(write(tmp_path, "(a+)+$"))
    assert tokenizer
    assert tokenizer.encode("a") == [0]
    hard = "a" * 60 + "!"
    for encode in (lambda: tokenizer.encode(hard), lambda: tokenizer.encode_batch(["a", hard])):
        with pytest.raises(DataError, match=r"gave up on 'aaaaaa.*leave this text out"):
            encode()


def test_known_expressions_need_no_trial_and_others_pass_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_tokenizer(write(tmp_path, r"\d+|[^\d\s]+|\s+"))
    monkeypatch.setattr(tokenizer_trial, "_is_quick", lambda *_: pytest.fail("a child was started"))
    assert read_tokenizer(write(tmp_path, QWEN))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": 5}}, "merges must be a list; got 5"),
        ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": {"a": 1}}}, "merges must be a list"),
        ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [5]}}, "a merge is two tokens"),
        ({"model": {"vocab": 5}}, "is not a tokenizer"),
        ({"normalizer": {"type": "Nothing"}}, "is not a tokenizer"),
        ({"post_processor": {"type": "TemplateProcessing", "single": [], "pair": [], "special_tokens": 5}}, "is not"),
        ({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated"}}, "is not a tokenizer"),
    ],
)
def test_a_broken_file_is_named(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=words):
        read_tokenizer(write(tmp_path, **change))


def test_a_broken_template_is_named(tmp_path: Path) -> None:
    single = [{"SpecialToken": {"id": "[X]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    template = {"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": {}}
    with pytest.raises(DataError, match=r"tokenizer"):
        read_tokenizer(write(tmp_path, post_processor=template))


@pytest.mark.parametrize("token", [["a"], 5, {"x": 1}])
def test_a_special_token_is_a_text(token: Any, tmp_path: Path) -> None:
    (write(tmp_path) / "tokenizer_config.json").write_text(json.dumps({"bos_token": token}))
    with pytest.raises(DataError, match="bos_token must be a text or null"):
        read_tokenizer(tmp_path)

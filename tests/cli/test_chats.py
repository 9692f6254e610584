"""Chats on the command line: from a file of messages to a curve, and what ends a run."""

import json
import re
from pathlib import Path

import pytest
from chat_templates import MARKUP

from probekit.cli.main import run


@pytest.fixture
def chats(here: Path) -> Path:
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"n {i}?"},
                {"role": "assistant", "content": "yes" if i % 2 else "no"},
            ],
            "label": i % 2,
        }
        for i in range(60)
    ]
    (here / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (here / "markup.jinja").write_text(MARKUP.replace("<|im_start|>", "<").replace("<|im_end|>", ">"))
    (here / "other.jinja").write_text("{% for m in messages %}{{ m.content }}. {% endfor %}")
    return here / "chats.jsonl"


@pytest.fixture
def extracted(gpt2_folder, chats, capsys):
    def call(*more: str, dataset: Path = chats) -> tuple[int, str, str]:
        code = run(["extract", "--model", str(gpt2_folder), "--dataset", str(dataset), *more])
        return code, *capsys.readouterr()

    return call


def test_from_chats_to_a_curve_in_two_commands(extracted, capsys):
    template = ("--chat-template", "markup.jinja")
    code, out, err = extracted(*template, "--dry-run", "--add-generation-prompt")
    assert code == 0, err
    assert re.search(
        r"^chats    by the template of markup.jinja \(sha256 [0-9a-f]{12}\), with generation prompt$", out, re.M
    )
    _, out, _ = extracted("--chat-template", "other.jinja", "--dry-run", "--add-generation-prompt")
    assert ", without generation prompt, as the template has none\n" in out
    code, out, err = extracted(*template, "--position", "last@assistant", "--out", "store", "--json")
    assert code == 0, err
    assert json.loads(out)["chat"]["add_generation_prompt"] is False
    assert run(["train-probe", "store", "--layer", "1", "--json", "-q", "--quick"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert results
    code, _, err = extracted("--chat-template", "other.jinja", "--position", "last@assistant", "--out", "store")
    assert code == 5, err


def test_chats_without_labels_are_extracted(extracted, chats, here):
    rows = [json.loads(line) for line in chats.read_text().splitlines()]
    (here / "plain.jsonl").write_text("".join(json.dumps({"messages": row["messages"]}) + "\n" for row in rows))
    code, out, err = extracted("--chat-template", "markup.jinja", "--dry-run", dataset=here / "plain.jsonl")
    assert code == 0, err
    assert "60 texts" in out

"""Chats on the command line: from a file of messages to a curve, and what ends a run."""

import json
import re
from pathlib import Path

import pytest
from chat_templates import HOSTILE, MARKUP

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
    (here / "broken.jinja").write_text("{{ 1 + }}")
    for name, (text, _) in HOSTILE.items():
        (here / f"{name}.jinja").write_text(text)
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


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ((), 2, "has no chat template to make texts of them; give one with --chat-template FILE"),
        (("--chat-template", "none.jinja"), 2, "no chat template 'none.jinja': no such file"),
        (
            ("--text-column", "label", "--messages-column", "messages"),
            2,
            "--text-column or --messages-column, not both",
        ),
        (("--chat-template", "broken.jinja"), 3, "the chat template of broken.jinja is no valid Jinja, line 1"),
        (
            ("--chat-template", "10 MB.jinja"),
            3,
            "example 'chats:0': the chat template of 10 MB.jinja wrote more than",
        ),
        (("--chat-template", "attributes.jinja"), 3, "does what the sandbox forbids"),
        (("--chat-template", "attributes.jinja", "--on-bad-row", "skip"), 3, "all 60 rows are left out"),
    ],
)
def test_what_ends_a_run_is_said_in_one_line(extracted, options, code, words):
    found, out, err = extracted(*options, "--dry-run")
    assert (found, out) == (code, "")
    assert words in err
    assert err.count("\n") == 1

"""`probekit generate` from the command line, on a tiny GPT-2 of single bytes."""

import json
import sys
from itertools import count
from pathlib import Path

import pytest
from small_worlds import use_small_worlds

from probekit.cli.generate import _print
from probekit.cli.main import run
from probekit.models import load_model
from probekit.text import printable

PROMPT = "the keys"


def printed(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[str, str]:
    assert run(["generate", *map(str, args)]) == 0
    return capsys.readouterr()


@pytest.fixture(scope="module")
def model(gpt2_folder):
    return load_model(gpt2_folder, device="cpu")


def test_the_continuation_is_printed_and_nothing_else(gpt2_folder, model, capsys):
    out, err = printed(capsys, "--model", gpt2_folder, "--prompt", PROMPT, "--max-new-tokens", 5)
    assert out == model.generate(PROMPT, 5) + "\n"
    assert err == "ended after 5 tokens: --max-new-tokens\n"
    out, err = printed(capsys, "--model", gpt2_folder, "--prompt", PROMPT, "--max-new-tokens", 5, "--quiet")
    assert (out, err) == (model.generate(PROMPT, 5) + "\n", "")


def test_several_prompts_give_a_line_each(gpt2_folder, model, capsys):
    prompts = [PROMPT, "a", "two words"]
    args = ["--model", gpt2_folder, "--max-new-tokens", 4, *(x for prompt in prompts for x in ("--prompt", prompt))]
    out, err = printed(capsys, *args)
    assert out.splitlines() == [printable(text) for text in model.generate(prompts, 4)]
    assert err.splitlines() == [f"prompt {i}: ended after 4 tokens: --max-new-tokens" for i in (1, 2, 3)]
    said = json.loads(printed(capsys, *args, "--json")[0])
    assert [one["prompt"] for one in said["continuations"]] == prompts
    assert [one["text"] for one in said["continuations"]] == model.generate(prompts, 4)
    ids = model.tokenizer.encode_batch(prompts)
    assert [one["tokens"] for one in said["continuations"]] == model.generate(ids, 4)


def test_why_it_ended_and_going_on_past_the_stop_token(gpt2_folder, model, capsys):
    ids = model.tokenizer.encode(PROMPT)
    seed, drawn, first, last = 0, [0], "", ""
    for seed in count():
        drawn = model.generate(ids, 3, temperature=9.0, stop_tokens=[], seed=seed)
        first, between, last = model.tokenizer.tokens(drawn)
        if (first + last).isascii() and (first + last).isalpha() and last not in (first, between):
            break
    args = ["--model", gpt2_folder, "--prompt", PROMPT, "--max-new-tokens", 3, "--temperature", 9, "--seed", seed]
    said = f"nothing follows: the first token is the stop token {first!a} (--no-stop continues)\n"
    assert printed(capsys, *args, "--stop", first) == ("\n", said)
    assert printed(capsys, *args, "--stop", last)[1] == f"ended after 3 tokens: the stop token {last!a}\n"
    said = json.loads(printed(capsys, *args, "--no-stop", "--json")[0])
    assert (said["tokens"], said["settings"]["stop_tokens"]) == (drawn, [])


def test_an_unreadable_prompt_is_answered_with_a_readable_one(here, monkeypatch, refused):
    use_small_worlds(monkeypatch, here)
    said = refused(3, "generate", "--model", "counting-gpt", "--prompt", "(", "--quiet")
    assert said.endswith("'(' is not in the vocabulary of 101 words; counting-gpt reads texts such as '34'")


def test_every_setting_reaches_the_model(gpt2_folder, model, capsys):
    how = {"max_new_tokens": 9, "temperature": 3.0, "top_k": 50, "top_p": 0.9, "seed": 4}
    args = [part for name, value in how.items() for part in (f"--{name.replace('_', '-')}", value)]
    out, _ = printed(capsys, "--model", gpt2_folder, "--prompt", PROMPT, *args, "--bos", "--stop", "q", "--json")
    said = json.loads(out)
    stop = model.tokenizer.token_id("q")
    prompt = model.tokenizer.encode(PROMPT, bos=True)
    assert said["tokens"] == model.generate(prompt, stop_tokens=[stop], **how)
    assert said["settings"] == {**how, "stop_tokens": [stop]}
    assert (said["prompt"], said["prompt_tokens"]) == (PROMPT, prompt)
    assert said["text"] == model.generate(PROMPT, stop_tokens=["q"], bos=True, **how)


def test_several_stop_tokens(gpt2_folder, model, capsys, here):
    """Of several the first that comes ends the text, given on the command line or in a file."""
    made = model.generate(model.tokenizer.encode(PROMPT), 30, stop_tokens=[], temperature=9.0)
    letters = [text for text in model.tokenizer.tokens(made) if text.isalpha() and text.isascii()]
    first, *_, last = dict.fromkeys(letters)
    stops = [last, first]
    args = ["--model", gpt2_folder, "--prompt", PROMPT, "--temperature", 9, "--max-new-tokens", 30, "--json"]
    out, _ = printed(capsys, *args, "--stop", last, "--stop", first)
    cut = made[: made.index(model.tokenizer.token_id(first)) + 1]
    assert (json.loads(out)["tokens"], json.loads(out)["ended"]) == (cut, "stop token")
    Path("c.yaml").write_text(json.dumps({"generate": {"stop": stops}}))
    assert printed(capsys, *args, "--config", "c.yaml")[0] == out


def test_a_full_context_is_reported(gpt2_folder, capsys):
    _, err = printed(capsys, "--model", gpt2_folder, "--prompt", "x" * 40, "--max-new-tokens", 100, "--temperature", 9)
    assert err == "ended after 9 tokens: the context of 48 is full\n"


def test_ids_are_continued_as_ids(gpt2_folder, model, capsys, tmp_path):
    out, _ = printed(capsys, "--model", gpt2_folder, "--tokens", "7, 3,9", "--max-new-tokens", 4)
    made = model.generate([7, 3, 9], 4)
    assert out == ",".join(map(str, made)) + "\n"
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((gpt2_folder / name).read_bytes())
    out, _ = printed(capsys, "--model", tmp_path, "--tokens", "7,3,9", "--stop", made[2], "--json")
    said = json.loads(out)
    assert (said["tokens"], said["text"], said["ended"]) == (made[: made.index(made[2]) + 1], None, "stop token")


def test_a_terminal_is_shown_no_control_characters(capsys, monkeypatch):
    hostile = "a\x1b[31mb\nc\u202ed"
    _print([hostile])
    assert capsys.readouterr().out == hostile + "\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    _print([hostile])
    assert capsys.readouterr().out == "a\\x1b[31mb\nc\\u202ed\n"


def test_a_text_needs_a_tokenizer(gpt2_folder, refused, tmp_path):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((gpt2_folder / name).read_bytes())
    assert "has no tokenizer; give token ids" in refused(2, "generate", "--model", tmp_path, "--prompt", "a")

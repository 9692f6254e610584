"""Chats in an extraction: the model's own template, its tokens as `transformers` makes them, and what is refused."""

import json
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from chat_templates import HEADERS, INST, MARKUP, STYLES
from hub_repos import tiny_gpt2
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from probekit.activations import plan_extraction
from probekit.errors import DataError, UsageError
from probekit.models import load_model
from probekit.options import ExtractOptions
from probekit.tasks import load_task
from probekit.tasks.base import Task
from probekit.tasks.chats import render
from probekit.verbs.extract import extract

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
ENDS = ["<|im_start|>", "<|im_end|>", "<s>", "</s>"]


def chat(i: int) -> list[dict[str, str]]:
    end = [] if i % 3 == 0 else [{"role": "assistant", "content": "no" if i % 2 else "Yes."}]
    return [{"role": "user", "content": f" is {i} the end ?"}, *end]


def named(**templates: str) -> list[dict[str, str]]:
    """Several templates, as a tokenizer's settings have them."""
    return [{"name": name, "template": text} for name, text in templates.items()]


def chat_rows(n: int = 30) -> list[dict]:
    return [{"messages": chat(i), "label": "odd" if i % 2 else "even"} for i in range(n)]


def model_folder(folder: Path, **settings) -> Path:
    """A tiny GPT-2 whose tokenizer knows the special tokens of the templates."""
    folder.mkdir()
    for name, data in tiny_gpt2().items():
        (folder / name).write_bytes(data)
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    backend.add_special_tokens(ENDS)
    backend.save(str(folder / "tokenizer.json"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps(config | {"vocab_size": backend.get_vocab_size(), "n_positions": 256})
    )
    (folder / "tokenizer_config.json").write_text(json.dumps(TOKENS | settings))
    return folder


def loaded(folder: Path):
    return load_model(folder, random_init=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return model_folder(tmp_path_factory.mktemp("chat") / "model", chat_template=MARKUP)


@pytest.fixture(scope="module")
def chat_model(folder):
    return loaded(folder)


@pytest.fixture(scope="module")
def chats() -> Task:
    return load_task(chat_rows())


@pytest.mark.parametrize("prompt", [False, True])
@pytest.mark.parametrize("style", STYLES)
def test_the_tokens_are_those_of_apply_chat_template(style, prompt, chat_model, chats, folder, tmp_path):
    template = STYLES[style][0]
    (tmp_path / "t.jinja").write_text(template)
    oracle = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), bos_token="<s>", eos_token="</s>")
    plan = plan_extraction(
        chat_model, chats, ExtractOptions(chat_template=tmp_path / "t.jinja", add_generation_prompt=prompt)
    )
    for i, own in enumerate(chats.chats or []):
        theirs = oracle.apply_chat_template(
            own, chat_template=template, add_generation_prompt=prompt, return_dict=False
        )
        assert plan.sequences[i].tolist() == theirs
    assert plan.task.info["chat"]["from"] == "t.jinja"
    assert plan.task.info["chat"]["add_generation_prompt"] is prompt
    assert ("has_no_generation_prompt" in plan.task.info["chat"]) is (prompt and style == "inst")


def test_an_extraction_of_chats_is_that_of_their_texts(chat_model, chats, tmp_path):
    acts = extract(chat_model, chats, out=tmp_path / "store")
    task = acts.task
    assert task.chats is None
    assert task.regions is not None
    assert chats.chats is not None
    for i, own in enumerate(chats.chats):
        assert str(task.inputs[i]).startswith("<|im_start|>user\n is ")
        assert [r.name for r in task.regions[i]] == [one["role"] for one in own]
        assert [task.inputs[i][r.start : r.end] for r in task.regions[i]] == [one["content"] for one in own]
    texts = extract(chat_model, replace(chats, inputs=task.inputs, chats=None))
    assert all(torch.equal(acts[place], texts[place]) for place in texts)
    again = extract(chat_model, chats, out=tmp_path / "store")  # the same run, which is complete
    assert again.task.fingerprint() == task.fingerprint()


def test_parts_and_calls_of_tools_are_those_of_apply_chat_template(chat_model, folder):
    """`transformers` drops names without a value; parts are text to it if the template takes lists."""
    template = """{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}
{% for part in m.content or [] %}{{ part.text }}{% endfor %}{% endif %}
{% for call in m.tool_calls or [] %}{{ call | tojson }}{% endfor %}{{ m.content is defined }}{% endfor %}"""
    raw = [
        {"role": "user", "content": [{"type": "text", "text": "is it"}, {"type": "text", "text": " odd?"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "odd", "arguments": {"n": 5}}}]},
        {"role": "tool", "content": "yes", "tool_calls": None},
    ]
    oracle = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    task = plan_extraction(chat_model, load_task([{"messages": raw}]), ExtractOptions(chat_template=template)).task
    assert task.inputs[0] == oracle.apply_chat_template(raw, chat_template=template, tokenize=False)
    assert task.regions is not None
    assert [(r.name, task.inputs[0][r.start : r.end]) for r in task.regions[0]] == [
        ("user", "is it odd?"),
        ("tool", "yes"),
    ]


@pytest.mark.parametrize(
    ("settings", "files", "wanted", "start"),
    [
        ({"chat_template": HEADERS}, {}, None, "<s><|start"),
        ({"chat_template": named(default=INST, tool_use="x")}, {}, None, "<s> ["),
        ({"chat_template": named(a=INST, b=MARKUP)}, {}, "b", "<|im"),
        ({"chat_template": HEADERS}, {"chat_template.jinja": MARKUP}, None, "<|im"),
        ({"chat_template": named(b=MARKUP)}, {}, Path("b"), "<|im"),
        ({}, {"chat_template.jinja": MARKUP, "additional_chat_templates/b.jinja": HEADERS}, None, "<|im"),
        ({"chat_template": MARKUP}, {"additional_chat_templates/b.jinja": HEADERS}, Path("b"), "<s><|start"),
        ({"chat_template": HEADERS, "bos_token": {"content": "</s>"}}, {}, None, "</s><|start"),
        ({"chat_template": HEADERS}, {"own.jinja": MARKUP}, "own.jinja", "<|im"),
        ({}, {}, "{{ messages[0].content }}", " is 0"),
        ({}, {"windows.jinja": "\ufeff" + MARKUP}, "windows.jinja", "<|im"),
    ],
)
def test_where_a_template_comes_from(settings, files, wanted, start, tmp_path, monkeypatch, chats):
    where = model_folder(tmp_path / "model", **settings)
    for name, text in files.items():
        (where / name).parent.mkdir(exist_ok=True)
        (where / name).write_text(text)
    monkeypatch.chdir(where)
    plan = plan_extraction(loaded(where), chats, ExtractOptions(chat_template=wanted))
    assert str(plan.task.inputs[0]).startswith(start)


REFUSED = [  # the model's own template, options, the error
    (None, {}, UsageError, "has no chat template to make texts of them; give one with --chat-template FILE"),
    (MARKUP, {"chat_template": "none.jinja"}, UsageError, "no chat template 'none.jinja': no such file"),
    (HEADERS, {"bos": True}, UsageError, "writes '<s>' before each text, and --bos would put another"),
    (5, {}, DataError, "chat_template must be a text or a list of names with templates, got 5"),
    ([{"name": "a"}], {}, DataError, "chat_template must be a text or a list of names"),
    ("{% if", {}, DataError, "is no valid Jinja, line 1"),
    (named(a="x", b="y"), {}, UsageError, "has several chat templates; name one with --chat-template: 'a', 'b'"),
    ("{{ 1 // 0 }}", {}, DataError, "example 'row:0': the chat template of model-random0 fails: ZeroDivisionError"),
    (" ", {}, DataError, "example 'row:0': the chat template of model-random0 writes none of the contents"),
]


@pytest.mark.parametrize(("own", "options", "kind", "words"), REFUSED)
def test_what_is_refused(own, options, kind, words, tmp_path, chats):
    settings = {} if own is None else {"chat_template": own}
    with pytest.raises(kind) as error:
        plan_extraction(loaded(model_folder(tmp_path / "model", **settings)), chats, ExtractOptions(**options))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("options", [{"chat_template": "{{ 1 }}"}, {"add_generation_prompt": True}])
def test_templates_are_for_chats(options, chat_model):
    with pytest.raises(
        UsageError, match=r"--(chat-template|add-generation-prompt) is for chats, and 'texts' holds none"
    ):
        extract(chat_model, ["the end"], **options)


REFUSING = "{% if messages|length == 1 %}{{ raise_exception('too short') }}{% endif %}" + MARKUP


def test_rows_that_the_template_refuses_are_named_or_left_out(chat_model, chats):
    with pytest.raises(DataError, match=r"example 'row:0': the chat template of .* refuses this chat: 'too short'"):
        plan_extraction(chat_model, chats, ExtractOptions(chat_template=REFUSING))
    plan = plan_extraction(chat_model, chats, ExtractOptions(chat_template=REFUSING, on_bad_row="skip"))
    assert plan.task.ids == [name for i, name in enumerate(chats.ids) if i % 3]
    assert plan.task.info["skipped"] == {"template": 10}
    assert plan.task.info["skipped_rows"] == 10
    with pytest.raises(DataError, match="all 30 rows are left out"):
        plan_extraction(chat_model, chats, ExtractOptions(chat_template="{{ x.y }}", on_bad_row="skip"))


def test_a_template_that_hangs_ends_the_run_even_if_rows_may_be_skipped(chat_model, chats, monkeypatch):
    monkeypatch.setattr(render, "SECONDS", 0.3)
    loop = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(DataError, match=r"example 'row:2': the chat template of .* takes more than 0.3 s"):
        plan_extraction(chat_model, chats, ExtractOptions(chat_template=loop, on_bad_row="skip"))


def test_chats_in_python_need_no_labels(chat_model):
    acts = extract(chat_model, [chat(1), chat(2)], position="mean")
    assert str(acts.task.inputs[0]).startswith("<|im_start|>user\n is 1 the end")
    with pytest.raises(UsageError, match="got the messages of one; write \\[messages\\]"):
        extract(chat_model, chat(1))
    with pytest.raises(DataError, match="example '1': message 0: expected a text as the content of user, got None"):
        extract(chat_model, [chat(1), [{"role": "user", "content": None}]])


def test_the_process_ends_with_the_run(chat_model, chats, monkeypatch):
    """Also if chats are left over, and if the one who asked keeps the error."""
    started = []
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: started.append(popen(*a, **k)) or started[-1])
    with pytest.raises(DataError) as kept:
        plan_extraction(chat_model, chats, ExtractOptions(chat_template="{{ raise_exception('no') }}"))
    assert [process.poll() for process in started] == [-signal.SIGKILL]
    assert kept.value.__traceback__ is not None

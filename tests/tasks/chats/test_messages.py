"""Chats in data: JSONL, Parquet, data frames, datasets and lists; rows that cannot be used; what is compared."""

import json

import numpy as np
import pandas as pd
import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from probekit.errors import DataError, UsageError
from probekit.tasks import load_task
from probekit.tasks.base import Task
from probekit.tasks.chats.messages import as_compared, chat_flaw, checked_chats, compared_inputs
from probekit.tasks.fields import CHAT, Region
from probekit.tasks.quality.audit import audit, compare_texts
from probekit.tasks.token_labels import token_rows

SYSTEM = {"role": "system", "content": "You are a careful helper who answers every question with one word."}


def chat(i: int) -> list[dict]:
    return [
        SYSTEM,
        {"role": "user", "content": f" Is {i} odd?\n"},
        {"role": "assistant", "content": "yes" if i % 2 else "no"},
    ]


ROWS = [{"messages": chat(i), "label": i % 2} for i in range(40)]
CHATS = [row["messages"] for row in ROWS]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_chats_are_read_from_all_that_holds_lists(tmp_path):
    frame = pd.DataFrame(ROWS)
    frame.to_parquet(tmp_path / "chats.parquet")
    sources = {
        "jsonl": write(tmp_path / "chats.jsonl", ROWS),
        "parquet": tmp_path / "chats.parquet",
        "frame": frame,
        "dataset": Dataset.from_list(ROWS),
        "dicts": ROWS,
        "columns": {"messages": CHATS, "label": [row["label"] for row in ROWS]},
        "pairs": [(row["messages"], row["label"]) for row in ROWS],
        "splits": {"train": ROWS},
    }
    for name, source in sources.items():
        task = load_task(source)
        assert task.chats == CHATS, name
        assert task.inputs[3] == "system: " + SYSTEM["content"] + "\nuser:  Is 3 odd?\n\nassistant: yes"
        assert task.labels["label"].tolist() == [row["label"] for row in ROWS]
        assert task.info["dropped_blanks"] == 0


def test_chats_follow_their_rows(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"talk": row["messages"], "label": row["label"], "text": "x"} for row in ROWS])
    task = load_task(path, messages_column="talk", limit=10)
    assert task.chats == [CHATS[int(name.partition(":")[2])] for name in task.ids]
    rows = task.subset(np.array([4, 1]))
    assert task.chats is not None
    assert rows.chats == [task.chats[4], task.chats[1]]
    assert rows.fingerprint() != task.subset(np.array([4, 2])).fingerprint()


def test_chats_as_json_texts_and_under_another_name_are_refused_with_the_way_out(tmp_path):
    as_json = [{**row, "messages": json.dumps(row["messages"])} for row in ROWS]
    with pytest.raises(DataError, match=r"a\.jsonl, line 1: expected a list of messages such as .*, got '\[\{"):
        load_task(write(tmp_path / "a.jsonl", as_json))
    renamed = [{"conversations": row["messages"], "label": row["label"]} for row in ROWS]
    path = write(tmp_path / "b.jsonl", renamed)
    with pytest.raises(UsageError, match=r"--text-column, or chats with --messages-column 'conversations'$"):
        load_task(path)
    assert load_task(path, messages_column="conversations").chats == CHATS


def test_a_column_of_texts_may_be_called_messages(tmp_path):
    rows = [{"text": f"text {i}", "messages": f"say {i}", "label": i % 2} for i in range(40)]
    assert load_task(rows).inputs[0] == "text 0"
    assert load_task(rows, text_column="messages").inputs[0] == "say 0"
    both = [{"text": f"text {i}", **row} for i, row in enumerate(ROWS)]
    assert load_task(both).chats == CHATS
    assert load_task(both, text_column="text").chats is None


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        (None, 'expected a list of messages such as {"role": "user", "content": "..."}, got a missing value'),
        ([], "got an empty list"),
        ("hi", "got 'hi'"),
        (["hi"], "got ['hi']"),
        (
            [{"from": "human", "value": "hi"}],
            "message 0: expected a role and a content, got no role, only 'from', 'value'",
        ),
        ([{"role": "user"}], "message 0: expected a role and a content, got no content, only 'role'"),
        (
            [SYSTEM, {"role": None, "content": "x"}],
            "message 1: expected a role such as system, user or assistant, got None",
        ),
        ([{"role": "the user", "content": "x"}], "expected a role such as system, user or assistant, got 'the user'"),
        ([{"role": "user", "content": None}], "expected a text as the content of user, got None; write an empty text"),
        (
            [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image", "url": "y"}]}],
            "message 0: part 1 of the content of user is 'image', and models read texts alone; leave it out",
        ),
        ([{"role": "user", "content": ["x"]}], """{"type": "text", "text": "..."} as part 0 of user, got 'x'"""),
        ([{"role": "user", "content": [{"type": "text", "text": None}]}], "as part 0 of user, got {'type'"),
        ([{"role": "user", "content": [{"type": "text", "text": "a\0"}]}], "got a NUL byte in it"),
        ([{"role": "user", "content": [{"type": "text", "text": " "}]}, {"role": "tool", "content": []}], "only empty"),
        ([SYSTEM, {"role": "assistant", "content": None, "tool_calls": []}], "as the content of assistant, got None"),
        ([{"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}], "got only empty ones"),
        ([{"role": "user", "content": 5}], "expected a text as the content of user, got 5"),
        ([{"role": "user", "content": "a\0"}], "message 0: expected a text, got a NUL byte in it"),
        ([{"role": "user", "content": "\ud83d"}], "message 0: \\ud83d is half a character"),
        ([{"role": "user", "content": " "}, {"role": "assistant", "content": ""}], "got only empty ones"),
    ],
)
def test_chats_that_cannot_be_used_are_named_by_row_or_left_out(messages, words, tmp_path):
    path = write(tmp_path / "chats.jsonl", [*ROWS, {"messages": messages, "label": 0}])
    with pytest.raises(DataError) as error:
        load_task(path)
    assert str(error.value).startswith("chats.jsonl, line 41: ")
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    task = load_task(path, on_bad_row="skip")
    assert task.chats == CHATS
    assert task.info["skipped_rows"] == 1
    with pytest.raises(DataError, match="example 'a'"):
        Task("chats", ["x"], chats=[messages], ids=["a"])


def test_a_task_holds_texts_or_chats(tmp_path):
    write(tmp_path / "train.jsonl", ROWS)
    write(tmp_path / "test.jsonl", [{"text": "x", "label": 0}, {"text": "y", "label": 1}])
    with pytest.raises(DataError, match=r"test.jsonl and train.jsonl hold texts and chats; give one kind"):
        load_task(tmp_path)


def test_fields_without_a_value_are_undefined_in_templates():
    given = {
        "role": "tool",
        "content": "x",
        "name": "f",
        "tool_calls": None,
        "at": pd.Timestamp(0),
        "weight": 0.5,
        "arguments": np.array([{"n": np.int64(1)}]),
        1: 2,
    }
    expected = {"role": "tool", "content": "x", "name": "f", "weight": 0.5, "arguments": [{"n": 1}], "1": 2}
    assert Task("chats", ["x"], chats=[[given]]).chats == [[expected]]


PARTS = [{"type": "text", "text": " Is it "}, {"type": "text", "text": "odd?"}]
CALL = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "odd", "arguments": {"n": [1, 2]}}}]}


@pytest.mark.parametrize("parts", [PARTS, tuple(PARTS), np.array(PARTS)])
def test_parts_of_a_content_are_joined(parts):
    task = load_task([{"messages": [SYSTEM, {"role": "user", "content": parts}]}])
    assert task.chats == [[SYSTEM, {"role": "user", "content": " Is it odd?"}]]
    assert task.inputs == [f"system: {SYSTEM['content']}\nuser:  Is it odd?"]
    assert compared_inputs(task) == [f"{SYSTEM['content']}\n Is it odd?"]


@pytest.mark.parametrize("as_file", [pd.DataFrame.to_parquet, None])
def test_calls_of_tools_need_no_content(as_file, tmp_path):
    """As `transformers` has it, a template finds no content then, in place of None."""
    rows = pd.DataFrame([{"messages": [SYSTEM, CALL]}] * 2)
    if as_file:
        as_file(rows, tmp_path / "calls.parquet")
        rows = pd.read_parquet(tmp_path / "calls.parquet")
    task = load_task(rows)
    call = {name: value for name, value in CALL.items() if name != "content"}
    assert task.chats == [[SYSTEM, call]] * 2
    assert str(task.inputs[0]).endswith("\nassistant: ")
    assert compared_inputs(task.subset(np.array([1]))) == [f"{SYSTEM['content']}\n"]


@pytest.mark.parametrize(
    ("row", "error", "words"),
    [
        ({"prompt": CHATS[0]}, DataError, "row 0: expected a text, got a chat, .* with --messages-column"),
        ({"talk": CHATS[0]}, UsageError, "with --text-column, or chats with --messages-column 'talk'"),
    ],
)
def test_chats_in_another_column_are_told_how_to_be_named(row, error, words):
    with pytest.raises(error, match=words):
        load_task([{**row, "label": i % 2} for i in range(4)])


def test_one_chat_makes_a_column_of_chats():
    """A first row that cannot be used does not hide the others."""
    with pytest.raises(DataError, match="row 0: expected a list of messages"):
        load_task([{"messages": "hi", "label": 0}, *ROWS])


parts = st.fixed_dictionaries({"type": st.sampled_from(["text", "image"]), "text": st.text("ab", max_size=2)})
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "tool"]), "content": st.text("ab ", max_size=3) | st.lists(parts, max_size=2)}
)


@settings(max_examples=60)
@given(st.recursive(st.none() | st.booleans() | st.text(max_size=3) | messages, lambda x: st.lists(x, max_size=3)))
def test_a_chat_is_sound_or_has_one_flaw_in_one_line(cell):
    flaw = chat_flaw(cell)
    if flaw is None:
        (plain,) = checked_chats([cell], ["a"])
        assert all(isinstance(one["content"], str) for one in plain)
        assert json.loads(json.dumps(plain)) == plain
        assert checked_chats([plain], ["a"]) == [plain]
    else:
        assert "\n" not in flaw[1]


def rendered(task: Task) -> Task:
    """As a template makes it: the same formatting around each content."""
    texts, regions = [], []
    for own in task.chats or []:
        text, places = "<|begin|>", []
        for one in own:
            text += f"<|{one['role']}|>"
            places.append(Region(one["role"], len(text), len(text) + len(one["content"])))
            text += one["content"] + "<|end of turn|>"
        texts.append(text)
        regions.append(places)
    return Task(
        "rendered", texts, task.labels, task.label_names, task.splits, regions=regions, info={**task.info, CHAT: {}}
    )


@pytest.mark.parametrize("make", [load_task, lambda rows: rendered(load_task(rows))])
def test_what_is_compared_are_the_contents_that_differ(make):
    task = make(ROWS)
    assert compared_inputs(task) == [f" Is {i} odd?\n\n{'yes' if i % 2 else 'no'}" for i in range(40)]
    assert as_compared(as_compared(task)).inputs == compared_inputs(task)
    assert compared_inputs(task.subset(np.array([3]))) == [f"{SYSTEM['content']}\n Is 3 odd?\n\nyes"]


def test_the_tokens_of_a_chat_are_compared_by_its_contents():
    task = rendered(load_task(ROWS[:4], validation=False))
    rows = token_rows(task, lengths=np.array([2, 0, 1, 3]))
    expected = compared_inputs(task.subset(np.array([0, 2, 3])))
    assert compared_inputs(rows) == [expected[i] for i in (0, 0, 1, 2, 2, 2)]
    assert as_compared(rows).inputs == compared_inputs(rows)
    assert as_compared(rows).text_of is not None


def test_an_audit_of_chats_is_that_of_their_contents():
    """Chats that have a long system prompt in common are no near-duplicates; those with equal contents are the same."""
    words = ["amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath"]
    questions = [f"{a} or {b}, {c}?" for a in words for b in words for c in "xy" if a != b]
    rows = [
        {"messages": [SYSTEM, {"role": "user", "content": text}], "label": i % 2} for i, text in enumerate(questions)
    ]
    chats = rendered(load_task(rows))
    texts = load_task([{"text": row["messages"][1]["content"], "label": row["label"]} for row in rows])
    found, expected = (compare_texts(task) for task in (chats, texts))
    assert np.array_equal(np.array(found.number), np.array(expected.number))
    assert np.array_equal(found.leaks, expected.leaks)
    assert audit(chats).differences == audit(texts).differences
    assert audit(chats).splits["train"]["median_length"] == audit(texts).splits["train"]["median_length"]

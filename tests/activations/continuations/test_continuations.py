"""A task that the model continued: its tokens, its texts, and activations equal to those of the whole texts."""

# pyright: reportOptionalMemberAccess=false, reportArgumentType=false, reportCallIssue=false

from dataclasses import replace

import numpy as np
import pytest
import torch
from activations.continuations.cases import greedy, prompts, task_of_prompts, text_of, words
from models.adapter.wrapped import wrapped
from models.test_generation import DECODERS, EOS, by_transformers, made_distinct
from tiny_configs import LIKE_ANOTHER, new_model, tiny_configs, tiny_model

from probekit.activations import load_activations, plan_as_dict, plan_extraction, repair, verify
from probekit.activations.continuations import plan as planning
from probekit.errors import DataError, UsageError
from probekit.interventions import add
from probekit.models import load_model
from probekit.options import ExtractOptions
from probekit.tasks.base import Task
from probekit.tasks.fields import Region
from probekit.verbs.extract import extract

NAMES = [name for name in tiny_configs() if name not in LIKE_ANOTHER]
CAUSAL = [name for name in NAMES if tiny_model(name).causal and not hasattr(tiny_model(name), "decode")]


@pytest.fixture
def model(tiny):
    made = tiny(n_ctx=16)
    made.tokenizer = words(27)
    return made


@pytest.mark.parametrize("name", CAUSAL)
def test_generated_activations_are_those_of_the_whole_text_run_at_once(name):
    model, ids = tiny_model(name), prompts(4, 50, longest=9)
    acts = extract(model, ids, generate=4, position="all", points="resid_post", stop_tokens=[], batch_tokens=40)
    assert acts.task.inputs == [own + greedy(model, own, 4) for own in ids]
    assert acts.task.generated.tolist() == [4] * 4
    rows = acts.layout.split(("resid_post", 1), acts["resid_post", 1])
    for own, found in zip(acts.task.inputs, rows, strict=True):
        with torch.no_grad():
            _, cache = model.run_with_cache(torch.tensor([own]))
        expected = cache["blocks.1.hook_resid_post"][0]
        assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("bos", [False, True])
def test_texts_go_on_as_their_tokens_say(model, bos):
    task = task_of_prompts()
    acts = extract(model, task, generate=6, bos=bos, stop_tokens=["w3", "w5"], on_bad_row="skip")
    ids = prompts(11, 27)
    written = [greedy(model, [1] * bos + own, 6, (3, 5)) for own in ids]
    left = [i for i, own in enumerate(written) if own]
    assert acts.task.ids == [task.ids[i] for i in left]
    assert acts.task.token_ids == [ids[i] + written[i] for i in left]
    assert acts.task.inputs == [text_of(ids[i] + written[i]) for i in left]
    assert acts.task.generated.tolist() == [len(written[i]) for i in left]
    assert acts.task.labels["odd"].tolist() == [i % 2 for i in left]
    done = acts.task.info["generate"]
    assert done["tokens"] == sum(map(len, written))
    assert done["ended"] == {
        "stop token": sum(0 < len(own) < 6 for own in written),
        "max_new_tokens": sum(len(own) == 6 for own in written),
        "context": 0,
    }
    whole = replace(task.subset(np.array(left)), inputs=acts.task.token_ids)
    plain = extract(model, replace(whole, inputs=acts.task.inputs, token_ids=acts.task.token_ids), bos=bos)
    assert all(torch.equal(acts[place], plain[place]) for place in plain)


@pytest.mark.parametrize("how", [{}, {"temperature": 1.4, "top_p": 0.9, "generate_seed": 5}])
def test_batches_change_no_token_and_texts_draw_by_their_number(model, how, monkeypatch):
    task, how = task_of_prompts(9, texts=False), {**how, "stop_tokens": [4], "on_bad_row": "skip"}
    whole = extract(model, task, generate=8, **how).task
    for batch_tokens, rows in ((1, 64), (40, 64), (400, 2)):
        monkeypatch.setitem(planning.MOST_ROWS, "cpu", rows)
        again = extract(model, task, generate=8, batch_tokens=batch_tokens, **how).task
        assert (again.ids, again.inputs) == (whole.ids, whole.inputs)
    if "temperature" in how:
        drawn = [
            model.generate(own, 8, temperature=1.4, top_p=0.9, seed=5 + i, stop_tokens=[4])
            for i, own in enumerate(task.inputs)
        ]
        ends = [own[:-1] if own[-1] == 4 else own for own in drawn]
        assert [own + more for own, more in zip(task.inputs, ends, strict=True) if more] == whole.inputs


def test_a_text_goes_on_to_the_end_of_the_context_and_no_further(model):
    task = Task("long", [[5] * 15, [6] * 10, [7, 8]])
    made = extract(model, task, generate=9, stop_tokens=[]).task
    assert [len(own) for own in made.inputs] == [16, 16, 11]
    assert made.generated.tolist() == [1, 6, 9]
    assert made.info["generate"]["ended"] == {"stop token": 0, "max_new_tokens": 1, "context": 2}


def test_texts_that_cannot_go_on_are_refused_with_the_row_or_left_out_and_counted(model):
    task = task_of_prompts(6, texts=False)
    first = greedy(model, task.inputs[2], 1)[0]
    at_once = [i for i, own in enumerate(task.inputs) if greedy(model, own, 1) == [first]]
    task.inputs[4] = [3] * 16
    at_once = [i for i in at_once if i != 4]
    how = {"generate": 3, "stop_tokens": [first]}
    with pytest.raises(DataError, match=r"'train:104': it fills the context of 16 tokens.*--on-bad-row skip"):
        extract(model, task, **how)
    rest = task.subset(np.array([0, 1, 2, 3, 5]))
    with pytest.raises(DataError, match=rf"ends it at once, with the stop token 'w{first}'; .*--on-bad-row skip"):
        extract(model, rest, **how)
    made = extract(model, task, **how, on_bad_row="skip").task
    assert made.ids == [task.ids[i] for i in range(6) if i != 4 and i not in at_once]
    assert made.info["skipped"] == {"full context": 1, "ended at once": len(at_once)}
    with pytest.raises(DataError, match="all 1 row"):
        extract(model, task.subset(np.array([2])), **how, on_bad_row="skip")


def test_both_passes_run_under_the_edits(model):
    task, n = task_of_prompts(5, texts=False), 5
    for direction in (torch.linspace(-3, 3, 16), torch.linspace(-2, 4, n * 16).view(n, 16)):
        edits = {("resid_post", 0): add(direction, scale=2.0)}
        acts = extract(model, task, generate=6, edits=edits, stop_tokens=[], position="all", batch_tokens=30)
        with model.edited(edits):
            written = model.generate(task.inputs, 6, stop_tokens=[])
        assert acts.task.inputs == [own + more for own, more in zip(task.inputs, written, strict=True)]
        whole = extract(model, replace(task, inputs=acts.task.inputs), edits=edits, position="all")
        assert all(torch.equal(acts[place], whole[place]) for place in whole)
    assert written != model.generate(task.inputs, 6, stop_tokens=[])
    with pytest.raises(UsageError, match="edit all tokens"):
        extract(model, task, generate=6, edits=edits, edit_positions="read")


def test_what_the_model_wrote_in_a_chat_is_the_assistants(model):
    chats = [[{"role": "user", "content": text_of(own)}] for own in prompts(4, 27)]
    template = (
        "{% for m in messages %}w9 {{ m['content'] }} w10 {% endfor %}{% if add_generation_prompt %}w11{% endif %}"
    )
    task = Task("chat", [f"user: {chat[0]['content']}" for chat in chats], chats=chats)
    acts = extract(model, task, generate=4, chat_template=template, stop_tokens=[])
    for own, text, regions, ids in zip(
        prompts(4, 27), acts.task.inputs, acts.task.regions, acts.task.token_ids, strict=True
    ):
        prompt = [9, *own, 10, 11]
        assert ids == prompt + greedy(model, prompt, 4)
        assert text == text_of(ids)
        assert regions == [
            Region("user", 3, 3 + len(text_of(own))),
            Region("assistant", len(text_of(prompt)), len(text)),
        ]
    own = extract(model, task, generate=4, chat_template=template, stop_tokens=[], position="all@generated")
    with pytest.raises(DataError, match=r"no token of the role 'user' was kept; read other tokens, extract again"):
        own.at("last@user")


def test_a_store_has_the_texts_and_is_repaired_and_planned_again_from_them(model, path):
    task = task_of_prompts()
    acts = extract(model, task, generate=5, temperature=1.0, stop_tokens=[], out=path)
    again = load_activations(path)
    assert again.task.inputs == acts.task.inputs
    assert again.task.token_ids == acts.task.token_ids
    assert again.task.generated.tolist() == [5] * 11
    assert again.meta["task_info"]["generate"]["temperature"] == 1.0
    assert verify(path).is_sound
    before = again["resid_pre", 0].clone()
    next((path / "shards").iterdir()).unlink()
    assert repair(path, model).shards == [0]
    assert torch.equal(load_activations(path)["resid_pre", 0], before)
    plan = plan_extraction(model, again.task, ExtractOptions())
    assert plan_as_dict(plan)["generate"] == acts.task.info["generate"]


def test_continuations_of_one_prompt_are_a_group(model):
    """They differ as texts; without a group, some of them could be test texts of what was trained on others."""
    task = Task("some", [[5, 6], [7], [5, 6], [8], [7]], {"x": [0, 1, 0, 1, 1]}, splits=["train"] * 5)
    how = {"generate": 4, "temperature": 2.0, "stop_tokens": []}
    made = extract(model, task, **how).task
    assert len({tuple(own) for own in made.inputs}) == 5
    keys = made.split_keys().tolist()
    assert keys[0] == keys[2]
    assert keys[1] == keys[4]
    assert len(set(keys)) == 3
    grouped = extract(model, replace(task, groups=["a", "b", "a", "b", "b"]), **how).task
    assert grouped.groups.tolist() == ["a", "b", "a", "b", "b"]
    assert extract(model, task.subset(np.array([0, 1, 3])), **how).task.groups is None


def test_positions_of_the_prompt_and_of_what_the_model_wrote(model):
    """In a batch of several lengths, with a BOS; some end sooner."""
    task = task_of_prompts(9)
    how = {"generate": 6, "stop_tokens": ["w3", "w4"], "bos": True, "on_bad_row": "skip", "temperature": 1.0}
    whole = extract(model, task, position="all", **how)
    places = whole.layout.split(("resid_pre", 2), whole["resid_pre", 2])
    n = whole.task.generated.tolist()
    assert len(set(n)) > 1
    for position, expected in (
        ("last@generated", [x[-1] for x in places]),
        ("first@generated", [x[-k] for x, k in zip(places, n, strict=True)]),
        ("mean@generated", [x[-k:].mean(0) for x, k in zip(places, n, strict=True)]),
        ("last@prompt", [x[-k - 1] for x, k in zip(places, n, strict=True)]),
        ("last", [x[-1] for x in places]),
    ):
        found = extract(model, task, position=position, **how)["resid_pre", 2]
        assert torch.allclose(found, torch.stack(expected), atol=1e-5), position
    several = extract(model, task, position="all@generated", **how)
    assert several.layout.picked.tolist() == n
    expected = torch.cat([x[-k:] for x, k in zip(places, n, strict=True)])
    assert torch.allclose(several["resid_pre", 2], expected, atol=1e-5)


def test_selections_that_no_text_can_have_are_refused_before_the_model_writes(model, path):
    for task, position, why in (
        (task_of_prompts(), ["last", "mean@assistant"], "'mean@assistant' needs a chat"),
        (replace(task_of_prompts(), position="last@user"), None, "'last@user' needs a chat"),
        (task_of_prompts(texts=False), 'in:"w3"', "only token ids are known"),
    ):
        with pytest.raises(UsageError, match=why):
            extract(model, task, generate=3, position=position, out=path)
        assert not path.exists()


@pytest.mark.parametrize("kind", ["bloom", "mamba", "opt"])
def test_models_that_transformers_computes_continue_texts_too(kind):
    model, ids = wrapped(kind), prompts(4, 60, longest=6)
    acts = extract(model, ids, generate=5, stop_tokens=[], points="resid_pre", layers=1, position="all")
    assert acts.task.inputs == [own + model.generate(own, 5, stop_tokens=[]) for own in ids]
    whole = extract(model, acts.task.inputs, points="resid_pre", layers=1, position="all")
    assert torch.equal(acts["resid_pre", 1], whole["resid_pre", 1])


def test_the_tokens_are_those_that_transformers_generates(tmp_path):
    for i, (kind, config) in enumerate(DECODERS.values()):
        torch.manual_seed(i)
        oracle = made_distinct(kind(config))
        oracle.save_pretrained(tmp_path / str(i))
        ours, ids = load_model(tmp_path / str(i), device="cpu"), prompts(5, 31)
        made = extract(ours, ids, generate=9, on_bad_row="skip", batch_tokens=30).task
        ends = [own[:-1] if own[-1] == EOS else own for own in by_transformers(oracle, ids, 9, EOS)]
        assert made.inputs == [own + more for own, more in zip(ids, ends, strict=True) if more]


def test_what_cannot_be_continued_is_refused(model):
    task = task_of_prompts(4)
    for changes, how, why in (
        ({"spans": np.array([[0, 2]] * 4), "position": "last"}, {}, "are words of texts"),
        ({"generated": np.ones(4, int), "token_ids": [[2, 3]] * 4}, {}, "have continuations already"),
        ({}, {"layers": 9}, "9"),
        ({}, {"points": "nothing"}, "nothing"),
        ({}, {"stop_tokens": ["w99"]}, "w99"),
        ({}, {"chat_template": "{{ 1 }}"}, "holds none"),
    ):
        with pytest.raises((UsageError, DataError), match=why):
            extract(model, replace(task, **changes), generate=3, **how)
    labelled = Task("t", [[1, 2]] * 4, token_labels={"x": [[0, 1]] * 4}, splits=["train"] * 4)
    with pytest.raises(UsageError, match="labels of tokens"):
        extract(model, labelled, generate=3)
    for name in ("bert", "marian"):
        some = next(key for key in tiny_configs() if key.startswith(name))
        with pytest.raises(UsageError, match=r"reads texts in both directions|writes a target"):
            extract(new_model(some), [[3, 4]], generate=3, points="encoder.resid_pre" if name == "marian" else "q")


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"generate": 0}, "1 or more"),
        ({"generate": 2.5}, "generate"),
        ({"temperature": 0.5}, "needs generate"),
        ({"stop_tokens": [3]}, "needs generate"),
        ({"generate_seed": 1}, "needs generate"),
        ({"generate": 3, "temperature": -1}, "temperature"),
        ({"generate": 3, "top_k": 4}, "give a temperature above 0"),
        ({"generate": 3, "stop_tokens": [27]}, r"0\.\.26"),
    ],
)
def test_impossible_options(model, how, why):
    with pytest.raises(UsageError, match=why):
        extract(model, [[2, 3]], **how)

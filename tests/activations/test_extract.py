"""Extraction against the plainest oracle: each text alone, unpadded, through `run_with_cache`."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gpt2_points import GPT2_POINTS
from store_cases import Letters, plan_of

from probekit.activations import describe_plan, extract_statistics, plan_as_dict
from probekit.activations.plan import build as planning
from probekit.activations.plan.plan import shard_rows
from probekit.errors import DataError, UsageError
from probekit.models import load_model
from probekit.points import POINTS
from probekit.tasks import Task, load_task
from probekit.verbs.extract import extract

POOLABLE = [point for point in GPT2_POINTS if point not in ("attn_scores", "attn_pattern")]
RNG = np.random.default_rng(1)


def alone(model, task, bos=False):
    """Per text: place -> [L, D] of its own tokens, computed one text at a time."""
    for ids in model.tokenizer.encode_batch(task.inputs, bos=bos):
        _, cache = model.run_with_cache(torch.tensor([ids]), points=POOLABLE, return_logits=False)
        yield {name: x[0, int(bos) :].flatten(1).detach() for name, x in cache.items()}


def assert_rows_are(acts, expected):
    """Every row within 2e-6 of the largest value of its kind."""
    for place, x in acts.items():
        name = POINTS[place[0]].format(layer=place[1])
        wanted = torch.stack([row[name] for row in expected])
        assert x.shape == wanted.shape
        assert (x - wanted).abs().max() <= 2e-6 * wanted.abs().max(), place


@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize("position", ["last", "first", "mean", 0, -1, 2, -3, "each"])
def test_every_point_equals_the_text_alone(model, letters, position, bos):
    task = letters(shortest=3, longest=11)
    if position == "each":
        position = np.array([RNG.integers(-len(text), len(text)) for text in task.inputs])
    at = {"last": -1, "first": 0}.get(position, position) if isinstance(position, str) else position
    acts = extract(model, task, points=POOLABLE, position=position, batch_tokens=40, bos=bos)
    assert {point for point, _ in acts} == set(POOLABLE)
    expected = []
    for i, tokens in enumerate(alone(model, task, bos)):
        index = at[i] if isinstance(at, np.ndarray) else at
        expected.append({name: x.mean(0) if index == "mean" else x[index] for name, x in tokens.items()})
    assert_rows_are(acts, expected)


@pytest.mark.parametrize("batch_tokens", [1, 7, 30, 10_000])
@pytest.mark.parametrize("position", ["last", "mean"])
def test_batches_do_not_matter(model, task, batch_tokens, position):
    one = extract(model, task, position=position, batch_tokens=100)
    other = extract(model, task, position=position, batch_tokens=batch_tokens)
    for place, x in one.items():
        torch.testing.assert_close(other[place], x, rtol=0, atol=2e-6 * float(x.abs().max()))


def test_the_order_of_the_task_does_not_matter(model, task):
    order = RNG.permutation(len(task))
    acts, shuffled = extract(model, task), extract(model, task.subset(order))
    assert shuffled.ids == [task.ids[i] for i in order]
    for place, x in acts.items():
        torch.testing.assert_close(shuffled[place], x[order], rtol=0, atol=2e-6 * float(x.abs().max()))


def test_the_position_is_the_tasks_own_when_none_is_given(model, letters):
    task = letters(shortest=3)
    index = RNG.integers(0, 3, len(task))
    acts = extract(model, replace(task, position=index))
    assert acts.meta["position"] == "per example"
    assert torch.equal(acts["resid_pre", 1], extract(model, task, position=index)["resid_pre", 1])
    mean = extract(model, replace(task, position="mean"))
    assert torch.equal(mean["resid_pre", 1], extract(model, task, position="mean")["resid_pre", 1])


def test_token_ids_are_read_as_they_are(tiny, letters):
    model = tiny()
    texts = extract(model, letters())
    model.tokenizer = None
    ids = extract(model, letters(texts=False))
    for place, x in texts.items():
        assert torch.equal(ids[place], x)
    assert ids.meta["tokenizer_fingerprint"] is None


def test_a_bos_precedes_token_ids_too(model, letters):
    texts, ids = letters(longest=11), letters(longest=11, texts=False)
    for place, x in extract(model, texts, bos=True).items():
        assert torch.equal(extract(model, ids, bos=True)[place], x)


def test_layers_all_ends_with_the_output_of_the_last_block(model, task):
    blocks = [("resid_pre", 0), ("resid_pre", 1), ("resid_pre", 2)]
    acts = extract(model, task)
    assert list(acts) == [*blocks, ("resid_post", 2)] == acts.curve("resid_pre")
    assert acts.points == ["resid_pre"]
    assert list(extract(model, task, layers="0,2")) == [("resid_pre", 0), ("resid_pre", 2)]
    assert list(extract(model, task, points="attn_out")) == [("attn_out", 0), ("attn_out", 1), ("attn_out", 2)]
    both = extract(model, task, points=["resid_pre", "resid_mid", "embed"])
    assert both.curve("resid_mid") == [("resid_mid", 0), ("resid_mid", 1), ("resid_mid", 2), ("resid_post", 2)]
    assert len(both) == 8


@pytest.mark.parametrize(
    ("points", "layers", "blocks"),
    [
        ("embed", "all", 0),
        ("resid_pre", 0, 0),
        ("resid_pre", 2, 2),
        ("resid_pre", "all", 3),
        ("z", 1, 2),
        (["resid_pre", "q"], "0-1", 2),
        ("ln_final", "all", None),
    ],
)
def test_the_forward_stops_after_the_last_wanted_layer(model, task, points, layers, blocks):
    ran = []
    handles = [block.register_forward_hook(lambda block, *_: ran.append(block)) for block in model.blocks]
    model.head = lambda _: pytest.fail("the head ran")
    acts = extract(model, task, points=points, layers=layers, batch_tokens=10_000)
    for handle in handles:
        handle.remove()
    assert plan_of(model, task, points=points, layers=layers).stop_at_layer == blocks
    assert list(dict.fromkeys(ran)) == list(model.blocks[: 3 if blocks is None else blocks])
    assert acts.n_layers == 3


def test_only_the_wanted_points_are_heard(model, task):
    heard = []

    def look(*_):
        heard.append({name for name, point in model.points.items() if point.hooked})

    with model.hooks([("resid_mid.0", look)]):
        extract(model, task, layers="1,2")
    assert heard[0] == {f"blocks.{i}.hook_resid_{at}" for i, at in [(0, "mid"), (1, "pre"), (2, "pre")]}
    assert not any(point.hooked for point in model.points.values())


def test_the_values_take_part_in_autograd(model, task):
    x = extract(model, task)["resid_pre", 1]
    weight = torch.zeros(16, requires_grad=True)
    (x @ weight).sum().backward()
    assert weight.grad is not None
    assert not x.requires_grad


@pytest.mark.parametrize(("dtype", "error"), [("float16", 2**-11), ("bfloat16", 2**-8)])
def test_smaller_types_round_what_float32_holds(model, task, dtype, error):
    for place, x in extract(model, task).items():
        kept = extract(model, task, dtype=dtype)[place]
        assert kept.dtype is getattr(torch, dtype)
        assert torch.equal(kept, x.to(kept.dtype))
        assert ((kept.float() - x).abs() <= error * x.abs() + 1e-7).all()


def test_a_model_that_computes_in_bfloat16(tiny, task):
    model = tiny().to(torch.bfloat16)
    acts = extract(model, task, position="mean")
    assert acts["resid_pre", 0].dtype is torch.float32
    assert acts.meta["compute_dtype"] == "bfloat16"
    exact = extract(tiny(), task, position="mean")["resid_pre", 1]
    torch.testing.assert_close(acts["resid_pre", 1], exact, rtol=0, atol=0.05 * float(exact.abs().max()))


@pytest.mark.parametrize(("position", "token"), [(4, 4), (-5, -5)])
def test_an_index_outside_a_text_names_its_row(model, letters, position, token):
    task = letters(shortest=5)
    task.inputs[7] = "abcd"
    with pytest.raises(DataError, match=f"example 'train:107': it has 4 tokens, and token {token} is to be read"):
        extract(model, task, position=position)
    with pytest.raises(DataError, match="'train:107'"):
        extract(model, task, position=np.full(len(task), position), bos=True)


def test_long_texts_are_cut_at_the_right_and_counted(model, letters):
    task = letters()
    task.inputs[3], task.inputs[9] = "abcdefghijklmno", "z" * 40
    with pytest.warns(UserWarning, match=r"^2 texts cut to the first 12 tokens, .* on_long='error'$") as warned:
        acts = extract(model, task)
    assert [one.filename for one in warned] == [__file__]
    assert acts.meta["cut"] == 2
    with pytest.warns(UserWarning, match="2 texts cut") as warned:
        extract_statistics(model, task)
    assert [one.filename for one in warned] == [__file__]
    short = letters()
    short.inputs[3], short.inputs[9] = "abcdefghijkl", "z" * 12
    assert torch.equal(acts["resid_post", 2], extract(model, short)["resid_post", 2])
    assert extract(model, short).meta["cut"] == 0
    assert acts.inputs[3] == "abcdefghijklmno"
    with pytest.raises(
        DataError, match=r".train:103. has 15 tokens, more than the context of 12 .as have 2 of 23 inputs"
    ):
        extract(model, task, on_long="error")


def test_a_bos_takes_a_place_in_the_context(model, letters):
    task = letters(longest=11)
    assert plan_as_dict(plan_of(model, task, bos=True))["cut"] == 0
    task.inputs[0] = "abcdefghijkl"
    assert plan_as_dict(plan_of(model, task, bos=True))["cut"] == 1
    assert plan_as_dict(plan_of(model, task))["cut"] == 0


@pytest.mark.parametrize(("value", "what"), [(float("nan"), "NaN"), (float("inf"), "infinity")])
def test_values_that_are_no_numbers_name_place_and_row(model, task, value, what):
    with torch.no_grad():
        model.blocks[1].mlp.down.bias[0] = value
    with pytest.raises(DataError, match=rf"^{what} in the activations at resid_pre\.2, first in example 'train:100';"):
        extract(model, task)
    extract(model, task, layers="0-1")


@pytest.mark.parametrize("batch_tokens", [1, 20, 10_000])
@pytest.mark.parametrize("where", [None, "store"])
def test_the_first_row_is_the_first_of_the_task_whichever_batch_comes_first(
    model, task, batch_tokens, where, tmp_path, monkeypatch
):
    monkeypatch.setattr("probekit.activations.plan.build.SHARD_BYTES", 2000)
    with torch.no_grad():
        model.embed.weight[26] = float("nan")
    for i, text in enumerate(task.inputs):
        task.inputs[i] = text.replace("z", "y")
    task.inputs[4], task.inputs[9], task.inputs[20] = "abz", "az", "abcdefghijkz"
    how = {"batch_tokens": batch_tokens, "block_nodes": 3}
    planned = plan_of(model, task, **how)
    of = {row: next(i for i in range(len(planned.shards)) if row in shard_rows(planned, i)) for row in (4, 9, 20)}
    assert batch_tokens > 1000 or of[20] < of[4]
    with pytest.raises(DataError, match=r"NaN in the activations at resid_pre\.0, first in example 'train:104'"):
        extract(model, task, **how, out=where and tmp_path / where)


@pytest.mark.parametrize("batch_tokens", [1, 20, 10_000])
def test_a_token_that_no_text_has_spoils_none(model, task, batch_tokens):
    task.inputs[:] = [text.replace("z", "y") for text in task.inputs]
    with torch.no_grad():
        model.embed.weight[[0, 26]] = float("nan")  # what blocks might be filled up with, and z
    acts = extract(model, task, batch_tokens=batch_tokens, block_nodes=14)
    assert all(x.isfinite().all() for x in acts.values())
    task.inputs[4] = "abz"
    with pytest.raises(DataError, match=r"at resid_pre\.0, first in example 'train:104'"):
        extract(model, task, batch_tokens=batch_tokens, block_nodes=14)


def test_values_that_are_bad_everywhere_are_found_at_once(model, task, monkeypatch):
    with torch.no_grad():
        model.blocks[0].mlp.down.bias[0] = float("nan")
    forwards = []
    model.embed.register_forward_hook(lambda *_: forwards.append(1))
    with pytest.raises(DataError, match="'train:100'"):
        extract(model, task, batch_tokens=1)
    assert len(forwards) == len(plan_of(model, task, batch_tokens=1).shards[0]) + 1


def test_a_store_cannot_record_hooks(model, task, tmp_path):
    plain = extract(model, task, out=tmp_path / "made before")
    with model.hooks([("resid_pre.1", lambda x, hook: torch.zeros_like(x))]):
        ablated = extract(model, task)
        for name in ("made before", "new"):
            with pytest.raises(UsageError, match=r"hooked at blocks\.1\.hook_resid_pre,.* cannot record .*out=None"):
                extract(model, task, out=tmp_path / name)
    assert not (tmp_path / "new").exists()
    assert torch.equal(ablated["resid_pre", 0], plain["resid_pre", 0])
    assert not ablated["resid_pre", 1].any()
    assert plain["resid_pre", 1].any()
    after = extract(model, task, out=tmp_path / "new")
    assert all(torch.equal(after[place], x) for place, x in plain.items())


def test_overflow_of_the_kept_type_is_refused(model, task):
    with torch.no_grad():
        model.blocks[0].mlp.down.bias[3] = 1e5
    assert extract(model, task, dtype="bfloat16")["resid_pre", 1].isfinite().all()
    with pytest.raises(DataError, match=r"resid_pre\.1 of example 'train:1\d\d' is 1e\+05, more than float16 holds"):
        extract(model, task, dtype="float16")


def test_the_meta_says_where_the_values_come_from(model, task):
    meta = extract(model, task, dtype="bfloat16", batch_tokens=50).meta
    assert (meta["model"], meta["task"], meta["target"], meta["seed"]) == ("tiny", "letters", "odd", 0)
    assert meta["model_fingerprint"] == model.fingerprint()
    assert meta["task_fingerprint"] == task.fingerprint()
    assert (meta["dtype"], meta["position"], meta["bos"], meta["batch_tokens"]) == ("bfloat16", "last", False, 50)
    assert (meta["cut"], meta["dropped_blanks"], meta["skipped_rows"]) == (0, 4, 2)
    assert set(meta["versions"]) >= {"probekit", "python", "torch"}
    assert meta["tokens"] == sum(map(len, task.inputs))


def test_the_bar_is_silent_by_default(model, task, capsys):
    extract(model, task)
    extract(model, task, progress=False)
    assert capsys.readouterr() == ("", "")
    extract(model, task, progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "23/23" in err
    assert "texts" in err


def test_the_plan_claims_no_sharing_and_no_blocks_where_there_are_none(model, task, monkeypatch):
    apart = replace(task, inputs=[f"{chr(ord('a') + i)}xyz" for i in range(len(task))])
    assert "nodes: no prefixes are shared\n" in describe_plan(plan_of(model, apart))
    nearly = replace(task, inputs=[f"{chr(ord('a') + i)}{'z' * 11}" for i in range(len(task) - 1)] + ["ax"])
    assert "nodes: hardly any prefixes are shared\n" in describe_plan(plan_of(model, nearly))
    monkeypatch.setattr(type(model), "batching", "padded")
    told = describe_plan(plan_of(model, apart))
    assert "nodes: no equal texts are shared\n" in told
    assert "batches  1 of up to 2,048 nodes\n" in told


def test_the_plan_in_numbers_and_in_words(model, task):
    kept: Any = {"points": ["resid_pre", "q"]}
    numbers = plan_as_dict(plan_of(model, task, **kept))
    assert numbers["tokens"] == sum(map(len, task.inputs)) <= numbers["padded_tokens"]
    assert (len(numbers["places"]), len(numbers["widths"]), numbers["layers"]) == (7, 7, [0, 1, 2])
    assert numbers["bytes"] == 23 * 7 * 16 * 4 == sum(x.nbytes for x in extract(model, task, **kept).values())
    task.inputs[0] = "x" * 13
    n = plan_as_dict(plan_of(model, task))
    assert describe_plan(plan_of(model, replace(task, name="evil\x1b[2J\ntask"), dtype="float16")) == (
        "model    tiny: 3 layers, d_model 16, float32 on cpu\n"
        "task     evil\\x1b[2J\\ntask: 23 texts (8 train, 8 validation, 7 test)\n"
        f"tokens   {n['tokens']}, no BOS\n"
        "read     resid_pre 0-2, resid_post 2; last token\n"
        f"work     {n['nodes']} nodes: {n['sharing']:.2f}x fewer than tokens, because prefixes are shared\n"
        "padding  none; padded batches of 32 in this order would compute 276 tokens\n"
        "batches  2 of up to 2,048 nodes in blocks of 128\n"
        "size     0.0 MB: 23 rows x 4 places x 16, float16\n"
        "labels   odd (2 classes), third (3 classes)\n"
        "cut      1 text to the first 12 tokens, the model's context, and read there\n"
        "blanks   dropped at the end of 4 texts of the data\n"
        "skipped  2 rows of the data could not be used"
    )


def test_the_plan_says_what_the_audit_finds(model, task):
    def last(**changes):
        return describe_plan(plan_of(model, replace(task, **changes))).splitlines()[-1]

    assert last().startswith("skipped ")
    first, second = (int(np.flatnonzero(task.splits == split)[0]) for split in ("train", "test"))
    inputs = list(task.inputs)
    inputs[second] = inputs[first]
    labels = task.labels["odd"].copy()
    labels[first], labels[second] = 0, 1
    assert last(inputs=inputs, labels={**task.labels, "odd": labels}) == (
        "audit    1 of the 7 test texts also occurs in train; rows that leak: 1 of train, leave them out with "
        "drop_leaks (--drop-leaks); 1 text with contradictory labels (2 rows)"
    )


class Enclosed(Letters):
    """As BERT's, a token before and one after each text."""

    sep_token_id = 26

    def encode_batch(self, texts, bos=False):
        return [[*ids, *[26] * bos] for ids in super().encode_batch(texts, bos)]


IMPOSSIBLE = [
    ({"points": "resid_per"}, "resid_pre"),
    ({"points": "resid_pre.1"}, "layers separately"),
    ({"points": []}, "no points"),
    ({"layers": "0-3"}, r"^layer 3 is not in 0\.\.2$"),
    ({"position": "lst"}, "last"),
    ({"position": 1.5}, "1.5"),
    ({"position": True}, "True"),
    ({"position": np.zeros(22, dtype=int)}, r"one position for each of the 23 examples, got \[22\]"),
    ({"dtype": "float64"}, "float32"),
    ({"device": "cuda:99"}, "cuda:99"),
    ({"device": "meta"}, "meta"),
    ({"device": "gpu"}, "gpu"),
    ({"device": None}, "None"),
    ({"batch_tokens": 0}, "batch_tokens"),
    ({"batch_tokens": 1.5}, "batch_tokens"),
    ({"on_long": "drop"}, "cut, error"),
]
INPUTS = [  # of a model: changes, inputs of the task by their row, BOS
    ({}, {5: ""}, None, "'train:105' has no tokens"),
    ({}, {5: ""}, True, "'train:105' has no tokens"),
    ({"tokenizer": Enclosed}, {5: ""}, True, "'train:105' has no tokens"),
    *(({}, {6: [1, bad]}, None, r"'train:106': token ids of 'tiny' are 0\.\.26") for bad in (27, -1, 1.5, "a", 2**70)),
    ({"d_vocab": 20}, {}, None, "belongs to another model"),
    ({"tokenizer": None}, {}, None, r"no tokenizer; put a tokenizer\.json"),
    ({"bos_token_id": None}, {0: [1]}, True, "no BOS"),
    ({}, None, None, "no examples"),
]


@pytest.mark.parametrize(("changes", "message"), IMPOSSIBLE)
def test_impossible_arguments(model, task, changes, message):
    with pytest.raises((UsageError, DataError), match=message):
        extract(model, task, **changes)


@pytest.mark.parametrize(("changes", "inputs", "bos", "message"), INPUTS)
def test_inputs_that_the_model_cannot_take(tiny, letters, changes, inputs, bos, message):
    model, of_ids = tiny(**changes), any(isinstance(one, list) for one in (inputs or {}).values())
    task = letters(0 if inputs is None else 23, texts=not of_ids)
    for row, given in (inputs or {}).items():
        task.inputs[row] = given
    with pytest.raises((UsageError, DataError), match=message):
        extract(model, task, bos=bos)


def test_a_word_outside_the_vocabulary_names_its_example() -> None:
    texts = ["the keys", "the zebra"]
    task = Task("t", texts, ids=["a:0", "a:1"])
    with pytest.raises(DataError, match=r"example 'a:1': .*zebra"):
        plan_of(load_model("agreement-gpt2", device="cpu"), task)


def test_a_shard_takes_so_much_work_however_narrow_its_rows(monkeypatch) -> None:
    """So that a run that is stopped has kept something, though all its rows would fit one shard's bytes."""
    model = load_model("agreement-gpt2", device="cpu")
    cfg = model.cfg
    matrices = cfg.n_layers * (4 * cfg.d_model**2 + 2 * cfg.d_model * cfg.d_mlp)
    per_node = 2 * matrices + cfg.n_layers * 2 * 7 * cfg.d_model  # a LayerNorm takes 7 operations a number
    monkeypatch.setattr(planning, "SHARD_FLOPS", {"cpu": 500 * per_node})
    made = plan_of(model, load_task("agreement", limit=300), batch_tokens=200)
    nodes = [sum(int(made.packing.sizes[blocks].sum()) for blocks in shard) for shard in made.shards]
    assert len(made.shards) > 5
    assert max(nodes) <= 500

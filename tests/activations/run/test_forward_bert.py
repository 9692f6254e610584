"""Packed texts of a model that looks both ways give what each text alone gives, between [CLS] and [SEP] or without."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from store_cases import plan_of

from probekit.activations import Store, repair
from probekit.activations.plan.summary import describe_plan, plan_as_dict
from probekit.errors import DataError, UsageError
from probekit.models.families.bert import Bert, BertConfig
from probekit.models.tokenizer_files import read_tokenizer
from probekit.points import POINTS, Place
from probekit.verbs.extract import extract

PAIRS = ("attn_scores", "attn_pattern")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
CLS, SEP = 2, 3


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> Bert:
    folder: Path = tmp_path_factory.mktemp("bert")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    (folder / "vocab.txt").write_text("\n".join(pieces))
    sizes: Any = {"d_model": 16, "n_heads": 2, "d_mlp": 24, "n_layers": 3, "n_ctx": 12, "d_vocab": len(pieces)}
    model = Bert(BertConfig(**sizes, init_std=0.3)).init_weights(1)
    model.tokenizer, model.name = read_tokenizer(folder), "tiny-bert"
    with torch.no_grad():  # so that positions and segments show
        for p in model.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    assert sum(p.numel() for p in model.parameters()) < 20_000
    return model.eval()


@pytest.fixture(scope="module")
def texts(letters):
    """31 texts that begin alike; some are equal, some begin others."""
    inputs = [LETTERS[:k] + tail for k in range(1, 9) for tail in ("", "xy", "xz")] + ["abc"] * 7
    return replace(letters(31), inputs=inputs)


@pytest.fixture
def family(texts):
    """The same texts, to be changed."""
    return replace(texts, inputs=list(texts.inputs))


def points_of(bert: Bert) -> list[str]:
    return list(dict.fromkeys(Place.of(name)[0] for name in bert.points))


def alone(model, task, points, bos=True):
    """Of each text: full name -> tensor in a batch of one, in float64."""
    exact = Bert(model.cfg).double()
    exact.load_state_dict(model.state_dict())
    for ids in model.tokenizer.encode_batch(task.inputs, bos=bos):
        assert not bos or (ids[0], ids[-1]) == (CLS, SEP)
        _, cache = exact.run_with_cache(torch.tensor([ids]), points=points)
        yield {name: x[0].detach() for name, x in cache.items()}


def assert_near(x, wanted, place, bound=5e-6):
    assert x.shape == wanted.shape, place
    assert (x - wanted).abs().max() <= bound * wanted.abs().max(), place


@pytest.fixture(scope="module", params=[None, False], ids=["context", "bare"])
def context(request, bert, texts):
    """The option `bos`, and what each of the texts gives alone in that context, at every point."""
    return request.param, list(alone(bert, texts, points_of(bert), request.param is None))


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("block_nodes", [None, 5, 14])
def test_all_tokens_of_every_point_equal_float64_alone(bert, family, context, block_nodes, share):
    (bos, caches), points = context, points_of(bert)
    acts = extract(bert, family, points=points, position="all", bos=bos, block_nodes=block_nodes, share=share)
    assert {point for point, _ in acts} >= set(points)
    own = slice(None) if bos is False else slice(1, -1)
    for place in acts:
        name = POINTS[place[0]].format(layer=place[1])
        for got, wanted in zip(acts.per_text(place), caches, strict=True):
            x = wanted[name]
            assert_near(got, x if place[0] in PAIRS else x[own].flatten(1), place)


def test_each_position_equals_float64_alone_and_the_whole_text_is_computed(bert, family):
    """The first token is the text's first, the last its last; a mean is over the text's own; all see the whole text."""
    index = np.array([i % len(text) - len(text) * (i % 2) for i, text in enumerate(family.inputs)])
    rows = {"first": lambda n: 1, "last": lambda n: n, "mean": lambda n: slice(1, n + 1)}
    acts = extract(bert, family, position=["first", "last", "mean", index])
    everything = extract(bert, family, position="all")
    caches = list(alone(bert, family, "resid_pre"))
    for position in ("first", "last", "mean", index):
        single = extract(bert, family, position=position)
        name = position if isinstance(position, str) else "per example"
        picked, read = acts.at(name), everything.at(name) if name != "per example" else None
        for i, wanted in enumerate(caches):
            n = len(family.inputs[i])
            row = index[i] % n + 1 if name == "per example" else rows[name](n)
            x = wanted["blocks.2.hook_resid_pre"][row]
            x = x.mean(0) if x.dim() > 1 else x
            assert_near(single["resid_pre", 2][i], x, (name, i))
            assert_near(picked["resid_pre", 2][i], x, (name, i))
            if read is not None:
                assert_near(read["resid_pre", 2][i], x, (name, i))
    for acts in (extract(bert, family, position="-2:"), everything.at("-2:")):
        for got, wanted in zip(acts.per_text(("resid_pre", 2)), caches, strict=True):
            assert_near(got, wanted["blocks.2.hook_resid_pre"][1:-1][-2:], "-2:")
    p = plan_of(bert, family, position="first")
    assert p.packing.nodes == sum(len(text) + 2 for text in set(family.inputs))
    assert plan_of(bert, family, position="first", share=False).packing.nodes == p.sequences.lengths.sum()


def test_tokens_of_rows_are_the_texts_own(bert, family):
    ids = bert.tokenizer.encode_batch(family.inputs)  # pyright: ignore[reportOptionalMemberAccess]
    assert plan_of(bert, family, position="all").layout.tokens.tolist() == [i for text in ids for i in text]  # pyright: ignore[reportOptionalMemberAccess]
    tokens = plan_of(bert, family, position=["first", "last", "mean"]).layout.tokens
    assert tokens is not None
    assert tokens.reshape(-1, 3).tolist() == [[text[0], text[-1], -1] for text in ids]


def test_what_is_cut_still_ends_with_its_sep(bert, family):
    task = replace(family, inputs=[LETTERS[: 8 + i % 8] for i in range(31)])
    p = plan_of(bert, task)
    assert plan_as_dict(p)["cut"] == sum(len(text) > 10 for text in task.inputs)
    for i, text in enumerate(task.inputs):
        ids = bert.tokenizer.encode(text[:10], bos=True)  # pyright: ignore[reportOptionalMemberAccess]
        assert p.sequences[i].tolist() == ids
    with pytest.raises(DataError, match="more than the context of 12"):
        plan_of(bert, task, on_long="error")
    assert "[CLS] before and [SEP] after each text" in describe_plan(p)


def test_cls_is_read_where_the_ids_include_it(bert, family):
    """Who probes [CLS] writes it out: then it is the text's own first token."""
    task = replace(family, inputs=[f"[CLS] {text} [SEP]" for text in family.inputs])
    acts = extract(bert, task, position=["first", "last"], bos=False)
    for i, wanted in enumerate(alone(bert, family, "resid_pre")):
        assert_near(acts["resid_pre", 2][i], wanted["blocks.2.hook_resid_pre"][[0, -1]], i)


def test_words_of_texts_are_read_in_the_same_context(bert, letters):
    """Every word of every text, at its first and last token and their mean; each text is computed once."""
    texts = ["abc d efghi", "b", "d abc"]
    of = [(text, word) for text in texts for word in text.split()]
    task = letters(len(of))
    task = replace(
        task,
        inputs=[text for text, _ in of],
        spans=np.array([(text.index(word), text.index(word) + len(word)) for text, word in of]),
        groups=np.array([texts.index(text) for text, _ in of]),
        splits=np.array(["train", "validation", "test"])[[texts.index(text) for text, _ in of]],
    )
    acts = extract(bert, task, position=["first", "last", "mean"])
    assert plan_of(bert, task).packing.nodes == sum(len(text.replace(" ", "")) + 2 for text in texts)
    for i, (wanted, (text, word)) in enumerate(zip(alone(bert, task, "resid_pre"), of, strict=True)):
        start = len(text[: text.index(word)].replace(" ", "")) + 1
        rows = wanted["blocks.2.hook_resid_pre"][start : start + len(word)]
        assert_near(acts["resid_pre", 2][i], torch.stack([rows[0], rows[-1], rows.mean(0)]), (text, word))


def test_hooks_see_each_text_in_its_context(bert, family):
    """Left as it was but for [CLS]: every text is what it is alone under the same hook."""

    def without_cls(x, hook):
        x = x.clone()
        x[:, 0] = 0
        return x

    plain = extract(bert, family, position="mean")["resid_pre", 2]
    with bert.hooks([("resid_pre.1", without_cls)]):
        hooked = extract(bert, family, position="mean")["resid_pre", 2]
        for i, ids in enumerate(bert.tokenizer.encode_batch(family.inputs, bos=True)):  # pyright: ignore[reportOptionalMemberAccess]
            _, cache = bert.run_with_cache(torch.tensor([ids]), points="resid_pre")
            assert_near(hooked[i], cache["resid_pre", 2][0, 1:-1].mean(0).detach(), i)
    assert not torch.allclose(hooked, plain, atol=1e-3)


def test_ids_are_read_as_they_are_or_in_the_requested_context(bert, letters):
    task = letters(9, longest=8, texts=False)
    assert plan_of(bert, task).sequences[0].tolist() == task.inputs[0]
    assert plan_of(bert, task, bos=True).sequences[0].tolist() == [CLS, *task.inputs[0], SEP]
    bare = Bert(bert.cfg).init_weights()
    with pytest.raises(UsageError, match="has no BOS token"):
        plan_of(bare, task, bos=True)


def test_a_store_holds_the_same_and_is_repaired(bert, family, path, small_shards):
    for name, how in {"all": {"points": ["attn_pattern", "resid_pre"], "position": "all"}, "last": {}}.items():
        in_memory = extract(bert, family, **how)
        store = extract(bert, family, **how, out=path / name)
        assert isinstance(store, Store)
        for place in in_memory:
            for ours, theirs in zip(store.per_text(place), in_memory.per_text(place), strict=True):
                assert torch.equal(ours, theirs), place
        shard = next((path / name).rglob("*.safetensors"))
        shard.unlink()
        assert repair(path / name, model=bert).complete
        assert extract(bert, family, **how, out=path / name).meta["bos"] is True

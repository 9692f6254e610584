"""Packed sources and targets of an encoder-decoder give what each pair alone gives, in float64."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from store_cases import plan_of
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor

from probekit.activations import Store, random_init_of, repair
from probekit.activations.plan.identity import identity_of
from probekit.activations.plan.summary import describe_plan, plan_as_dict
from probekit.activations.replan import plan_again
from probekit.activations.store.examples import read_examples
from probekit.activations.store.format import read_plan
from probekit.errors import DataError, UsageError
from probekit.models import load_model
from probekit.models.families.transformer import Transformer, TransformerConfig
from probekit.models.tokenizer import Tokenizer
from probekit.models.weights import save_hf
from probekit.points import Place
from probekit.tasks import Task
from probekit.verbs.extract import extract

START, VOCABULARY = 1, 23
PICK: dict[Any, Any] = {
    "last": lambda x: x[-1],
    "first": lambda x: x[0],
    "mean": lambda x: x.mean(0),
    "all": lambda x: x,
    -2: lambda x: x[-2],
    "-3:": lambda x: x[-3:],
    "1:3": lambda x: x[1:3],
}
OF_SOURCES = ("decoder.cross_attn_scores", "decoder.cross_attn_pattern", "decoder.cross_k", "decoder.cross_v")


@pytest.fixture(scope="module")
def pair_model() -> Transformer:
    """Encoder and decoder differ in depth, heads and width."""
    sizes: Any = {"d_model": 16, "n_heads": 2, "n_decoder_heads": 4, "d_mlp": 24, "d_decoder_mlp": 40, "n_ctx": 12}
    ids: Any = {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": START}
    cfg = TransformerConfig(**sizes, n_layers=2, n_decoder_layers=3, d_vocab=VOCABULARY, **ids)
    model = Transformer(cfg).init_weights(0)
    assert sum(p.numel() for p in model.parameters()) < 20_000
    return model.eval()


def make_pairs() -> Task:
    """40 pairs of all lengths; some sources and some targets are equal, not both at once."""
    rng = np.random.default_rng(0)
    n = 40
    inputs = [rng.integers(3, VOCABULARY, size=rng.integers(1, 12)).tolist() for _ in range(n)]
    targets = [[START, *rng.integers(3, VOCABULARY, size=rng.integers(0, 9)).tolist()] for _ in range(n)]
    inputs[7], targets[9] = inputs[3], targets[4]
    return Task(
        "pairs", inputs, {"label": np.arange(n) % 2}, splits=np.repeat(["train", "test"], n // 2), targets=targets
    )


@pytest.fixture
def pairs() -> Task:
    return make_pairs()


@pytest.fixture(scope="module")
def wanted(pair_model) -> list[dict[str, Tensor]]:
    """`exact` of the pairs."""
    return exact(pair_model, make_pairs())


@pytest.fixture(scope="module")
def ended() -> Task:
    """The pairs with sources cut to nine tokens, and the end of a sentence after each."""
    pairs = make_pairs()
    return replace(pairs, inputs=[[*ids[:9], 2] for ids in pairs.inputs])


@pytest.fixture(scope="module")
def wanted_ended(pair_model, ended) -> list[dict[str, Tensor]]:
    """`exact` of those."""
    return exact(pair_model, ended)


def exact(model: Transformer, task: Task) -> list[dict[str, Tensor]]:
    """Per pair: full name -> tensor in a batch of one, in float64."""
    twin = Transformer(model.cfg).double()
    twin.load_state_dict(model.state_dict())
    assert task.targets is not None
    found = []
    for source, target in zip(task.inputs, task.targets, strict=True):
        _, cache = twin.run_with_cache(torch.tensor([source]), torch.tensor([target]))
        found.append({name: x[0].detach() for name, x in cache.items()})
    return found


def near(x: Tensor, wanted: Tensor) -> bool:
    return x.shape == wanted.shape and bool((x - wanted).abs().max() <= 5e-6 * wanted.abs().max())


def points_of(model: Transformer, stack: str) -> list[str]:
    points = dict.fromkeys(Place.of(name)[0] for name in model.points if name.startswith(stack))
    return [point for point in points if point not in OF_SOURCES]


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
@pytest.mark.parametrize(("block_nodes", "batch_tokens"), [(None, None), (5, 30), (14, 40)])
def test_all_tokens_of_every_point_equal_each_pair_alone(pair_model, pairs, wanted, stack, block_nodes, batch_tokens):
    points = points_of(pair_model, stack)
    assert len(points) > 15
    sizes = {"block_nodes": block_nodes, "batch_tokens": batch_tokens}
    acts = extract(pair_model, pairs, points=points, position="all", **sizes)
    for place in acts:
        name = pair_model.resolve(place)[0]
        for got, of_pair in zip(acts.per_text(place), wanted, strict=True):
            x = of_pair[name]
            if "attn_" in place[0] and got.dim() == 3:
                hidden = x.isinf()
                assert torch.equal(got.isinf(), hidden)
                assert near(got.masked_fill(hidden, 0), x.masked_fill(hidden, 0)), place
            else:
                assert near(got, x.flatten(1)), place


def test_curves_end_with_the_last_norm_of_their_stack(pair_model, pairs):
    encoder, decoder = (extract(pair_model, pairs, points=f"{stack}.resid_pre") for stack in ("encoder", "decoder"))
    assert encoder.curve("encoder.resid_pre")[-1] == ("encoder.ln2_normalized", 1)
    assert decoder.curve("decoder.resid_pre")[-1] == ("decoder.ln3_normalized", 2)
    assert [place[1] for place in decoder.curve("decoder.resid_pre")[:-1]] == [0, 1, 2]


@pytest.mark.parametrize("position", PICK)
@pytest.mark.parametrize("stack", ["", "encoder.", "decoder."])
def test_positions_count_the_tokens_of_their_own_side(pair_model, pairs, wanted, stack, position):
    """A name without a stack is the encoder's."""
    long = np.array([i for i in range(40) if min(len(pairs.inputs[i]), len(pairs.targets[i])) > 1])
    acts = extract(pair_model, pairs.subset(long), points=f"{stack}resid_post", position=position)
    stack = stack or "encoder."
    for i, got in zip(long, acts.per_text((f"{stack}resid_post", 1)), strict=True):
        assert near(got, PICK[position](wanted[i][f"{stack}blocks.1.hook_resid_post"]))


def test_a_start_token_that_is_missing_is_put_before_every_target_and_never_read(pair_model, pairs):
    without = replace(pairs, targets=[[*target[1:], 5] for target in pairs.targets])
    with_start = replace(pairs, targets=[[*target, 5] for target in pairs.targets])
    bare, whole = (extract(pair_model, task, points="decoder.resid_pre") for task in (without, with_start))
    assert torch.allclose(bare["decoder.resid_pre", 2], whole["decoder.resid_pre", 2], atol=1e-6)
    first = extract(pair_model, without, points="decoder.resid_pre", position="first")
    second = extract(pair_model, with_start, points="decoder.resid_pre", position=1)
    assert torch.allclose(first["decoder.resid_pre", 1], second["decoder.resid_pre", 1], atol=1e-6)
    tails = extract(pair_model, without, points="decoder.resid_pre", position="-3:").per_text(("decoder.resid_pre", 1))
    every = extract(pair_model, with_start, points="decoder.resid_pre", position="all").per_text(
        ("decoder.resid_pre", 1)
    )
    assert all(near(tail, rows[1:][-3:]) for tail, rows in zip(tails, every, strict=True))
    pairs.targets[3] = [5]
    with pytest.raises(DataError, match="39 of 40 targets begin with the decoder's start token 1"):
        plan_of(pair_model, pairs, points="decoder.resid_pre")


def test_a_store_holds_the_same_and_is_repaired(pair_model, pairs, tmp_path):
    save_hf(pair_model, tmp_path / "model")
    model = load_model(tmp_path / "model", device="cpu")
    path = tmp_path / "store"
    extract(model, pairs, points="decoder.resid_pre", out=path, batch_tokens=40)
    wanted = extract(pair_model, pairs, points="decoder.resid_pre", batch_tokens=40)
    shard = next((path / "shards").iterdir())
    shard.write_bytes(shard.read_bytes()[:-4])
    assert repair(path).shards == [0]
    store = Store(path)
    assert store.curve("decoder.resid_pre") == wanted.curve("decoder.resid_pre")
    assert all(torch.equal(store[place], wanted[place]) for place in wanted)
    assert store.task.targets == pairs.targets
    assert store.task.fingerprint() == pairs.fingerprint()
    baseline = random_init_of(path, seed=3)
    assert list(baseline) == list(store)
    assert not torch.equal(baseline["decoder.resid_pre", 1], store["decoder.resid_pre", 1])


IMPOSSIBLE = [
    ("encoder.resid_pre,decoder.resid_pre", "with --points encoder.resid_pre, one with --points decoder.resid_pre"),
    ("resid_pre,decoder.resid_pre,embed", "--points resid_pre,embed, one with --points decoder.resid_pre"),
    ("decoder.cross_attn_pattern", "a row for each source token"),
    ("ln_final", "has no point ln_final"),
    ("encoder.resid_pre,ln_final", "has no point ln_final"),
    ("encoder.cross_q", "unknown point"),
]


@pytest.mark.parametrize(("points", "match"), IMPOSSIBLE)
def test_points_that_cannot_be_extracted(pair_model, pairs, points, match):
    with pytest.raises(UsageError, match=match):
        plan_of(pair_model, pairs, points=points)


def test_the_decoder_needs_targets_that_fit(pair_model, pairs):
    with pytest.raises(DataError, match="has no targets"):
        plan_of(pair_model, replace(pairs, targets=None), points="decoder.resid_pre")
    with pytest.raises(DataError, match=r"expected one of targets for each of the 40 inputs, got 3"):
        replace(pairs, targets=pairs.targets[:3]).check()
    with pytest.raises(DataError, match=r"token ids of .* are 0\.\.22, got 23"):
        plan_of(pair_model, replace(pairs, targets=[[START, VOCABULARY]] * 40), points="decoder.resid_pre")


def test_the_context_of_the_sources_is_in_the_plan_and_a_store_made_again_has_it(pair_model, pairs, tmp_path):
    """Targets get their start token whether sources have a BOS or not, so they cannot tell."""
    model = Transformer(replace(pair_model.cfg, bos_token_id=22)).init_weights(0)
    save_hf(model, tmp_path / "model")
    model = load_model(tmp_path / "model", device="cpu")
    task = replace(pairs, targets=[[*target[1:], 5] for target in pairs.targets])
    plain, with_bos = (plan_of(model, task, points="decoder.resid_pre", bos=bos) for bos in (False, True))
    assert (plan_as_dict(plain)["bos"], plan_as_dict(with_bos)["bos"]) == (False, True)
    assert identity_of(plain) != identity_of(with_bos)
    for made in (plain, with_bos):
        path = tmp_path / str(plan_as_dict(made)["bos"])
        extract(model, task, points="decoder.resid_pre", out=path, bos=plan_as_dict(made)["bos"])
        again = plan_again(read_plan(path), read_examples(path, read_plan(path)), model)
        assert again.sources is not None
        assert again.sources[0].tolist() == [22] * plan_as_dict(made)["bos"] + task.inputs[0]
        assert identity_of(again) == identity_of(made)


def test_cut_sources_are_counted(pair_model, pairs):
    long = replace(pairs, inputs=[[3] * 20, *pairs.inputs[1:]])
    made = plan_of(pair_model, long, points="decoder.resid_pre")
    assert plan_as_dict(made)["cut"] == 1
    assert "cut      1 text to the first 12 tokens" in describe_plan(made)


def test_hooks_on_the_encoder_see_no_filler(pair_model, pairs):
    """One that picks the last token gives, in any batch, what it gives for the pair alone."""
    name = "encoder.blocks.1.hook_resid_pre"

    def hook(x: Tensor, hook: Any) -> Tensor:
        x = x.clone()
        x[:, -1] = 3
        return x

    with pair_model.hooks([(name, hook)]):
        acts = extract(pair_model, pairs, points="decoder.resid_post")
        for i, (source, target) in enumerate(zip(pairs.inputs, pairs.targets, strict=True)):
            _, cache = pair_model.run_with_cache(torch.tensor([source]), torch.tensor([target]))
            assert near(acts["decoder.resid_post", 2][i], cache["decoder.resid_post", 2][0, -1])


def test_the_plan_tells_of_both_sides(pair_model, pairs):
    told = describe_plan(plan_of(pair_model, replace(pairs, targets=[[5]] * 40), points="decoder.resid_pre"))
    n = sum(map(len, pairs.inputs))
    assert f"tokens   80 of targets, the start token before each; {n} of sources, no BOS\n" in told
    assert "nodes, nothing shared\n" in told


def marian(model: Transformer) -> Transformer:
    """The same model with a tokenizer of words that ends every text with </s>, as Marian's."""
    words = {"<pad>": 0, "<s>": 1, "</s>": 2} | {chr(94 + i): i for i in range(3, VOCABULARY)}
    backend = Backend(WordLevel(words))
    backend.pre_tokenizer = WhitespaceSplit()
    model = Transformer(model.cfg).init_weights(0).eval()
    model.tokenizer = Tokenizer(backend, None, VOCABULARY, sep_token_id=2)
    return model


@pytest.mark.parametrize("position", ["last", "first", "mean", "all", "-3:"])
def test_texts_are_followed_by_an_end_which_is_never_read(pair_model, pairs, ended, wanted_ended, position):
    """As Marian's encoder was trained; token ids stay as they are given."""
    model = marian(pair_model)
    texts = [" ".join(chr(94 + i) for i in ids[:9]) for ids in pairs.inputs]
    task = replace(pairs, inputs=texts)
    made = plan_of(model, task, points="encoder.resid_post", position=position)
    assert "</s> after each text" in describe_plan(made)
    assert (plan_as_dict(made)["bos"], made.sequences.n_bos, made.sequences.n_end) == (True, 0, 1)
    assert made.sequences[0].tolist() == [*pairs.inputs[0][:9], 2]
    found = extract(model, task, points="encoder.resid_post", position=position).per_text(("encoder.resid_post", 1))
    for got, of_pair in zip(found, wanted_ended, strict=True):
        assert near(got, PICK[position](of_pair["encoder.blocks.1.hook_resid_post"][:-1]))
    decoded = extract(model, task, points="decoder.resid_post")["decoder.resid_post", 2]
    for got, of_pair in zip(decoded, wanted_ended, strict=True):
        assert near(got, of_pair["decoder.blocks.2.hook_resid_post"][-1])
    assert plan_of(model, ended, points="encoder.resid_post").sequences.n_end == 0
    assert plan_of(model, task, points="encoder.resid_post", bos=False).sequences.n_end == 0


def test_a_text_that_is_cut_keeps_the_end_of_the_sentence(pair_model, pairs):
    task = replace(pairs, inputs=["a " * 30] * len(pairs))
    made = plan_of(marian(pair_model), task, points="encoder.resid_post")
    assert made.sequences[0].tolist() == [3] * 11 + [2]
    assert plan_as_dict(made)["cut"] == len(pairs)

"""Generating against `transformers`' generate on the same random weights, against plain forwards, and closed forms."""

import json
import math
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from marian_oracle import SHAPES, from_hf, oracle_for
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
)

from probekit.errors import DataError, UsageError
from probekit.interventions import add
from probekit.models import load_model
from probekit.models.base import LanguageModel
from probekit.models.families.bert import Bert, BertConfig
from probekit.models.generation import (
    Among,
    Sampling,
    _chooser,
    _filled,
    _reader,
    continuations,
    generate,
    next_distribution,
    stop_ids,
    to_ids,
)
from probekit.models.tokenizer import Tokenizer
from probekit.verbs.extract import extract

EOS = 5
N_CTX = 24
LLAMA = {"hidden_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2,
         "intermediate_size": 40, "vocab_size": 31, "max_position_embeddings": N_CTX, "bos_token_id": 1,
         "eos_token_id": EOS, "tie_word_embeddings": False}  # fmt: skip
DECODERS: dict[str, tuple[type[PreTrainedModel], PretrainedConfig]] = {
    "gpt2": (
        GPT2LMHeadModel,
        GPT2Config(n_embd=24, n_head=4, n_layer=2, vocab_size=31, n_positions=N_CTX, bos_token_id=1, eos_token_id=EOS),
    ),
    "llama": (LlamaForCausalLM, LlamaConfig(**LLAMA)),
    "mistral": (MistralForCausalLM, MistralConfig(**LLAMA, sliding_window=6)),
}
NAMES = ["gpt2", "mistral", "marian"]  # learned positions, rotated ones with a window, two stacks
PROMPTS = [[7, 3, 9, 9, 2], [4], [11, 30, 8, 1, 1, 6, 12, 13], [2, 2, 3]]


def made_distinct(oracle: PreTrainedModel) -> PreTrainedModel:
    """Larger weights than at initialisation, so that every term shows and no two logits are near each other."""
    with torch.no_grad():
        for p in oracle.parameters():
            p.add_(torch.randn_like(p) * 0.3)
    assert sum(p.numel() for p in oracle.parameters()) < 100_000
    return oracle.eval()


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, LanguageModel]]:
    """Each family's oracle, and ours with the same weights."""
    found: dict[str, tuple[Any, LanguageModel]] = {}
    for i, (name, (kind, config)) in enumerate(DECODERS.items()):
        torch.manual_seed(i)
        oracle = made_distinct(kind(config))
        folder = tmp_path_factory.mktemp(name)
        oracle.save_pretrained(folder)
        found[name] = oracle, load_model(folder, device="cpu")
    marian = oracle_for(SHAPES[0])
    return found | {"marian": (marian, from_hf(marian))}


@pytest.fixture(scope="module", params=NAMES)
def pair(request: pytest.FixtureRequest, pairs) -> tuple[Any, LanguageModel]:
    return pairs[request.param]


@pytest.fixture
def model(pair) -> LanguageModel:
    return pair[1]


def by_transformers(oracle: Any, prompts: list[list[int]], most: int, eos: int) -> list[list[int]]:
    """New ids, the end-of-text id included: greedy, padded as `transformers` wants it."""
    is_decoder = not oracle.config.is_encoder_decoder
    width = max(map(len, prompts))
    pads = [[0] * (width - len(ids)) for ids in prompts]
    tokens = torch.tensor([pad + ids if is_decoder else ids + pad for pad, ids in zip(pads, prompts, strict=True)])
    real = torch.tensor([[0] * len(pad) + [1] * len(ids) for pad, ids in zip(pads, prompts, strict=True)])
    oracle.generation_config.forced_eos_token_id = None
    out = oracle.generate(
        tokens,
        attention_mask=real if is_decoder else real.flip(1),
        max_new_tokens=most,
        do_sample=False,
        num_beams=1,
        eos_token_id=eos,
        pad_token_id=0,
    )
    rows = out[:, width if is_decoder else 1 :].tolist()
    return [row[: row.index(eos) + 1] if eos in row else row for row in rows]


@pytest.mark.parametrize("use_cache", [True, False])
def test_greedy_is_what_transformers_generates(pair, use_cache):
    oracle, model = pair
    theirs = by_transformers(oracle, PROMPTS, 14, EOS)
    assert generate(model, PROMPTS, 14, stop_tokens=[EOS], use_cache=use_cache) == theirs
    assert len({tuple(row) for row in theirs}) == len(PROMPTS)


def logits_alone(model: Any, prompt: list[int], made: list[int]) -> Tensor:
    """Logits [V] of what follows: one plain forward of one text."""
    if hasattr(model, "decode"):
        target = torch.tensor([[model.cfg.decoder_start_token_id, *made]])
        return model.decode(target, model.encode(torch.tensor([prompt])))[0, -1]
    return model(torch.tensor([prompt + made]))[0, -1]


@torch.no_grad()
@pytest.mark.parametrize("use_cache", [True, False])
def test_logits_of_every_step_are_those_of_each_text_alone(model, use_cache):
    """With a cache and without, in a batch of different lengths; the tokens are forced, and not the model's own."""
    forced = torch.randint(31, (10, len(PROMPTS)), generator=torch.Generator().manual_seed(0))
    reader = _reader(model, PROMPTS, use_cache, Among(range(len(PROMPTS)), len(PROMPTS)))
    rows = list(range(len(PROMPTS)))
    for step in range(10):
        logits_BV = reader.logits(forced[step - 1, rows] if step else None)
        for i, row in enumerate(rows):
            alone_V = logits_alone(model, PROMPTS[row], forced[:step, row].tolist())
            assert torch.allclose(logits_BV[i], alone_V, atol=1e-5 * alone_V.abs().max().item()), (step, row)
        if (step + 1) % 3 == 0 and len(rows) > 1:  # rows leave, the longest prompt first
            leaves = max(rows, key=lambda row: len(PROMPTS[row]))
            stay = _filled([row != leaves for row in rows])
            reader.keep(stay)
            rows = [rows[i] for i in stay]


@given(st.lists(st.booleans(), max_size=12))
def test_rows_that_stay_keep_their_place_or_fill_that_of_one_that_leaves(stays):
    filled = _filled(stays)
    assert sorted(filled) == [i for i, stays_here in enumerate(stays) if stays_here]
    assert all(i == row or row >= len(filled) for i, row in enumerate(filled))


@pytest.mark.parametrize("how", [{}, {"temperature": 0.9}, {"temperature": 1.5, "top_k": 9, "top_p": 0.8}])
def test_a_batch_is_each_prompt_alone_and_the_cache_changes_nothing(model, how):
    """Row i of a batch draws with seed + i."""
    batch = generate(model, PROMPTS, 12, stop_tokens=[EOS], seed=40, **how)
    assert generate(model, PROMPTS, 12, stop_tokens=[EOS], seed=40, use_cache=False, **how) == batch
    for i, prompt in enumerate(PROMPTS):
        assert generate(model, prompt, 12, stop_tokens=[EOS], seed=40 + i, **how) == batch[i]
    assert model.generate(PROMPTS, 12, stop_tokens=[EOS], seed=40, **how) == batch


def test_prompts_draw_and_are_edited_by_their_number_among_all(model):
    """Some of the prompts are continued as they are in a batch of all; steps are counted as they are done."""
    how = Sampling(temperature=1.2, seed=3)
    steps = []
    scale = torch.linspace(-3, 3, len(PROMPTS))[:, None] * torch.ones(model.cfg.d_model)
    with model.edited({("resid_post" if not hasattr(model, "decode") else "decoder.resid_post", 0): add(scale)}):
        full = continuations(model, PROMPTS, 9, how, frozenset([EOS]), advance=lambda *step: steps.append(step))
        for some in ([2], [0, 3], [3, 1]):
            prompts = [PROMPTS[i] for i in some]
            among = Among(some, len(PROMPTS))
            assert continuations(model, prompts, 9, how, frozenset([EOS]), among=among) == [full[i] for i in some]
    assert sum(n for n, _ in steps) == sum(len(one.tokens) for one in full)
    assert sum(n for _, n in steps) == len(PROMPTS)


def test_a_row_ends_at_a_stop_token_at_the_most_tokens_or_where_the_context_is_full(model):
    """A text never has more than n_ctx tokens and the one that follows them; others in the batch go on."""
    longest = [list(range(1, N_CTX + 1)), [4]]
    full, short = continuations(model, longest, 100)
    in_target = hasattr(model, "decode")
    assert (len(full.tokens), full.ended) == (N_CTX if in_target else 1, "context")
    assert (len(short.tokens), short.ended) == (N_CTX, "context")
    assert len(continuations(model, [[4]], 3)[0].tokens) == 3
    assert continuations(model, [[4]], 3)[0].ended == "max_new_tokens"
    stop = short.tokens[5]
    ended = continuations(model, longest[1:], 100, stops=frozenset([stop]))[0]
    assert ended.tokens == short.tokens[: short.tokens.index(stop) + 1]
    assert ended.ended == "stop token"


def test_without_stop_tokens_the_models_own_end_it(pairs):
    for name in DECODERS:
        model = pairs[name][1]
        endless = generate(model, PROMPTS, 16, stop_tokens=[], temperature=3.0)
        ended = generate(model, PROMPTS, 16, temperature=3.0)
        cut = [row[: row.index(EOS) + 1] if EOS in row else row for row in endless]
        assert ended == cut
        assert ended != endless, "no text reached its end: another seed shows more"


def distribution(logits: list[float], **how: Any) -> list[float]:
    return next_distribution(torch.tensor([logits]), Sampling(**how))[0].tolist()


def test_filters_are_their_closed_forms():
    probabilities = [0.1, 0.4, 0.2, 0.05, 0.25]
    logits = [math.log(p) + 3 for p in probabilities]

    def kept(*which: int) -> Any:
        total = sum(probabilities[i] for i in which)
        return pytest.approx([p / total if i in which else 0 for i, p in enumerate(probabilities)], abs=1e-6)

    squares = [p**2 / sum(q**2 for q in probabilities) for p in probabilities]
    assert distribution(logits, temperature=1.0) == kept(0, 1, 2, 3, 4)
    assert distribution(logits, temperature=0.5) == pytest.approx(squares, abs=1e-6)
    assert distribution(logits, temperature=1.0, top_k=1) == kept(1)
    assert distribution(logits, temperature=1.0, top_k=3) == kept(1, 4, 2)
    assert distribution(logits, temperature=1.0, top_k=99) == kept(0, 1, 2, 3, 4)
    assert distribution(logits, temperature=1.0, top_p=0.01) == kept(1)
    assert distribution(logits, temperature=1.0, top_p=0.39) == kept(1)
    assert distribution(logits, temperature=1.0, top_p=0.41) == kept(1, 4)
    assert distribution(logits, temperature=1.0, top_p=0.86) == kept(1, 4, 2, 0)
    assert distribution(logits, temperature=1.0, top_p=1.0) == kept(0, 1, 2, 3, 4)
    # top_p is of what top_k and the temperature leave: 0.4 of 0.85 is 0.47
    assert distribution(logits, temperature=1.0, top_k=3, top_p=0.46) == kept(1)
    assert distribution(logits, temperature=1.0, top_k=3, top_p=0.48) == kept(1, 4)


def test_tokens_are_drawn_as_often_as_they_are_likely():
    """Over 20,000 seeds every share is within five standard deviations, and what is filtered out never comes."""
    n, logits_V = 20_000, torch.tensor([0.3, -1.0, 1.2, 0.0, -4.0])
    how = Sampling(temperature=1.0, top_p=0.95)
    expected = next_distribution(logits_V[None], how)[0]
    drawn = _chooser(how, range(n))(logits_V.expand(n, -1), range(n))
    shares = torch.bincount(drawn, minlength=5) / n
    assert ((shares - expected).abs() <= 5 * (expected * (1 - expected) / n).sqrt()).all()
    assert shares[4] == expected[4] == 0


def words(n: int) -> Tokenizer:
    """A tokenizer of n words, `w0` and so on."""
    backend = Backend(WordLevel({f"w{i}": i for i in range(n)}))
    backend.pre_tokenizer = WhitespaceSplit()
    return Tokenizer(backend, bos_token_id=1, d_vocab=n)


def test_a_source_as_text_gives_a_target_as_text(pairs, monkeypatch):
    model = pairs["marian"][1]
    monkeypatch.setattr(model, "tokenizer", words(31))
    made = generate(model, PROMPTS[2], 6, stop_tokens=[])
    source = " ".join(f"w{i}" for i in PROMPTS[2])
    assert generate(model, source, 6, stop_tokens=[]) == " ".join(f"w{i}" for i in made)


@pytest.fixture
def speaking(pairs, monkeypatch):
    monkeypatch.setattr(pairs["gpt2"][1], "tokenizer", words(31))
    return pairs["gpt2"][1]


def test_texts_are_continued_as_texts_without_the_stop_token(speaking):
    ids = generate(speaking, PROMPTS, 8, stop_tokens=[])
    prompts = [" ".join(f"w{i}" for i in row) for row in PROMPTS]
    texts = ["".join(f" w{i}" for i in row) for row in ids]
    assert generate(speaking, prompts, 8, stop_tokens=[]) == texts
    assert generate(speaking, prompts[0], 8, stop_tokens=[]) == texts[0]
    stop = ids[0][4]
    end = ids[0].index(stop)
    assert generate(speaking, prompts[0], 8, stop_tokens=[f"w{stop}"]) == "".join(f" w{i}" for i in ids[0][:end])
    assert generate(speaking, PROMPTS[0], 8, stop_tokens=[f"w{stop}"]) == ids[0][: end + 1]
    with_bos = generate(speaking, [[1, *row] for row in PROMPTS], 8, stop_tokens=[])
    assert generate(speaking, prompts, 8, stop_tokens=[], bos=True) == [
        "".join(f" w{i}" for i in row) for row in with_bos
    ]


@pytest.mark.parametrize(
    ("prompt", "how", "what"),
    [
        ([4] * (N_CTX + 1), {}, "a prompt of 25 tokens does not fit a context of 24"),
        ([], {}, "expected a prompt, got"),
        ([[4], []], {}, "the prompt is empty"),
        ([31], {}, r"token ids lie in 0\.\.30; got 31"),
        ([4, [4]], {}, "expected texts, or lists of token ids, got"),
        (torch.ones(1, 2), {}, "expected texts, or lists of token ids, got"),
        (4, {}, "expected a prompt, got 4; give a text, token ids"),
        ("w4", {}, "has no tokenizer; give token ids"),
        ([4], {"stop_tokens": ["w4"]}, "has no tokenizer"),
        ([4], {"stop_tokens": [31]}, r"a stop token is .* in 0\.\.30; got 31"),
        ([4], {"stop_tokens": "w4"}, "a list of tokens"),
        ([4], {"temperature": -0.1}, "temperature"),
        ([4], {"temperature": "hot"}, "temperature must be a number; got 'hot'"),
        ([4], {"temperature": 1.0, "top_k": 0}, "top_k"),
        ([4], {"temperature": 1.0, "top_p": 1.1}, "top_p"),
        ([4], {"top_k": 3}, "give a temperature above 0"),
        ([4], {"seed": -1}, "seed"),
        ([4], {"max_new_tokens": 0}, "max_new_tokens"),
        ([4], {"bos": True}, "bos is for texts"),
    ],
)
def test_impossible_requests(pairs, prompt, how, what):
    with pytest.raises(UsageError, match=what):
        generate(pairs["gpt2"][1], prompt, **how)


def test_impossible_words(speaking):
    with pytest.raises(DataError, match="'w31' is not in the vocabulary"):
        generate(speaking, "w4 w31")
    with pytest.raises(DataError, match="'end' is not in the vocabulary"):
        generate(speaking, "w4", stop_tokens=["end"])
    with pytest.raises(UsageError, match="'w4 w5' is 2 tokens, not one"):
        generate(speaking, "w4", stop_tokens=["w4 w5"])
    with pytest.raises(UsageError, match="the prompt is empty"):
        generate(speaking, "")
    assert generate(speaking, "", 3, stop_tokens=[], bos=True)


def test_a_model_that_reads_both_ways_cannot_generate():
    cfg = BertConfig(d_model=8, n_heads=2, d_mlp=8, n_layers=1, n_ctx=8, d_vocab=11)
    model = Bert(cfg).init_weights(0)
    model.name = "tiny-bert"
    with pytest.raises(UsageError, match="tiny-bert reads texts in both directions"):
        model.generate([4])


def test_a_decoder_without_a_start_cannot_begin(pairs, monkeypatch):
    model = pairs["marian"][1]
    cfg = type(model.cfg)(**{**vars(model.cfg), "decoder_start_token_id": None})
    monkeypatch.setattr(model, "cfg", cfg)
    with pytest.raises(UsageError, match="decoder_start_token_id"):
        generate(model, [4])


def test_what_ends_every_source_is_put_there(pairs, monkeypatch):
    """Marian's </s>: behind a text unless it is refused, and never behind ids, which are taken as they are."""
    model = pairs["marian"][1]
    words = {f"w{i}": i for i in range(model.cfg.d_vocab)}
    backend = Backend(WordLevel(words))
    backend.pre_tokenizer = WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setattr(model, "tokenizer", Tokenizer(backend, sep_token_id=model.cfg.eos_token_id))
    end = model.cfg.eos_token_id
    assert to_ids(model, "w7 w3 w9") == ([[7, 3, 9, end]], True, True)
    assert to_ids(model, ["w7", "w3 w9"]) == ([[7, end], [3, 9, end]], True, False)
    assert to_ids(model, "w7 w3 w9", bos=False) == ([[7, 3, 9]], True, True)
    assert to_ids(model, [7, 3, 9]) == ([[7, 3, 9]], False, True)
    assert (
        generate(model, "w7 w3", 4, stop_tokens=[]).split()[0]
        == f"w{generate(model, [7, 3, end], 1, stop_tokens=[])[0]}"
    )


# the tokens that end a text, of generation_config.json, as transformers takes them from there


@pytest.fixture
def llama_folder(tmp_path):
    """A llama whose config.json ends texts at 5."""
    torch.manual_seed(1)
    kind, config = DECODERS["llama"]
    made_distinct(kind(config)).save_pretrained(tmp_path)
    return tmp_path


def write(folder, **fields):
    (folder / "generation_config.json").write_text(json.dumps(fields))


def test_texts_end_where_transformers_ends_them(llama_folder):
    prompt = [7, 3, 9, 9, 2]
    free = load_model(llama_folder, device="cpu").generate(prompt, 8, stop_tokens=[])
    end = next(token for token in free[2:] if token not in free[:2])
    write(llama_folder, eos_token_id=[30, end])
    ours = load_model(llama_folder, device="cpu")
    oracle: Any = DECODERS["llama"][0].from_pretrained(llama_folder).eval()
    theirs = oracle.generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=False, pad_token_id=0)[0].tolist()
    assert prompt + ours.generate(prompt, 8) == theirs
    assert theirs[-1] == end
    acts = extract(ours, [prompt], generate=8)
    assert acts.task.inputs == [theirs[:-1]]
    assert acts.task.info["generate"]["stop_tokens"] == sorted({30, end})
    assert stop_ids(ours, [9]) == {9}  # those given replace them


@pytest.mark.parametrize(
    ("fields", "ends"),
    [
        ({"eos_token_id": 8}, {8}),
        ({"eos_token_id": [31, 9]}, {9}),
        ({"eos_token_id": 31}, {5}),
        ({"eos_token_id": None}, {5}),
        ({}, {5}),
    ],
)
def test_one_end_or_those_of_the_config(llama_folder, fields, ends):
    write(llama_folder, **fields)
    assert stop_ids(load_model(llama_folder, device="cpu"), None) == ends


@pytest.mark.parametrize("given", [-1, "5", [2, None], 2.5, True])
def test_what_is_no_token_is_refused(llama_folder, given):
    write(llama_folder, eos_token_id=given)
    with pytest.raises(DataError, match=r"generation_config\.json': eos_token_id must be the id"):
        load_model(llama_folder, device="cpu")

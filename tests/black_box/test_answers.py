"""The log-probability of an answer is that of its tokens after the prompt, in whatever batches it is computed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hub_repos import tiny_gpt2
from tiny_configs import tiny_configs, tiny_model
from transformers import GPT2LMHeadModel

from probekit.black_box.answers import AnswerTokens, answer_tokens_of, log_probabilities_of
from probekit.errors import DataError, UsageError
from probekit.models import load_model
from probekit.models.families import family_of

TEXTS = ["the film was", "a good film and a bad one , it was", "the film", "it was a very very", "film"]
ANSWERS = ["good", "bad", "very good", "very bad indeed", "not at all"]
NAMES = [f"row {i}" for i in range(len(TEXTS))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny"
    path.mkdir()
    for name, data in tiny_gpt2(words=" good bad very film was").items():
        (path / name).write_bytes(data)
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return load_model(folder, device="cpu")


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Any:
    return GPT2LMHeadModel.from_pretrained(folder).eval()


@torch.no_grad()
def log_probability(forward: Any, prompt: list[int], answer: list[int]) -> float:
    """Of the answer's tokens, by one forward of prompt and answer alone."""
    logits = forward(torch.tensor([[*prompt, *answer]]))[0]
    logs = torch.log_softmax(logits.double(), dim=-1)[len(prompt) - 1 : -1]
    return float(logs[range(len(answer)), answer].sum())


@pytest.mark.parametrize("bos", [False, True])
def test_it_is_the_sum_of_what_transformers_gives_each_token(model: Any, oracle: Any, bos: bool) -> None:
    asked = answer_tokens_of(model, TEXTS, ANSWERS, bos, NAMES)
    assert {len(own) for answers in asked.answers for own in answers} > {1}
    found = log_probabilities_of(model, asked)
    for row, text in enumerate(TEXTS):
        prompt = model.tokenizer.encode(text, bos=bos)
        for k, answer in enumerate(ANSWERS):
            tokens = model.tokenizer.encode(f"{text} {answer}", bos=bos)[len(prompt) :]
            wanted = log_probability(lambda ids: oracle(ids).logits, prompt, tokens)
            assert found[row, k] == pytest.approx(wanted, rel=1e-5, abs=1e-5)


def test_the_next_tokens_of_all_the_vocabulary_have_probability_one(model: Any) -> None:
    prompt, d_vocab = model.tokenizer.encode("the film was"), model.cfg.d_vocab
    found = log_probabilities_of(model, AnswerTokens([prompt], [[(token,) for token in range(d_vocab)]]))
    assert np.exp(found).sum() == pytest.approx(1, abs=1e-6)


def continues(cfg: Any) -> bool:
    model = family_of(cfg).model
    return getattr(cfg, "causal", model.causal) and not hasattr(model, "decode")


@pytest.mark.parametrize("name", sorted(name for name, cfg in tiny_configs().items() if continues(cfg)))
def test_every_family_that_continues_texts(name: str) -> None:
    model, rng = tiny_model(name), np.random.default_rng(0)
    prompts = [rng.integers(3, 50, size=n).tolist() for n in (4, 9, 1, 4)]
    prompts[3][:3] = prompts[0][:3]  # a prefix that is shared
    answers = [[(7,), (7, 11), (23, 4, 9)]] * len(prompts)
    found = log_probabilities_of(model, AnswerTokens(prompts, answers))
    wanted = [[log_probability(model, prompt, list(own)) for own in answers[0]] for prompt in prompts]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_neither_order_nor_batches_nor_other_answers_change_it(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answer_tokens_of(model, TEXTS, ANSWERS, True, NAMES)
    found = log_probabilities_of(model, asked)
    order = np.array([3, 1, 4, 0, 2])
    shuffled = answer_tokens_of(model, [TEXTS[i] for i in order], ANSWERS, True, NAMES)
    np.testing.assert_allclose(log_probabilities_of(model, shuffled), found[order], rtol=1e-5, atol=1e-6)
    fewer = answer_tokens_of(model, TEXTS, ANSWERS[1:3], True, NAMES)
    np.testing.assert_allclose(log_probabilities_of(model, fewer), found[:, 1:3], rtol=1e-5, atol=1e-6)
    monkeypatch.setattr("probekit.causal.behaviour.unembedding.LOGITS", 2 * model.cfg.d_vocab)  # two rows at once
    np.testing.assert_allclose(log_probabilities_of(model, asked), found, rtol=1e-5, atol=1e-6)


def test_the_cost_is_the_prompt_and_what_is_read_of_the_answers_each_once(model: Any) -> None:
    asked = AnswerTokens([[5, 6, 7], [5]], [[(1,), (2, 3), (2, 4, 8)], [(1,), (2,), (3,)]])
    assert asked.read.tolist() == [3 + 2, 1]  # after 2, and after 2 4


def test_prompts_that_cannot_be_asked_are_refused(model: Any) -> None:
    with pytest.raises(
        DataError, match=r"the prompt of 'row 1' has .* tokens, more than the context of 64 \(as have 1 "
    ):
        answer_tokens_of(model, ["film", "film was" * 40], ["good", "bad"], False, NAMES)
    with pytest.raises(DataError, match=r"the answer 'good' changes the tokens .* at the end of the prompt of 'row 0'"):
        answer_tokens_of(model, ["film "], ["good", "bad"], False, NAMES)
    with pytest.raises(UsageError, match=r"'good' and 'good' are the same tokens"):
        answer_tokens_of(model, ["film"], ["good", "good"], False, NAMES)
    with pytest.raises(UsageError, match="does not continue texts"):
        answer_tokens_of(tiny_model("bert"), ["film"], ["good", "bad"], False, NAMES)

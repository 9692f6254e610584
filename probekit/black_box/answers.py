"""The log-probability of each answer after each prompt, on the engine of extraction.

An answer of several tokens has the sum of its tokens' log-probabilities, log p(a1 | prompt) + log p(a2 | prompt a1)...
All the texts after which a token is predicted are one extraction of the final norm's output, so that a prompt is run
once for all of its answers, and examples that prompts show first once for many prompts.

Axes: N prompts, C answers, M texts after which a token is predicted, D d_model, V vocab.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from probekit.activations.plan.build import plan_extraction
from probekit.activations.run.loop import compute_in_memory
from probekit.causal.behaviour.unembedding import logits_of, rows_at_once
from probekit.errors import DataError, UsageError
from probekit.models.base import LanguageModel
from probekit.options import ExtractOptions
from probekit.tasks.base import Task


@dataclass(frozen=True, eq=False)
class AnswerTokens:
    """Prompts and answers as token ids.

    Attributes:
        prompts: N lists.
        answers: of each prompt, the C answers.
    """

    prompts: list[list[int]]
    answers: list[list[tuple[int, ...]]]

    def __len__(self) -> int:
        return len(self.prompts)

    def part(self, rows: slice) -> "AnswerTokens":
        """Those of some prompts."""
        return AnswerTokens(self.prompts[rows], self.answers[rows])

    @property
    def read(self) -> np.ndarray:
        """How many tokens the model reads for each prompt and its answers, int64 [N]; what they share counts once."""
        return np.array([len(ids) + len(_begun(own)) - 1 for ids, own in zip(self.prompts, self.answers, strict=True)])


def answer_tokens_of(
    model: LanguageModel, texts: Sequence[str], answers: Sequence[str], bos: bool, names: Sequence[str]
) -> AnswerTokens:
    """Prompts and answers as tokens; an answer is after a blank, unless its prompt ends with one.

    Args:
        model: which continues texts.
        texts: N prompts.
        answers: C words or phrases.
        bos: whether a BOS is put first.
        names: of the prompts, for errors.

    Raises:
        UsageError: a model that does not continue texts; two answers that are the same tokens.
        DataError: a prompt and answer that do not fit the context; an answer that changes the prompt's tokens.
    """
    if not model.causal or hasattr(model, "decode"):
        raise UsageError(f"{model.name} does not continue texts, so it cannot be prompted; take a decoder such as gpt2")
    tokenizer, n_ctx = model.need_tokenizer(), model.cfg.n_ctx
    prompts = _encoded(model, texts, bos, names)
    for answer in answers:
        try:
            tokenizer.encode(f" {answer}", bos=False)
        except DataError as error:
            raise DataError(f"the answer {answer!a:.40}: {error}; give other answers (--answers)") from None
    found: list[list[tuple[int, ...]]] = [[] for _ in texts]
    for answer in answers:
        whole = _encoded(model, [text + _after(text, answer) for text in texts], bos, names)
        for row, ids in enumerate(whole):
            n = len(prompts[row])
            if ids[:n] != prompts[row] or len(ids) == n:
                shown = tokenizer.tokens(prompts[row][-2:])
                raise DataError(
                    f"the answer {answer!a:.40} changes the tokens {shown} at the end of the prompt of "
                    f"{names[row]!a:.60}; end the prompt after a word, without a blank"
                )
            if tuple(ids[n:]) in found[row]:
                same = answers[found[row].index(tuple(ids[n:]))]
                raise UsageError(f"the answers {same!a:.40} and {answer!a:.40} are the same tokens; give other words")
            found[row].append(tuple(ids[n:]))
    made = AnswerTokens(prompts, found)
    lengths = np.array([len(p) + max(map(len, own)) - 1 for p, own in zip(prompts, found, strict=True)])
    if len(long := np.flatnonzero(lengths > n_ctx)):
        raise DataError(
            f"the prompt of {names[long[0]]!a:.60} has {lengths[long[0]]:,} tokens, more than the context of {n_ctx:,} "
            f"(as have {len(long):,} of {len(texts):,} prompts), and none is cut; take fewer shots (--shots), a "
            "shorter prompt (--prompt), or shorter texts"
        )
    return made


def _encoded(model: LanguageModel, texts: Sequence[str], bos: bool, names: Sequence[str]) -> list[list[int]]:
    tokenizer = model.need_tokenizer()
    try:
        return tokenizer.encode_batch(texts, bos=bos)
    except DataError:
        for name, text in zip(names, texts, strict=True):
            try:
                tokenizer.encode(text, bos=bos)
            except DataError as error:
                raise DataError(f"the prompt of {name!a:.60}: {error}; give a prompt of its words (--prompt)") from None
        raise


def _after(text: str, answer: str) -> str:
    return answer if text[-1:].isspace() else f" {answer}"


def _begun(answers: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """What of the answers has been read when one of their tokens is predicted, each once: () and their beginnings."""
    return list(dict.fromkeys(own[:j] for own in answers for j in range(len(own))))


@torch.no_grad()
def log_probabilities_of(model: LanguageModel, asked: AnswerTokens) -> np.ndarray:
    """The natural log-probability of each answer after its prompt, float64 [N, C].

    Raises:
        UsageError: the model has no head.
    """
    texts: list[list[int]] = []
    row_M: list[int] = []
    answer_M: list[int] = []
    text_M: list[int] = []
    token_M: list[int] = []
    for row, (prompt, answers) in enumerate(zip(asked.prompts, asked.answers, strict=True)):
        number = {begun: len(texts) + i for i, begun in enumerate(_begun(answers))}
        texts += [[*prompt, *begun] for begun in number]
        for k, own in enumerate(answers):
            for j, token in enumerate(own):
                row_M.append(row)
                answer_M.append(k)
                text_M.append(number[own[:j]])
                token_M.append(token)
    options = ExtractOptions(points="ln_final", position="last", on_long="error", bos=False)
    (hidden_MD,) = compute_in_memory(plan_extraction(model, Task("prompts", texts), options), False)[1].values()
    logs = np.empty(len(row_M))
    order = np.argsort(text_M, kind="stable")
    wanted, size = np.array(text_M)[order], rows_at_once(model)
    for start in range(0, len(texts), size):
        some = order[np.searchsorted(wanted, start) : np.searchsorted(wanted, start + size)]
        own_MD = hidden_MD[start : start + size].to(model.device, model.dtype)
        logs_NV = torch.log_softmax(logits_of(model, own_MD), dim=-1)
        at = torch.tensor(np.array(text_M)[some] - start), torch.tensor(np.array(token_M)[some])
        logs[some] = logs_NV[at].double().cpu().numpy()
    found = np.zeros((len(asked), len(asked.answers[0])))
    np.add.at(found, (row_M, answer_M), logs)
    return found

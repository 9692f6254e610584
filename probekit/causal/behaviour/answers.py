"""Answers as tokens: which token each answer is, and after which token of a text it is read."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from unicodedata import combining, normalize

import numpy as np
import torch
from torch import Tensor

from probekit.errors import DataError, UsageError
from probekit.models.base import LanguageModel
from probekit.options.check import is_whole

MOST_TEXTS = 2000  # how many texts answers are tried on


def answer_tokens(model: LanguageModel, texts: Sequence[Sequence[int]], names: Sequence[str] | None = None) -> Tensor:
    """The index of each text's answer token, int64 [N]: the last token, or the [MASK] of a model that fills masks.

    Args:
        model: the model that reads the texts.
        texts: token ids, context tokens included.
        names: of the texts, for errors.

    Raises:
        DataError: a text for a masked language model that does not have exactly one [MASK].
    """
    if not model.fills_masks:
        return torch.tensor([len(ids) - 1 for ids in texts])
    spelled, mask = mask_token(model)
    for row, ids in enumerate(texts):
        if (n := list(ids).count(mask)) != 1:
            name = f"text {row}" if names is None else names[row]
            raise DataError(f"{name} has {n} {spelled}, where {model.name} answers; expected one")
    return torch.tensor([list(ids).index(mask) for ids in texts])


def mask_token(model: LanguageModel) -> tuple[str, int]:
    """How the mask of a masked language model is spelled, and its id.

    Raises:
        UsageError: it has no tokenizer, or one whose vocabulary has neither "[MASK]" nor "<mask>".
    """
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise UsageError(
            f"{model.name} answers at its [MASK], and without a tokenizer that token's id is not known; put a "
            "tokenizer.json with [MASK] into its folder"
        )
    for spelled in ("[MASK]", "<mask>"):
        with suppress(DataError):  # a word-level vocabulary without it
            ids = tokenizer.encode(spelled)
            if len(ids) == 1 and tokenizer.tokens(ids) == [spelled]:
                return spelled, ids[0]
    raise UsageError(f"the vocabulary of {model.name} has neither [MASK] nor <mask>; its answers cannot be read")


def answer_ids(
    model: LanguageModel, answers: Sequence[str | int], texts: Sequence[str] | Sequence[Sequence[int]]
) -> list[int]:
    """The token id of each answer, as the next word after the texts, or in place of their [MASK].

    A number is the id itself. A word is tried after a blank first, then as it is given; on `MOST_TEXTS` of the texts,
    evenly spread. Where the texts are token ids, it is a word by itself or a token as the vocabulary spells it; without
    a tokenizer, a word of digits is an id.

    Args:
        model: the model that will answer.
        answers: words, such as "is" and "are", or token ids.
        texts: texts that end before the answer (or have a [MASK]), or token ids.

    Raises:
        UsageError: an answer that is several tokens, or not the same token after all texts; the same answer twice.
    """
    if isinstance(answers, str):
        raise UsageError(f"answers are a list of words, one for each class, got {answers!a:.60}; give a list of them")
    if len(answers) < 2:
        raise UsageError(f'expected two answers or more, one for each class, got {len(answers)}; such as "is,are"')
    found = [answer_id(model, answer, texts) for answer in answers]
    for i, token in enumerate(found):
        if token in found[:i]:
            first = answers[found.index(token)]
            raise UsageError(
                f"answers {first!a:.60} and {answers[i]!a:.60} are the same token {token}; give other words"
            )
    return found


def answer_id(model: LanguageModel, answer: str | int, texts: Sequence[str] | Sequence[Sequence[int]]) -> int:
    """The token id of one answer; see `answer_ids`."""
    if is_whole(answer) or (model.tokenizer is None and str(answer).isdecimal()):
        if not 0 <= int(answer) < model.cfg.d_vocab:
            raise UsageError(f"token ids of {model.name} are 0..{model.cfg.d_vocab - 1}, got {answer}")
        return int(answer)
    answer = str(answer)
    if len(texts) and isinstance(texts[0], str):
        tried = [str(texts[i]) for i in np.unique(np.linspace(0, len(texts) - 1, MOST_TEXTS).round().astype(int))]
        return _masked_token(model, answer, tried) if model.fills_masks else _next_token(model, answer, tried)
    return _alone(model, answer)


def _alone(model: LanguageModel, answer: str) -> int:
    """The id of an answer without a text: with a blank before it, by itself, or as the vocabulary spells it."""
    tokenizer = model.need_tokenizer()
    for form in (f" {answer}", answer):
        with suppress(DataError):
            ids = tokenizer.encode(form)
            if len(ids) == 1 and _spells(model, ids[0], answer):
                return ids[0]
    return tokenizer.token_id(answer)


def _next_token(model: LanguageModel, answer: str, texts: list[str]) -> int:
    """The id of an answer as the next word."""
    before = model.need_tokenizer().encode_batch(texts)

    def added(ids: list[int], row: int) -> list[int]:
        n = len(before[row])
        return ids[n:] if ids[:n] == before[row] else []

    return _agreed(model, answer, texts, lambda text, form: text + form, added)


def _masked_token(model: LanguageModel, answer: str, texts: list[str]) -> int:
    """The id of an answer in place of the mask."""
    spelled, _ = mask_token(model)
    before = model.need_tokenizer().encode_batch(texts)
    places = answer_tokens(model, before).tolist()

    def added(ids: list[int], row: int) -> list[int]:
        start, n_after = places[row], len(before[row]) - places[row] - 1
        end = len(ids) - n_after
        same = ids[:start] == before[row][:start] and ids[end:] == before[row][places[row] + 1 :]
        return ids[start:end] if same else []

    return _agreed(model, answer, texts, lambda text, form: text.replace(spelled, form), added)


def _agreed(
    model: LanguageModel,
    answer: str,
    texts: list[str],
    put: Callable[[str, str], str],
    added: Callable[[list[int], int], list[int]],
) -> int:
    """The one token that a form of the answer adds to all texts.

    Args:
        model: the model.
        answer: as it was given.
        texts: the texts.
        put: (text, form of the answer) -> the text with the answer.
        added: (ids of that, row) -> the ids that the answer added; [] if it changed those around it.
    """
    if not isinstance(answer, str) or not answer.strip():
        raise UsageError(f'an answer must be a word, got {answer!a:.60}; such as "is,are"')
    errors: list[str] = []
    for form in dict.fromkeys([f" {answer.strip()}", answer.strip()]):
        try:
            ids = model.need_tokenizer().encode_batch([put(text, form) for text in texts])
        except DataError as error:
            errors.append(f"answer {answer!a:.60}: {error}")
            continue
        new = [added(each, row) for row, each in enumerate(ids)]
        if len({tuple(each) for each in new}) == 1 and len(new[0]) == 1 and _spells(model, new[0][0], answer):
            return new[0][0]
        errors.append(_why_not_one(model, answer, texts, new))
    raise UsageError(errors[0])


def _spells(model: LanguageModel, token: int, answer: str) -> bool:
    """Whether a token is the answer and no token for unknown words; case and accents may differ."""
    return _letters(model.need_tokenizer().tokens([token])[0].removeprefix("##")) == _letters(answer)


def _letters(text: str) -> str:
    return "".join(c for c in normalize("NFKD", text.strip().casefold()) if not combining(c))


def _why_not_one(model: LanguageModel, answer: str, texts: list[str], new: list[list[int]]) -> str:
    """Why what an answer adds to each text is not one token, the same after all."""
    row = next((row for row, each in enumerate(new) if len(each) != 1), None)
    if row is None:
        read = " or ".join(
            ascii(token) for token in model.need_tokenizer().tokens(sorted({each[0] for each in new}))[:5]
        )
        return f"answer {answer!a:.60} is read as {read}; give a word that is one and the same token after all texts"
    pieces, after = model.need_tokenizer().tokens(new[row]), f"after {texts[row][-40:]!a}"
    if not pieces:
        return f"answer {answer!a:.60} changes the tokens {after}, so it is no next token; end the texts before a blank"
    shown = ", ".join(ascii(piece) for piece in pieces[:5])
    return f"answer {answer!a:.60} is {len(pieces)} tokens {after} ({shown}); give a word that is one token"

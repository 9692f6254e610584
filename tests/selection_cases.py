"""Chats made in code, tokenizers of three kinds, and each selection's tokens found slowly: one token at a time."""

from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from probekit.models.families.bert import Bert, BertConfig
from probekit.models.families.gpt2 import GPT2, GPT2Config
from probekit.models.tokenizer import BLANK, Tokenizer
from probekit.tasks.base import Task
from probekit.tasks.fields import Region

START, END = "<|im_start|>", "<|im_end|>"
CORPUS = ["user assistant system the cats don't see café, naïve dogs\n", "yes no: 1,000 (cats) re-do; café!\n"] * 5


def byte_level() -> Backend:
    """GPT-2's kind."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    how: Any = trainers.BpeTrainer(
        vocab_size=320, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator(CORPUS, how)
    backend.add_special_tokens([START, END])
    return backend


def sentence_piece() -> Backend:
    """Llama's kind: a blank before the text, and bytes for what is not in the vocabulary."""
    merges: Any = [tuple(pair.split()) for pair in ("t h", "th e", "▁ the", "c a", "ca t", "▁ cat", "u s", "e r")]
    letters = [*(f"<0x{i:02X}>" for i in range(256)), *"▁abcdehnostuyrim'."]
    vocab = dict.fromkeys(["<unk>", *letters, *(a + b for a, b in merges)])
    backend = Backend(
        models.BPE({token: i for i, token in enumerate(vocab)}, merges, byte_fallback=True, unk_token="<unk>")
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([START, END])
    return backend


def word_piece() -> Backend:
    """BERT's kind: lower case, no accents, no blanks."""
    units = ["[UNK]", *"abcdefghiklmnoprstuvy.:,'!()1", *(f"##{a}" for a in "abcdefghiklmnoprstuvy"), "the", "cat"]
    backend = Backend(models.WordPiece({unit: i for i, unit in enumerate(units)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.add_special_tokens([START, END])
    return backend


KINDS = {"byte-level": byte_level(), "pieces": sentence_piece(), "word pieces": word_piece()}


def chat_text(messages: list[tuple[str, str]]) -> tuple[str, list[Region]]:
    """A chat in ChatML's style, and where its contents are."""
    text, regions = "", []
    for role, content in messages:
        text += f"{START}{role}\n"
        regions.append(Region(role, len(text), len(text) + len(content)))
        text += f"{content}{END}\n"
    return text, regions


def owned_characters(tokenizer: Tokenizer, text: str) -> list[set[int]]:
    """The characters of each token: without blanks, unless there is nothing else.

    From the library's own encoding. The blank that a SentencePiece tokenizer adds has no character of the text.
    """
    encoding = tokenizer._backend.encode(text, add_special_tokens=False)
    owned = []
    for token, (start, end) in zip(encoding.tokens, encoding.offsets, strict=True):
        own = set(range(start, end))
        letters = {i for i in own if not text[i].isspace()}
        if token == BLANK and letters and BLANK not in text[start:end]:
            own = set()
        first, last = (min(letters), max(letters)) if letters and own else (start, end - 1)
        owned.append({i for i in own if first <= i <= last})
    return owned


def slow_part(part: tuple[str, Any] | None, text: str, regions: list[Region], owned: list[set[int]]) -> list[int]:
    """The tokens of a part: ("role", (name, turn)), ("in" | "before" | "after", substring), or None for all."""
    if part is None:
        return list(range(len(owned)))
    kind, name = part
    if kind == "role":
        role, turn = name
        own = [region for region in regions if region.name == role]
        own = own if turn is None else own[turn:][:1]
        wanted = {i for region in own for i in range(region.start, region.end)}
        return [k for k, characters in enumerate(owned) if characters & wanted]
    starts = [i for i in range(len(text)) if text[i : i + len(name)] == name]
    if len(starts) != 1:
        return []
    inside = [k for k, own in enumerate(owned) if own & set(range(starts[0], starts[0] + len(name)))]
    if kind == "in" or not inside:
        return inside
    return [k for k in range(len(owned)) if (k < inside[0] if kind == "before" else k > inside[-1])]


def slow_pick(pick: str, tokens: list[int]) -> list[int]:
    """The tokens that a pick takes, as Python's own indices and slices do; none if there is no such token."""
    if pick in ("all", "mean"):
        return tokens
    if ":" in pick:
        start, stop = (int(end) if end else None for end in pick.split(":"))
        return tokens[start:stop]
    index = {"first": 0, "last": -1}.get(pick)
    index = int(pick) if index is None else index
    return [tokens[index]] if -len(tokens) <= index < len(tokens) else []


def gpt2(kind: str, **changes: Any) -> GPT2:
    tokenizer = Tokenizer(KINDS[kind], bos_token_id=0)
    sizes: dict[str, Any] = {"d_model": 8, "n_heads": 2, "d_mlp": 8, "n_layers": 2, "n_ctx": 256}
    cfg = GPT2Config(**{**sizes, "d_vocab": len(tokenizer), "bos_token_id": 0, **changes})
    model = GPT2(cfg).init_weights(0).eval()
    model.tokenizer, model.name = tokenizer, kind
    return model


def bert() -> Bert:
    tokenizer = Tokenizer(KINDS["word pieces"], bos_token_id=1, sep_token_id=2)
    model = Bert(BertConfig(d_model=8, n_heads=2, d_mlp=8, n_layers=2, n_ctx=256, d_vocab=len(tokenizer)))
    model = model.init_weights(0).eval()
    model.tokenizer, model.name = tokenizer, "bert"
    return model


MODELS: dict[str, Any] = {kind: gpt2(kind) for kind in KINDS} | {"bert": bert()}


def chats(*all_messages: list[tuple[str, str]], **more: Any) -> Task:
    made = [chat_text(messages) for messages in all_messages]
    return Task("chats", [text for text, _ in made], regions=[regions for _, regions in made], **more)


TASK = chats(
    [("system", "be truthful"), ("user", "do cats see dogs?\n\nsay"), ("assistant", "yes the cats"), ("user", "a")],
    [("system", "be a cat"), ("user", "1,000 cats"), ("assistant", "no"), ("user", "and the dogs")],
    [("system", "lie"), ("user", "the cats"), ("assistant", "no the cats don't"), ("user", "yes")],
    labels=[0, 1, 0],
    splits=["train", "train", "test"],
)

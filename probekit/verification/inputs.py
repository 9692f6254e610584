"""What a self-test reads: few tokens that exercise every path of packing; and models with random weights to test.

The texts: one of one token, texts that share a prefix or are a prefix of another, a repeated text, and a long one.
Three that differ have one length: where a class takes no padding, they are a batch.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from probekit.errors import DataError
from probekit.files.published import PUBLISHED
from probekit.models.base import LanguageModel
from probekit.models.families import families
from probekit.verification.references import TextIds

LONGEST = 128  # tokens
MOST, LEAST = 320, 64  # tokens in all
ON_CPU = 4e10  # parameters times tokens; GPT-2 small then reads MOST of them in seconds
SENTENCES = (
    "The kettle began to sing before anyone had found the cups.",
    "The kettle began to sing before the milk was warm; nobody minded.",
    "The kettle began",
    "Nine of the twelve lamps on the harbour wall were lit, and 3 + 4 = 7.",
    " a leading blank,\na new line, a café, naïve 東京",
)

STD = 0.02  # of every matrix
SMALL = {"d_model": 256, "n_heads": 4, "d_mlp": 1024, "n_layers": 4, "d_vocab": 8192}  # for a CPU


def inputs_for(model: LanguageModel, seed: int) -> list[TextIds]:
    """The token ids of the texts: some drawn from `seed`, and sentences if there is a tokenizer.

    An encoder-decoder gets pairs: each text is the source of the next one, which follows the decoder's start token. On
    a CPU the number of tokens depends on the model's size, to limit the time.
    """
    cfg, room = model.cfg, MOST
    if model.device.type == "cpu":
        room = max(LEAST, min(MOST, int(ON_CPU / sum(p.numel() for p in model.parameters()))))
    texts: list[list[int]] = []
    for ids in [*_drawn(min(int(cfg.n_ctx), LONGEST, 2 * room // 5), int(cfg.d_vocab), seed), *_sentences(model)]:
        ids = list(ids[: min(int(cfg.n_ctx), room)])
        texts += [ids] if ids else []
        room -= len(ids)
    start = getattr(model.cfg, "decoder_start_token_id", None)
    if start is None:
        return [(ids,) for ids in texts]
    targets = [[start, *ids][: model.cfg.n_ctx] for ids in (*texts[1:], texts[0])]
    return list(zip(texts, targets, strict=True))


def _drawn(longest: int, d_vocab: int, seed: int) -> Iterator[Sequence[int]]:
    ids = np.random.default_rng(seed).integers(d_vocab, size=longest + 10).tolist()
    long, short = ids[:longest], ids[longest:]
    yield from (short[:1], short[:7], short[:4], short[:7], [*short[:4], *short[7:10]], long, [*long[:6], short[0]])


def _sentences(model: LanguageModel) -> Iterator[Sequence[int]]:
    for sentence in SENTENCES if model.tokenizer else ():
        try:
            yield model.tokenizer.encode(sentence)  # pyright: ignore[reportOptionalMemberAccess]
        except DataError:  # a word-level vocabulary without these words
            continue


def made_up_model(device: torch.device, dtype: torch.dtype, seed: int = 0, cfg: Any = None) -> LanguageModel:
    """A model of these sizes with random weights; by default GPT-2 small's on a GPU, and smaller ones on a CPU.

    Weights are drawn on the device, so that those of 8B take seconds on a GPU; so they differ from device to device.

    Args:
        device: where it is made.
        dtype: of its weights.
        seed: of the weights.
        cfg: a family's config; `published_config` has those of published models.
    """
    if cfg is None:
        sizes = type(published_config("distilgpt2"))  # a config whose defaults are the sizes of GPT-2 small
        cfg = sizes(**SMALL) if device.type == "cpu" else sizes()
    family = next(one for one in families().values() if one.config is type(cfg))
    with torch.device("meta"):
        model: Any = family.model(cfg)
    model = model.to(dtype).to_empty(device=device).eval()
    generator = torch.Generator(device).manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.normal_(0, STD, generator=generator)
            else:
                weight.fill_(0 if name.endswith("bias") else 1)
    model.name = f"{type(model).__name__} of {cfg.n_layers} layers of {cfg.d_model} with random weights"
    return model


def published_config(name: str) -> Any:
    """The config of a published model by its short name, without a file or a network."""
    fields = PUBLISHED[name].fields
    return families()[fields["model_type"]].config.from_hf(fields)

"""Every family compared with `transformers`: how far apart, and how fast: python benchmarks/families.py --help

    python benchmarks/families.py --dataset data/sst2 --tokenizer TOKENIZER --texts 1000

Models of about a hundred million random weights read SST-2's phrases as token ids, last token, every layer. Both sides
read the same folder and keep the same hidden states without computing the head; `transformers` in batches of 32, padded
on the right, in the order of the data and sorted by length. A round is one run of each; ratios are taken round by
round, then their median. The error is max |a - b| / max |b| over the texts, in the worst layer.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from texts import Texts, neighbours, sst2
from torch import Tensor

import probekit as pk
from probekit.models.base import LanguageModel
from probekit.models.families import family_of
from probekit.models.families.bert import Bert, BertConfig
from probekit.models.families.gpt2 import GPT2, GPT2Config
from probekit.models.families.llama import Llama, LlamaConfig
from probekit.models.families.transformer import Transformer, TransformerConfig
from probekit.models.weights import save_hf
from probekit.tasks import Task

D_VOCAB, START, BATCH = 50257, 50256, 32
LLAMA: dict[str, Any] = {"d_model": 768, "n_heads": 12, "n_kv_heads": 4, "d_head": 64, "d_mlp": 2048, "n_layers": 12}
PAIRS: dict[str, Any] = {"d_model": 512, "n_heads": 8, "n_decoder_heads": 8, "d_mlp": 2048, "d_decoder_mlp": 2048}
IDS: dict[str, Any] = {"pad_token_id": START, "eos_token_id": 0, "decoder_start_token_id": START}
MADE: dict[str, Callable[[], LanguageModel]] = {
    "gpt2": lambda: GPT2(GPT2Config()),
    "llama": lambda: Llama(LlamaConfig(**LLAMA, n_ctx=512, d_vocab=D_VOCAB)),
    "bert": lambda: Bert(BertConfig(d_vocab=D_VOCAB)),
    "encoder": lambda: Transformer(
        TransformerConfig(**PAIRS, n_layers=6, n_decoder_layers=6, n_ctx=512, d_vocab=D_VOCAB, **IDS)
    ),
}
MADE["decoder"] = MADE["encoder"]


class Theirs:
    """Hidden states of `transformers` at the last real token, [N, places, D]."""

    def __init__(self, which: str, model: Any, texts: Texts):
        self.which, self.texts = which, texts
        self.model = model.get_encoder() if which == "encoder" else getattr(model, "bert", model.base_model)

    def __call__(self, order: np.ndarray) -> Tensor:
        found: list[Any] = [None] * len(self.texts)
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            for row, states in zip(rows, self._batch([self.texts[i] for i in rows]), strict=True):
                found[row] = states
        return torch.stack(found)

    @torch.inference_mode()
    def _batch(self, texts: Texts) -> Tensor:
        tokens, mask = _padded(texts)
        inputs = {"input_ids": tokens, "attention_mask": mask, "output_hidden_states": True}
        last = mask.sum(1) - 1
        if self.which == "decoder":
            targets, target_mask = _padded([[START, *ids] for ids in texts])
            inputs |= {"decoder_input_ids": targets, "decoder_attention_mask": target_mask}
            last, output = target_mask.sum(1) - 1, self.model(**inputs).decoder_hidden_states
        else:
            output = self.model(**inputs).hidden_states
        return torch.stack([states[torch.arange(len(texts)), last] for states in output], 1)


def _padded(texts: Texts) -> tuple[Tensor, Tensor]:
    width = max(map(len, texts))
    tokens = torch.tensor([ids + [0] * (width - len(ids)) for ids in texts])
    return tokens, torch.tensor([[1] * len(ids) + [0] * (width - len(ids)) for ids in texts])


def ours(which: str, model: LanguageModel, texts: Texts) -> Callable[[], Tensor]:
    """The same from `pk.extract`; GPT-2 and Llama end with their final norm, as `hidden_states` do."""
    splits, labels = np.full(len(texts), "train"), np.zeros(len(texts), dtype=np.int64)
    targets = [[START, *ids] for ids in texts]
    task = Task("texts", texts, {"none": labels}, {"none": ["none"]}, splits, "none", targets=targets)
    point = f"{which}.resid_pre" if which in ("encoder", "decoder") else "resid_pre"
    end = ["ln_final"] if model.output_point == "resid_post" else []

    def run() -> Tensor:
        acts = pk.extract(model, task, points=[point, *end], progress=False)
        places = [place for place in acts if place[0] != "resid_post"]
        return torch.stack([acts[place] for place in places], 1)

    return run


def timed(run: Callable[[], Tensor]) -> tuple[float, Tensor]:
    start = time.perf_counter()
    x = run()
    return time.perf_counter() - start, x


def measure(which: str, texts: Texts, rounds: int) -> str:
    """One line of the table."""
    with tempfile.TemporaryDirectory() as tmp:
        save_hf(MADE[which]().init_weights(0), tmp)
        model = pk.load_model(tmp, device="cpu")
        hf_model = family_of(model.cfg).hf_model(model.cfg)
        assert hf_model
        theirs = getattr(transformers, hf_model.model).from_pretrained(Path(tmp)).eval()
    reader, own = Theirs(which, theirs, texts), ours(which, model, texts)
    lengths = np.array([len(ids) for ids in texts])
    in_order, in_length = np.arange(len(texts)), np.argsort(lengths, kind="stable")
    own()  # warm
    ratios, error = [], 0.0
    for _ in range(rounds):
        seconds, x = timed(own)
        ordered, y = timed(lambda: reader(in_order))
        sorted_seconds, _ = timed(lambda: reader(in_length))
        ratios.append((ordered / seconds, sorted_seconds / seconds, lengths.sum() / seconds))
        worst = [(x[:, i] - y[:, i]).abs().max() / y[:, i].abs().max() for i in range(x.shape[1])]
        error = max(error, float(max(worst)))
    order, by_length, speed = (statistics.median(column) for column in zip(*ratios, strict=True))
    size = sum(p.numel() for p in model.parameters()) / 1e6
    return f"| {which} | {size:.0f}M | {error:.1e} | {speed:,.0f} | {order:.1f} | {by_length:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="sst2")
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder of GPT-2's tokenizer")
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--families", default=",".join(MADE))
    args = parser.parse_args()
    texts = neighbours(sst2(args.dataset, args.tokenizer), args.texts, runs=10)
    print("| family | weights | worst layer | tokens/s | x in order | x sorted |\n|---|---|---|---|---|---|")
    for which in args.families.split(","):
        print(measure(which, texts, args.rounds), flush=True)


if __name__ == "__main__":
    main()

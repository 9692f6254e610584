"""`extract(generate=...)` beside `transformers`' generate with forward hooks: python benchmarks/generate.py

Both let the same weights continue the same prompts, and keep the mean of each block's output over the generated tokens.
Theirs hooks every block while it writes, so that it lacks the last token, which it never runs; ours writes first and
then runs the whole texts. Random weights, prompts of random ids of uneven lengths, greedy, float32 on the CPU; theirs
in batches of 32 sorted by length, with their cache. "ends" stops at any of 2% of the vocabulary, so that texts end at
different lengths. The two run in turn; the ratio is the median of the pairs', above 1 where ours is faster. Both must
write the same tokens, and their means must agree.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from probekit.models import load_model
from probekit.verbs.extract import extract

SHAPES = {"tiny": {"n_embd": 64, "n_head": 4, "n_layer": 4, "vocab_size": 5000, "n_positions": 256}, "gpt2": {}}
BATCH, PROMPT = 32, (4, 60)  # texts at once, tokens of a prompt

Made = tuple[list[list[int]], list[torch.Tensor]]  # new tokens of each text, and their means [L, D]


def by_theirs(model: Any, prompts: list[list[int]], new: int, stops: list[int]) -> Made:
    """Generate in padded batches, sorted by length, with a hook on every block."""
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    tokens: list[Any] = [None] * len(prompts)
    means: list[Any] = [None] * len(prompts)
    for start in range(0, len(order), BATCH):
        rows = order[start : start + BATCH]
        width = max(len(prompts[i]) for i in rows)
        ids = torch.tensor([[0] * (width - len(prompts[i])) + prompts[i] for i in rows])
        mask = torch.tensor([[0] * (width - len(prompts[i])) + [1] * len(prompts[i]) for i in rows])
        kept: list[list[torch.Tensor]] = [[] for _ in model.transformer.h]
        hooks = [
            block.register_forward_hook(
                lambda _, __, out, at=at: at.append((out[0] if isinstance(out, tuple) else out)[:, -1])
            )
            for block, at in zip(model.transformer.h, kept, strict=True)
        ]
        how = {"max_new_tokens": new, "do_sample": False, "pad_token_id": 0}
        how |= {"eos_token_id": stops} if stops else {"min_new_tokens": new}
        made = model.generate(ids, attention_mask=mask, **how)[:, width:].tolist()
        for hook in hooks:
            hook.remove()
        x_LBTD = torch.stack([torch.stack(steps, 1) for steps in kept])[:, :, 1:]  # the first is of the prompt's last
        for b, i in enumerate(rows):
            n = next((k for k, token in enumerate(made[b]) if token in stops), new)
            tokens[i], means[i] = made[b][:n], x_LBTD[:, b, : n if n < new else n - 1].mean(1)
    return tokens, means


def by_ours(model: Any, prompts: list[list[int]], new: int, stops: list[int]) -> Made:
    """Write, run the whole texts, and keep all generated tokens."""
    acts = extract(
        model, prompts, generate=new, position="mean@generated", points="resid_post", stop_tokens=stops,
        on_bad_row="skip", progress=False,
    )  # fmt: skip
    task: Any = acts.task
    ids, count = task.inputs, task.generated.tolist()
    x_NLD = torch.stack([acts[place] for place in acts], 1)
    made: dict[int, Any] = {int(name): i for i, name in enumerate(acts.task.ids)}
    tokens = [ids[made[i]][-count[made[i]] :] if i in made else [] for i in range(len(prompts))]
    return tokens, [x_NLD[made[i]] if i in made else torch.empty(0) for i in range(len(prompts))]


def timed(run: Callable[..., Made], *args: Any) -> tuple[float, Made]:
    """Seconds, and what was made."""
    start = time.perf_counter()
    made = run(*args)
    return time.perf_counter() - start, made


def check(theirs: Made, ours: Made, new: int) -> None:
    """Both wrote the same, and the means agree where theirs has all tokens."""
    assert theirs[0] == ours[0]
    for tokens, a, b in zip(theirs[0], theirs[1], ours[1], strict=True):
        if 0 < len(tokens) < new:
            assert (a - b).abs().max() <= 1e-4 * b.abs().max()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--texts", type=int, default=128)
    parser.add_argument("--new", type=int, default=32)
    parser.add_argument("--shape", choices=SHAPES, action="append")
    args = parser.parse_args()
    for shape in args.shape or SHAPES:
        torch.manual_seed(0)
        theirs: Any = GPT2LMHeadModel(GPT2Config(**SHAPES[shape])).eval()
        with tempfile.TemporaryDirectory() as folder:
            theirs.save_pretrained(folder)
            ours = load_model(folder, device="cpu")
        rng, vocab = np.random.default_rng(0), theirs.config.vocab_size
        prompts = [rng.integers(1, vocab, size=rng.integers(*PROMPT)).tolist() for _ in range(args.texts)]
        some = rng.choice(np.arange(1, vocab), size=vocab // 50, replace=False).tolist()
        for what, stops in (("full", []), ("ends", some)):
            case = prompts, args.new, stops
            check(by_theirs(theirs, *case), by_ours(ours, *case), args.new)  # warm
            pairs = [(timed(by_theirs, theirs, *case)[0], timed(by_ours, ours, *case)[0]) for _ in range(args.runs)]
            their_s, our_s = (statistics.median(column) for column in zip(*pairs, strict=True))
            ratio = statistics.median(a / b for a, b in pairs)
            print(f"{shape} {what}: transformers {their_s:.2f} s, ours {our_s:.2f} s, ratio {ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()

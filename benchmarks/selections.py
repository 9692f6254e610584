"""How long the plan of chats takes at several selections: python benchmarks/selections.py [CHATS]

Chats of two messages with 40 words each, cut by a byte-level BPE trained on them. `last` needs token ids only; a role
and `all` need the characters of every token too, for which the texts are tokenised a second time.
"""

import sys
import time
from typing import Any

import numpy as np
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

import probekit as pk
from probekit.activations import plan_extraction
from probekit.models.families.gpt2 import GPT2, GPT2Config
from probekit.models.tokenizer import Tokenizer
from probekit.options import ExtractOptions
from probekit.tasks.fields import Region

WORDS = ["the", "cats", "do", "not", "see", "dogs", "yes", "no", "she", "who", "asked", "about", "answers", "again"]
LENGTH, RUNS = 40, 3


def make_task(n: int) -> pk.Task:
    """Rendered chats, and where the contents of their messages are."""
    rng = np.random.default_rng(0)
    texts, regions = [], []
    for _ in range(n):
        text, own = "", []
        for role in ("user", "assistant"):
            content = " ".join(rng.choice(WORDS, LENGTH))
            text += f"<|{role}|>\n"
            own.append(Region(role, len(text), len(text) + len(content)))
            text += content + "\n"
        texts.append(text)
        regions.append(own)
    return pk.Task("chats", texts, regions=regions)


def make_model(texts: list[str]) -> GPT2:
    """A small model with a tokenizer of these texts."""
    backend: Any = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=400, show_progress=False))
    sizes: dict[str, Any] = {"d_model": 16, "n_heads": 2, "d_mlp": 32, "n_layers": 2, "n_ctx": 256}
    model = GPT2(GPT2Config(**sizes, d_vocab=len(backend.get_vocab()))).init_weights(0)
    model.tokenizer = Tokenizer(backend)
    return model


def main() -> None:
    """Print the processor time of each plan, the least of a few runs."""
    task = make_task(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
    texts: Any = task.inputs
    model = make_model(texts[:100])
    for position in ("last", "last@assistant", "last,last@assistant", "all"):
        options = ExtractOptions(position=position.split(",") if "," in position else position)
        seconds, tokens = [], 0
        for _ in range(RUNS):
            start = time.process_time()
            tokens = len(plan_extraction(model, task, options).sequences.flat)
            seconds.append(time.process_time() - start)
        print(f"{position:<20} {min(seconds):6.2f} s   {len(task):,} chats, {tokens:,} tokens")


if __name__ == "__main__":
    main()

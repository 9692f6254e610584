"""A tiny run of the training loop, which tests stop, kill and take up again."""

import random

from probekit.models.examples import Example
from probekit.models.families.gpt2 import GPT2, GPT2Config
from probekit.options import TrainingSettings

CFG = GPT2Config(d_model=16, n_heads=2, d_mlp=32, n_layers=2, n_ctx=8, d_vocab=11, bos_token_id=0)
SETTINGS = TrainingSettings(steps=24, batch_size=4, learning_rate=3e-3, warm_up_steps=5, seed=3)


def new_model() -> GPT2:
    model = GPT2(CFG).init_weights(3)
    assert sum(p.numel() for p in model.parameters()) < 10_000
    return model


def draw(step: int) -> list[Example]:
    """Texts of different lengths, where each token is the one before plus two."""
    drawn = random.Random(step)
    rows = [
        [(start + 2 * i) % 11 for i in range(drawn.randint(3, 9))] for start in (drawn.randrange(11) for _ in range(4))
    ]
    return [Example(row[:-1], row[1:]) for row in rows]

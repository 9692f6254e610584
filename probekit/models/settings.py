"""How each world's model is trained, and a text that it can read; nothing here needs torch."""

from probekit.errors import UsageError, nearest
from probekit.options import TrainingSettings

WORLD_SETTINGS = {
    "counting-gpt": TrainingSettings(steps=400, batch_size=64, learning_rate=3e-3, warm_up_steps=50),
    "ranking-transformer": TrainingSettings(steps=1500, batch_size=64, learning_rate=2e-3, warm_up_steps=100),
    "spans-bert": TrainingSettings(steps=1500, batch_size=64, learning_rate=2e-3, warm_up_steps=100),
    "dialogue-gpt": TrainingSettings(steps=1800, batch_size=64, learning_rate=3e-3, warm_up_steps=50),
    "brackets-gpt": TrainingSettings(steps=600, batch_size=64, learning_rate=3e-3, warm_up_steps=50),
}
"""Name of a world's model -> how it is trained."""

WORLD_PROMPTS = {
    "counting-gpt": "34",
    "ranking-transformer": "5 3 9 3 4",
    "spans-bert": "7 8 [MASK] 10 [MASK]",
    "dialogue-gpt": "3 + 4 - 2 <sep>",
    "brackets-gpt": "( ( ) ( ( ) ) ) ?",
}
"""Name of a world's model -> a text that it reads."""


def world_name(name: str) -> str:
    """The name of the model, from that or from its task's: "counting" -> "counting-gpt".

    Raises:
        UsageError: there is none of this name.
    """
    known = {**{model: model for model in WORLD_SETTINGS}, **{model.split("-")[0]: model for model in WORLD_SETTINGS}}
    if name not in known:
        raise UsageError(f"no world {name!a}; {nearest(str(name), known)}")
    return known[name]

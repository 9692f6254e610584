"""Models that are made on this machine when they are first loaded, such as those of the synthetic worlds.

`load_model` looks a name up in `MODEL_MAKERS` first. A package that makes models adds them there, so that `models` need
not know it. Nothing here or in what is added needs torch before a model is made.
"""

from pathlib import Path
from typing import Protocol


class ModelMaker(Protocol):
    """Gives the folder of a model, in Hugging Face format."""

    def __call__(self, name: str, weights: bool = True, progress: bool | None = None) -> Path:
        """The folder; the model is made first if it is not there yet.

        Args:
            name: the model's.
            weights: False asks for config.json and the tokenizer alone, which must be quick.
            progress: a line and a bar on stderr; None shows the bar only on a terminal, False shows neither.
        """
        ...


MODEL_MAKERS: dict[str, ModelMaker] = {}
"""Name of a model -> what makes it."""

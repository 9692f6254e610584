"""What a task's `info` says that more than one module writes or reads."""

from collections.abc import Mapping
from typing import Any

ASKED = "asked"  # the options of `load_task` that differ from their defaults, as the command line has them
CARVED_FROM_TRAIN = "carved_from_train"  # the splits that were carved when the task was made
VALIDATION_CARVED = "validation_carved"  # how validation was carved later: fraction and seed
IN_MEMORY = "in_memory"  # True for data that was passed as a Python object
LABEL_SETS = "label_sets"  # label set -> where its labels come from, of those that were joined later
UNLABELLED = "unlabelled"  # label set -> how many examples have no label in it, which is written -1, or NaN
CHAT = "chat"  # how chats became texts: the sha256 of the template, where it is from, the generation prompt
GENERATE = "generate"  # how the model continued the texts, and how many tokens it wrote
READ_AS = "read_as"  # how a file was read that does not say so itself, in words
PROMPT_CHARACTERS = "prompt_characters"  # the column of a text's characters before those that the model wrote
NO_TEXTS = "no_texts"  # True where the inputs are only names of rows


def origin_of_splits(info: Mapping[str, Any]) -> str:
    """Where a task's splits come from, in words; "" where each has a file of its own."""
    carved = info.get(CARVED_FROM_TRAIN)
    parts = [info.get("splits_from"), f"{' and '.join(carved)} carved from train" if carved else ""]
    return "; ".join(part for part in parts if part)

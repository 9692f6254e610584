"""The parts of a world, and tools for the worlds' files: draws, splits by checksum, tasks, examples, tokenizers.

A grammar is a function (generator, split) -> one text of the split; `draws` calls it n times. torch is imported only
when a model is needed.
"""

import hashlib
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing

from probekit.errors import DataError, UsageError, nearest
from probekit.models.config_fields import deciding_fields
from probekit.models.examples import IGNORE, Example
from probekit.models.tokenizer import Tokenizer
from probekit.options import TrainingSettings
from probekit.tasks.base import SPLITS, Task

if TYPE_CHECKING:
    from probekit.models.families.gpt2 import GPT2Config


EOS = "<eos>"
QUARTERS = ("train", "train", "validation", "test")
"""Half of every world is for training, a quarter each for validation and test."""

Seed = int | Sequence[int]
Drawn = TypeVar("Drawn")


@dataclass(frozen=True)
class World:
    """A synthetic language and the model that learns it.

    Attributes:
        name: the model's name.
        task: the name of its task.
        vocabulary: all words, by token id.
        make_config: returns the model's config.
        settings: of the model's training.
        examples: (split, n, seed) -> n examples, or all where there are fewer: the model learns from those of "train",
            and is tested on those of "test".
        prompt: a text that the model can read.
        context: the tokenizer's BOS, or the words before and after every text ([CLS] and [SEP]).
        special: words that the tokenizer knows as special tokens, with or without blanks around them.
        special_texts: "bos_token" and "eos_token" -> the words, for chat templates.
        chat_templates: name -> a chat template of the tokenizer.
    """

    name: str
    task: str
    vocabulary: list[str]
    make_config: Callable[[], Any]
    settings: TrainingSettings
    examples: Callable[[str, int, Seed], list[Example]]
    prompt: str
    context: tuple[str, ...] = (EOS,)
    special: tuple[str, ...] = ()
    special_texts: Mapping[str, str] = field(default_factory=dict)
    chat_templates: Mapping[str, str] = field(default_factory=dict)


def with_config(world: World, **changes: Any) -> World:
    """The world with some fields of its model's config changed, such as `positions="sinusoidal"`.

    Raises:
        UsageError: the config has no such field, or refuses the value.
    """
    config = world.make_config()
    if unknown := changes.keys() - asdict(config).keys():
        name = min(unknown)
        raise UsageError(f"the config of {world.name} has no field {name!a}; {nearest(name, asdict(config))}")
    try:
        config = replace(config, **changes)
    except DataError as error:
        raise UsageError(str(error)) from None
    return replace(world, make_config=lambda: config)


def tokenizer_of(world: World) -> Tokenizer:
    """A tokenizer that splits at white space; a word outside the vocabulary is an error, not <unk>."""
    backend = Backend(WordLevel({word: i for i, word in enumerate(world.vocabulary)}))
    backend.pre_tokenizer = WhitespaceSplit()
    backend.add_special_tokens(list(world.special))
    ids = word_ids(world.vocabulary, world.context)
    if len(ids) == 1:
        return Tokenizer(backend, *ids, chat_templates=world.chat_templates, special_texts=world.special_texts)
    first, last = world.context
    special = list(zip(world.context, ids, strict=True))
    backend.post_processor = TemplateProcessing(f"{first} $A {last}", None, special)
    return Tokenizer(backend, ids[0], sep_token_id=ids[1])


def key_of(world: World) -> str:
    """The name and a digest of everything that decides the trained model: vocabulary, config, settings, examples."""
    parts: list[Any] = [world.vocabulary, deciding_fields(world.make_config()), asdict(world.settings)]
    parts += [[list(world.special), dict(world.chat_templates)]] if world.chat_templates else []
    first = json.dumps([asdict(example) for example in world.examples("train", 8, [world.settings.seed, 0])])
    return f"{world.name}-{hashlib.sha256((json.dumps(parts, sort_keys=True) + first).encode()).hexdigest()[:8]}"


def word_ids(vocabulary: list[str], words: Sequence[str]) -> list[int]:
    """The id of each word."""
    return [vocabulary.index(word) for word in words]


def next_word_example(vocabulary: list[str], words: Sequence[str], n_ignored: int = 0) -> Example:
    """All words but the last as input, each one's successor as its target; the first `n_ignored` targets are IGNORE."""
    ids = word_ids(vocabulary, words)
    return Example(ids[:-1], [IGNORE] * n_ignored + ids[1 + n_ignored :])


def gpt2_config(vocabulary: list[str], **shape: Any) -> "GPT2Config":
    """A GPT-2 with these words, whose BOS is <eos>, and an MLP of the usual width."""
    from probekit.models.families.gpt2 import GPT2Config

    return GPT2Config(d_mlp=4 * shape["d_model"], d_vocab=len(vocabulary), bos_token_id=vocabulary.index(EOS), **shape)


def split_by_checksum(key: str) -> str:
    """The split of everything that has this key; it depends on nothing else, so all seeds agree."""
    return QUARTERS[zlib.crc32(key.encode()) % 4]


def check_split(split: str) -> None:
    """Refuse a name that is not a split.

    Raises:
        UsageError: it is not train, validation or test.
    """
    if split not in SPLITS:
        raise UsageError(f"no split {split!r}; {nearest(split, SPLITS)}")


def choose(rng: np.random.Generator, choices: Sequence[Drawn]) -> Drawn:
    """One of the choices, all equally likely."""
    return choices[int(rng.integers(len(choices)))]


def draws(
    one: Callable[[np.random.Generator, str], Drawn], n: int, seed: Seed = 0, split: str = "train"
) -> list[Drawn]:
    """`n` independent draws of one split.

    Raises:
        UsageError: no such split.
    """
    check_split(split)
    rng = np.random.default_rng(seed)
    return [one(rng, split) for _ in range(n)]


def draw_splits(several: Callable[[int, Seed, str], list[Drawn]], n: tuple[int, int, int], seed: int) -> list[Drawn]:
    """`n` draws for training, validation and test; each split has its own random generator."""
    return [
        one for k, (split, size) in enumerate(zip(SPLITS, n, strict=True)) for one in several(size, [seed, k], split)
    ]


def make_task(
    name: str,
    n: tuple[int, int, int],
    seed: int,
    labels: Mapping[str, tuple[Sequence[Any], Sequence[str]]],
    **fields: Any,
) -> Task:
    """The task of what `draw_splits` drew.

    Args:
        name: of the task.
        n: as there.
        seed: as there.
        labels: label set -> the class of each text, and the classes' names; without names, the numbers of a regression.
            The first is the target.
        fields: the other fields of `Task`.
    """
    return Task(
        name=name,
        splits=np.repeat(SPLITS, n),
        ids=[f"{split}:{i}" for split, size in zip(SPLITS, n, strict=True) for i in range(size)],
        info={"source": name, "seed": seed},
        labels={of: np.array(each, dtype=np.int64 if names else np.float64) for of, (each, names) in labels.items()},
        label_names={of: list(names) for of, (_, names) in labels.items()},
        target=next(iter(labels)),
        **fields,
    )


def group_numbers(keys: Sequence[Any]) -> np.ndarray:
    """Equal numbers for equal keys: the groups [N] of a task."""
    return np.unique(list(keys), return_inverse=True)[1].astype(np.int64)

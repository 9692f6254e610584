"""The parts of a world, and tools for the worlds' files. torch is imported only when a model is needed."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing

from probekit.errors import DataError, UsageError, nearest
from probekit.models.config_fields import deciding_fields
from probekit.models.examples import IGNORE, Example
from probekit.models.tokenizer import Tokenizer
from probekit.options import TrainingSettings
from probekit.worlds.grammar import EOS, Seed

if TYPE_CHECKING:
    from probekit.models.families.gpt2 import GPT2Config


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


def with_settings(world: World, given: Mapping[str, Any]) -> World:
    """The world with other settings of its training, by their names; fewer steps shorten the warm-up.

    Raises:
        UsageError: a setting out of range.
    """
    usual = world.settings
    fewer = {"warm_up_steps": min(usual.warm_up_steps, max(given["steps"], 0))} if "steps" in given else {}
    return replace(world, settings=replace(usual, **{**fewer, **given}))


def tokenizer_of(world: World) -> Tokenizer:
    """A tokenizer that splits at white space; a word outside the vocabulary is an error, not <unk>."""
    backend = word_level(world.vocabulary)
    backend.add_special_tokens(list(world.special))
    ids = word_ids(world.vocabulary, world.context)
    if len(ids) == 1:
        return Tokenizer(backend, *ids, chat_templates=world.chat_templates, special_texts=world.special_texts)
    first, last = world.context
    special = list(zip(world.context, ids, strict=True))
    backend.post_processor = TemplateProcessing(f"{first} $A {last}", None, special)
    return Tokenizer(backend, ids[0], sep_token_id=ids[1])


def word_level(vocabulary: Sequence[str]) -> Backend:
    """What splits a text at white space; the id of a word is its place in the vocabulary."""
    backend = Backend(WordLevel({word: i for i, word in enumerate(vocabulary)}))
    backend.pre_tokenizer = WhitespaceSplit()
    return backend


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

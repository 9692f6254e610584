"""The world `ranking`: for each item of a list, how many earlier items are not larger.

    5 3 9 3 4 -> 0 0 2 1 2

For an encoder-decoder. The list is the source; the decoder starts with <bos> and says the ranks in order, then <eos>.
A training list has 5 to 8 items, all lengths equally likely; each item is 0 to 15, all equally likely and independent,
so items repeat.

Splits separate lists by checksum: half for training, a quarter each for validation and test.

The probed text is a list, read at one of its items. `targets` holds the decoder's input, "<bos>" and the ranks of all
items but the last; the token at the same place there is the one whose output is the item's rank. The label set is
`rank`. Three things are drawn first, each uniform given those before: the length from 5 to 8, the place (from 0) from 4
to the last, the rank from 0 to 4. Then lists of the split are drawn until the item at that place has that rank. So the
place is independent of the rank.
"""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from probekit.models.examples import Example
from probekit.options import TrainingSettings
from probekit.tasks.base import Task
from probekit.worlds.definition import World, next_word_example, word_ids
from probekit.worlds.grammar import EOS, Seed, draw_splits, draws, make_task, split_by_checksum

if TYPE_CHECKING:
    from probekit.models.families.transformer import TransformerConfig

BOS, PAD = "<bos>", "<pad>"
SHORTEST, LONGEST, LARGEST = 5, 8, 15
HIGHEST = 4  # of the probed ranks
VOCABULARY: list[str] = [PAD, BOS, EOS, *map(str, range(LARGEST + 1))]
"""All words; items and ranks share the numbers."""


class ListAndPlace(NamedTuple):
    """A list, and the place of the item that is read."""

    items: list[int]
    place: int


def ranks(items: list[int]) -> list[int]:
    """For each item, the number of earlier items that are not larger."""
    return [_rank(items, k) for k in range(len(items))]


def _rank(items: list[int], place: int) -> int:
    return sum(earlier <= items[place] for earlier in items[:place])


def spaced(items: list[int]) -> str:
    """Items or ranks as words with blanks between them."""
    return " ".join(map(str, items))


def item_list(rng: np.random.Generator, split: str) -> list[int]:
    """A list of one split."""
    length = int(rng.integers(SHORTEST, LONGEST + 1))
    while _split(items := _drawn(rng, length)) != split:
        pass
    return items


def ranking(n: tuple[int, int, int] = (4000, 1000, 2000), seed: int = 0) -> Task:
    """The task with `n` texts for training, validation and test; the same arguments give the same task."""
    drawn = draw_splits(partial(draws, _list_and_place), n, seed)
    return make_task(
        "ranking",
        n,
        seed,
        {"rank": ([_rank(one.items, one.place) for one in drawn], [str(rank) for rank in range(HIGHEST + 1)])},
        inputs=[spaced(one.items) for one in drawn],
        targets=[f"{BOS} {spaced(ranks(one.items)[:-1])}" for one in drawn],
        position=np.array([one.place for one in drawn], dtype=np.int64),
    )


def _list_and_place(rng: np.random.Generator, split: str) -> ListAndPlace:
    length = int(rng.integers(SHORTEST, LONGEST + 1))
    place, rank = int(rng.integers(HIGHEST, length)), int(rng.integers(HIGHEST + 1))
    while _rank(items := _drawn(rng, length), place) != rank or _split(items) != split:
        pass
    return ListAndPlace(items, place)


def _drawn(rng: np.random.Generator, length: int) -> list[int]:
    return rng.integers(0, LARGEST + 1, length).tolist()


def _split(items: list[int]) -> str:
    return split_by_checksum(spaced(items))


def examples(split: str, n: int, seed: Seed) -> list[Example]:
    """`n` lists of a split as sources, with their ranks as targets."""
    made = []
    for items in draws(item_list, n, seed, split):
        target = next_word_example(VOCABULARY, [BOS, *map(str, ranks(items)), EOS])
        made.append(replace(target, source=word_ids(VOCABULARY, [*map(str, items)])))
    return made


def model_config() -> "TransformerConfig":
    """An encoder-decoder of two layers each."""
    from probekit.models.families.transformer import TransformerConfig

    bos = VOCABULARY.index(BOS)
    return TransformerConfig(
        d_model=64,
        n_heads=4,
        n_decoder_heads=4,
        d_mlp=256,
        d_decoder_mlp=256,
        n_layers=2,
        n_decoder_layers=2,
        n_ctx=16,
        d_vocab=len(VOCABULARY),
        positions="learned",
        init_std=0.1,
        pad_token_id=VOCABULARY.index(PAD),
        eos_token_id=VOCABULARY.index(EOS),
        bos_token_id=bos,
        decoder_start_token_id=bos,
    )


WORLD = World(
    name="ranking-transformer",
    task="ranking",
    vocabulary=VOCABULARY,
    make_config=model_config,
    settings=TrainingSettings(steps=1500, batch_size=64, learning_rate=2e-3, warm_up_steps=100),
    examples=examples,
    prompt="5 3 9 3 4",
    context=(BOS,),
)
TASKS = {"ranking": ranking}

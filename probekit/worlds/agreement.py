"""The world `agreement`: does a verb agree with its subject across the nouns between them?

After Linzen, Dupoux and Goldberg (2016, "Assessing the ability of LSTMs to learn syntax-sensitive dependencies"). Its
model, `agreement-gpt2`, comes with the package; `experiments/train_agreement_gpt2.py` trained it.

The grammar, with the probability of every choice (choices without one are uniform; all are independent of each other
unless stated otherwise):

    depth     d = 0, 1, 2 or 3 attractors (nouns between subject and verb), 1/4 each
    number    of the subject: singular or plural, 1/2 each; of each attractor likewise, independently

    sentence  = subject gap verb predicate "."
    subject   = np                              any of the 20 nouns, in the subject's number
    gap       = adverb                          when d = 0, so that the word before the verb is never the subject
              | pp * (d - 1), then pp or rc     when d > 0; the last phrase is a pp or an rc, 1/2 each
    pp        = preposition np                  any noun, in the attractor's number
    rc        = "that" np embedded-verb         one of the 10 people; the embedded verb agrees with *its own* noun
    np        = "the" [adjective] noun          with an adjective 1/2, without 1/2
    verb      = one of 6 verbs, in the form that agrees with the *subject*
    predicate = one of 8

as in "the keys near the old door that the pilots like are lost .". The probed text ends before the verb and is read at
its last word: an adverb, an attractor, or an attractor's own verb. Every word but the subject and the verb is drawn
independently of the subject's number. So the word that is read (and any bag of words without the subject) carries no
information about it: a probe succeeds only where the model has carried the number there.

Label sets: `number` (the target: singular, plural), `attractor` (none, singular, plural: the last attractor's number)
and `depth` (0 to 3).

Splits separate complete *skeletons*, the sentence before the verb without its numbers: half of all skeletons for
training, a quarter each for validation and test, by checksum. So no text of one split, nor the same text in another
number, is in another split, whatever the seed; the skeleton is the group. Within each split depth and numbers have
exactly the probabilities above; words have them over the complete language.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from probekit.tasks.base import Task
from probekit.worlds.grammar import EOS, draw_splits, draws, group_numbers, make_task, split_by_checksum

NUMBERS = ("singular", "plural")
MAX_DEPTH = 3

Forms = tuple[str, str]  # singular, plural
Choice = TypeVar("Choice")
PEOPLE: tuple[Forms, ...] = tuple(
    (noun, noun + "s")
    for noun in ("pilot", "doctor", "teacher", "farmer", "baker", "sailor", "artist", "singer", "girl", "boy")
)
THINGS: tuple[Forms, ...] = tuple(
    (noun, noun + "s")
    for noun in ("key", "door", "lamp", "table", "boat", "letter", "coat", "stone", "wheel", "picture")
)
NOUNS = PEOPLE + THINGS
VERB_FORMS: tuple[Forms, ...] = (
    ("is", "are"),
    ("was", "were"),
    ("seems", "seem"),
    ("looks", "look"),
    ("stays", "stay"),
    ("remains", "remain"),
)
EMBEDDED_FORMS: tuple[Forms, ...] = tuple(
    (verb + "s", verb) for verb in ("like", "see", "know", "want", "find", "need")
)
ADJECTIVES = ("old", "new", "small", "big", "quiet", "strange", "famous", "plain", "heavy", "dark")
PREPOSITIONS = ("near", "behind", "beside", "below", "above", "by", "beyond", "against")
ADVERBS = ("often", "never", "always", "still", "now", "rarely", "usually", "sometimes")
PREDICATES = ("lost", "ready", "safe", "late", "cold", "wet", "strong", "alone")

_FORMS = [form for forms in (NOUNS, VERB_FORMS, EMBEDDED_FORMS) for pair in forms for form in pair]
VOCABULARY: list[str] = [EOS, "the", "that", ".", *ADJECTIVES, *PREPOSITIONS, *ADVERBS, *PREDICATES, *_FORMS]
"""All words. `<eos>` (id 0) follows the last word of a text."""


@dataclass(frozen=True)
class Sentence:
    """One sentence: its words, the index of its main verb, and its numbers (0 singular, 1 plural)."""

    words: tuple[str, ...]
    verb: int
    number: int
    attractors: tuple[int, ...]
    skeleton: str

    @property
    def text(self) -> str:
        """The complete sentence."""
        return " ".join(self.words)

    @property
    def prefix(self) -> str:
        """The words before the main verb: the probed text."""
        return " ".join(self.words[: self.verb])

    @property
    def depth(self) -> int:
        """The number of nouns between subject and verb."""
        return len(self.attractors)

    @property
    def wrong_verb(self) -> str:
        """The other form of the main verb, to test P(right form) > P(wrong form)."""
        right = self.words[self.verb]
        return next(pair[1 - self.number] for pair in VERB_FORMS if pair[self.number] == right)


SUBJECT = -1
Slot = tuple[Forms, int]  # a word's two forms, and whose number it has: SUBJECT's or the k-th attractor's


def sentence(rng: np.random.Generator) -> Sentence:
    """One sentence, drawn as the grammar above says."""
    depth = int(rng.random() * (MAX_DEPTH + 1))
    return _realise(rng, _skeleton(rng, depth), depth)


def sentences(n: int, seed: int = 0, split: str | None = None) -> list[Sentence]:
    """`n` independent sentences of one split, or of the complete language where it is None.

    Raises:
        UsageError: no such split.
    """
    if split is None:
        return draws(lambda rng, _: sentence(rng), n, seed)
    return draws(_sentence_of, n, seed, split)


def agreement(n: tuple[int, int, int] = (4000, 1000, 2000), seed: int = 0) -> Task:
    """The task with `n` texts for training, validation and test; the same arguments give the same task."""
    drawn = draw_splits(partial(draws, _sentence_of), n, seed)
    last = [s.attractors[-1] + 1 if s.attractors else 0 for s in drawn]
    return make_task(
        "agreement",
        n,
        seed,
        {
            "number": ([s.number for s in drawn], NUMBERS),
            "attractor": (last, ("none", *NUMBERS)),
            "depth": ([s.depth for s in drawn], [str(d) for d in range(MAX_DEPTH + 1)]),
        },
        inputs=[s.prefix for s in drawn],
        groups=group_numbers([s.skeleton for s in drawn]),
    )


def _sentence_of(rng: np.random.Generator, split: str) -> Sentence:
    """A sentence of one split. The depth is drawn first, so that all splits have the same depths."""
    depth = int(rng.random() * (MAX_DEPTH + 1))
    while split_by_checksum(_name(slots := _skeleton(rng, depth))) != split:
        pass
    return _realise(rng, slots, depth)


def _skeleton(rng: np.random.Generator, depth: int) -> list[Slot]:
    """Everything before the verb, without numbers."""
    slots = _np(rng, NOUNS, SUBJECT)
    if depth == 0:
        return [*slots, _plain(_pick(rng, ADVERBS))]
    for k in range(depth):
        if k == depth - 1 and rng.random() < 0.5:
            slots += [_plain("that"), *_np(rng, PEOPLE, k), (_pick(rng, EMBEDDED_FORMS), k)]
        else:
            slots += [_plain(_pick(rng, PREPOSITIONS)), *_np(rng, NOUNS, k)]
    return slots


def _np(rng: np.random.Generator, nouns: tuple[Forms, ...], owner: int) -> list[Slot]:
    adjective = [_plain(_pick(rng, ADJECTIVES))] if rng.random() < 0.5 else []
    return [_plain("the"), *adjective, (_pick(rng, nouns), owner)]


def _realise(rng: np.random.Generator, slots: list[Slot], depth: int) -> Sentence:
    """The sentence of a skeleton: draw the numbers, and only then choose the words' forms."""
    number, *attractors = (int(rng.random() < 0.5) for _ in range(depth + 1))
    numbers = (*attractors, number)  # so that numbers[SUBJECT] is the subject's
    words = [forms[numbers[owner]] for forms, owner in slots]
    rest = (_pick(rng, VERB_FORMS)[number], _pick(rng, PREDICATES), ".")
    return Sentence((*words, *rest), len(words), number, tuple(attractors), _name(slots))


def _name(slots: list[Slot]) -> str:
    return " ".join(forms[0] for forms, _ in slots)


def _plain(word: str) -> Slot:
    return (word, word), SUBJECT


def _pick(rng: np.random.Generator, choices: Sequence[Choice]) -> Choice:
    return choices[int(rng.random() * len(choices))]


TASKS = {"agreement": agreement}

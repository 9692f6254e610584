"""The built-in task: does a verb agree with its subject across the nouns between them?

After Linzen, Dupoux and Goldberg (2016, "Assessing the ability of LSTMs to learn syntax-sensitive dependencies").
The language is generated, so the truth is known. Its grammar, with the probability of every choice (choices without
one are uniform; all are independent of each other unless said otherwise):

    depth     d = 0, 1, 2 or 3 attractors (nouns between subject and verb), 1/4 each
    number    of the subject: singular or plural, 1/2 each; of each attractor the same, by its own coin

    sentence  = subject gap verb predicate "."
    subject   = np                              any of the 20 nouns, in the subject's number
    gap       = adverb                          when d = 0, so that the word before the verb is never the subject
              | pp * (d - 1), then pp or rc     when d > 0; the last phrase is a pp or an rc, 1/2 each
    pp        = preposition np                  any noun, in the attractor's number
    rc        = "that" np embedded-verb         one of the 10 people; the embedded verb agrees with *its own* noun
    np        = "the" [adjective] noun          with an adjective 1/2, without 1/2
    verb      = one of 6 verbs, in the form that agrees with the *subject*
    predicate = one of 8

as in "the keys near the old door that the pilots like are lost .". The text that is probed ends before the verb and is
read at its last word: an adverb, an attractor, or an attractor's own verb. Every word but the subject and the verb is
drawn without a look at the subject's number, so that the word that is read (and any bag of words that leaves out the
subject) says nothing of it: a probe succeeds only where the model carried the number there.

Label sets: `number` (the target: singular, plural), `attractor` (none, singular, plural: the last attractor's number)
and `depth` (0 to 3).

Splits hold apart whole *skeletons*, the sentence before the verb with its numbers taken off: 1/2 of all skeletons are
for training, 1/4 each for validation and test, by a checksum. So no text of one split, nor its twin in another number,
stands in another one, whatever the seed; the skeleton is the group. Depth and numbers have the above probabilities
within each split exactly; words have them over the whole language.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from probekit.errors import UsageError, nearest
from probekit.tasks.base import SPLITS, Task

EOS = "<eos>"
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
"""Every word of the language. `<eos>` (id 0) stands after the last word of a text."""


@dataclass(frozen=True)
class Sentence:
    """One sentence: its words, the index of its main verb, and the truth about it (0 singular, 1 plural)."""

    words: tuple[str, ...]
    verb: int
    number: int
    attractors: tuple[int, ...]
    skeleton: str

    @property
    def text(self) -> str:
        """The whole sentence, words parted by blanks."""
        return " ".join(self.words)

    @property
    def prefix(self) -> str:
        """The words before the main verb: the text that is probed."""
        return " ".join(self.words[: self.verb])

    @property
    def depth(self) -> int:
        """The number of nouns between subject and verb."""
        return len(self.attractors)

    @property
    def wrong_verb(self) -> str:
        """The other form of the main verb, to score P(right form) > P(wrong form)."""
        right = self.words[self.verb]
        return next(pair[1 - self.number] for pair in VERB_FORMS if pair[self.number] == right)


SUBJECT = -1
Slot = tuple[Forms, int]  # the two forms of a word, and whose number it takes: SUBJECT's or that of the k-th attractor


def sentence(rng: np.random.Generator) -> Sentence:
    """One sentence, drawn with the probabilities above."""
    depth = int(rng.random() * (MAX_DEPTH + 1))
    return _realise(rng, _skeleton(rng, depth), depth)


def sentences(n: int, seed: int = 0, split: str | None = None) -> list[Sentence]:
    """`n` independent sentences of the language, for a language model to learn from.

    With a `split` ("train", "validation", "test") only those whose skeleton is of that split.
    """
    if split is not None and split not in SPLITS:
        raise UsageError(f"no split {split!r}; {nearest(split, SPLITS)}")
    rng = np.random.default_rng(seed)
    return [sentence(rng) if split is None else _sentence_of(rng, split) for _ in range(n)]


def agreement(n: tuple[int, int, int] = (4000, 1000, 2000), seed: int = 0) -> Task:
    """The task with `n` texts for training, validation and test; equal arguments give equal tasks."""
    drawn: list[Sentence] = []
    for k, (split, size) in enumerate(zip(SPLITS, n, strict=True)):
        rng = np.random.default_rng([seed, k])
        drawn += [_sentence_of(rng, split) for _ in range(size)]
    last = [s.attractors[-1] + 1 if s.attractors else 0 for s in drawn]
    return Task(
        name="agreement",
        inputs=[s.prefix for s in drawn],
        labels={
            "number": np.array([s.number for s in drawn], dtype=np.int64),
            "attractor": np.array(last, dtype=np.int64),
            "depth": np.array([s.depth for s in drawn], dtype=np.int64),
        },
        label_names={
            "number": list(NUMBERS),
            "attractor": ["none", *NUMBERS],
            "depth": [str(d) for d in range(MAX_DEPTH + 1)],
        },
        splits=np.repeat(SPLITS, n),
        target="number",
        ids=[f"{split}:{i}" for split, size in zip(SPLITS, n, strict=True) for i in range(size)],
        groups=np.unique([s.skeleton for s in drawn], return_inverse=True)[1].astype(np.int64),
        info={"source": "agreement", "seed": seed},
    )


def split_of(skeleton: str) -> str:
    """The split that a skeleton and all its sentences belong to."""
    return ("train", "train", "validation", "test")[zlib.crc32(skeleton.encode()) % 4]


def _sentence_of(rng: np.random.Generator, split: str) -> Sentence:
    """A sentence of one split: the depth is drawn first, so that no split prefers one."""
    depth = int(rng.random() * (MAX_DEPTH + 1))
    while split_of(_name(slots := _skeleton(rng, depth))) != split:
        pass
    return _realise(rng, slots, depth)


def _skeleton(rng: np.random.Generator, depth: int) -> list[Slot]:
    """Everything before the verb, with the numbers still open."""
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
    """Toss the coins for the numbers, and only then write the words."""
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

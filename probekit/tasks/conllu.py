"""CoNLL-U: sentences whose words are annotated, as Universal Dependencies publishes them; a table with a row a word.

The text is the sentence as it was written, from its `# text` line, or else put together by SpaceAfter. A *word* is a
line with a whole number. A *multiword token* (3-4 "don't") is what stands in the text for several words: where these
spell it ("do" + "n't"), each has its own characters, and otherwise (French "du" = "de" + "le") each has those of the
whole token. *Empty nodes* (8.1) stand nowhere in the text and are no words.

Columns, beside `text` and `span`: `sentence` (file and number from 0), `form`, `lemma`, `upos`, `xpos`,
`deprel`, `feats.NAME` of each feature (morphological, such as `feats.Number`), and two numbers: `head_distance`, how
many words away the head is, and `depth`, how many arcs lead from the root to the word. Where a word has no such thing
(`_`, a feature that it has not, the distance of a root) the cell is None: it is no example of that label.

Format: https://universaldependencies.org/format.html
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

TOKEN = re.compile(r"([1-9][0-9]*)-([1-9][0-9]*)")
EMPTY = re.compile(r"[0-9]+\.[1-9][0-9]*")
PLAIN = {"form": 1, "lemma": 2, "upos": 3, "xpos": 4, "deprel": 7}
SPAN, GROUP = "span", "sentence"
MEASURED = ("head_distance", "depth")
TEXT = "# text ="


class Flaw(Exception):
    """What is wrong with a sentence: line, words."""


@dataclass
class Sentence:
    """One sentence.

    Attributes:
        text: as it was written.
        lines: of each word.
        rows: the ten fields of each word.
        spans: characters of each word.
        heads: number of each word's head, 0 for a root; None where nobody said.
        depths: arcs from the root to each word; None where they lead to no root.
        multiword: how many multiword tokens it has.
        empty: how many empty nodes.
    """

    text: str
    lines: list[int]
    rows: list[list[str]]
    spans: list[tuple[int, int]]
    heads: list[int | None]
    depths: list[int | None]
    multiword: int = 0
    empty: int = 0


@dataclass
class _Lines:
    """The lines of one sentence, sorted by what they are; `surface` are (first word, last word, form, fields)."""

    text: str | None = None
    rows: list[list[str]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    surface: list[tuple[int, int, list[str], int]] = field(default_factory=list)
    multiword: int = 0
    empty: int = 0


def sentences(text: str) -> Iterator[tuple[int, Sentence | str]]:
    """The sentences of a file, each with the line that it begins on, or that is wrong, and then with what is wrong."""
    begins, block = 1, []
    for number, line in enumerate([*text.split("\n"), ""], start=1):
        line = line.removesuffix("\r")
        if line.strip():
            begins = begins if block else number
            block.append(line)
        elif block:
            try:
                yield begins, _sentence(begins, block)
            except Flaw as flaw:
                yield flaw.args
            block = []


def _sentence(begins: int, block: list[str]) -> Sentence:
    found = _Lines()
    for number, line in enumerate(block, start=begins):
        if line.startswith("#"):
            found.text = line[len(TEXT) :].strip() if line.startswith(TEXT) else found.text
        else:
            _sort(found, number, line.split("\t"))
    if not found.rows:
        raise Flaw(begins, "expected a sentence, got no word in it; take it out")
    if found.surface[-1][1] > len(found.rows):
        raise Flaw(found.surface[-1][3], f"the token spans words up to {found.surface[-1][1]}, got {len(found.rows)}")
    text = found.text or _spelled(found)
    heads = [_head(found, i) for i in range(len(found.rows))]
    return Sentence(
        text,
        found.numbers,
        found.rows,
        _spans(found, text),
        heads,
        _depths(found, heads),
        found.multiword,
        found.empty,
    )


def _sort(found: _Lines, number: int, fields: list[str]) -> None:
    """Lay one line to the words, the tokens or the empty nodes."""
    if len(fields) != 10:
        raise Flaw(number, f"expected 10 fields with tabs between them, got {len(fields)}; mend the line")
    covered = found.surface[-1][1] if found.surface else 0
    n = len(found.rows)
    if EMPTY.fullmatch(fields[0]):
        found.empty += 1
    elif ends := TOKEN.fullmatch(fields[0]):
        first, last = int(ends[1]), int(ends[2])
        if not (first == n + 1 and last > first and covered <= n):
            raise Flaw(number, f"expected a token from word {n + 1} on, got {fields[0]!a}; number the words anew")
        found.surface.append((first, last, fields, number))
        found.multiword += 1
    elif fields[0] == str(n + 1):
        if not fields[1].strip():
            raise Flaw(number, "expected a word's form, got none; write it")
        if covered <= n:
            found.surface.append((n + 1, n + 1, fields, number))
        found.rows.append(fields)
        found.numbers.append(number)
    else:
        raise Flaw(number, f"expected word {n + 1}, got {fields[0][:20]!a}; number the words from 1 in every sentence")


def _spelled(found: _Lines) -> str:
    """The text of a sentence that does not say it: a blank after each token but where SpaceAfter=No."""
    parts = [fields[1] + " " * ("SpaceAfter=No" not in fields[9].split("|")) for _, _, fields, _ in found.surface]
    return "".join(parts).rstrip(" ")


def _spans(found: _Lines, text: str) -> list[tuple[int, int]]:
    """The characters of each word: tokens stand one after the other in the text, with nothing but blanks between."""
    spans: list[tuple[int, int]] = []
    at = 0
    for first, last, fields, number in found.surface:
        at += len(text[at:]) - len(text[at:].lstrip())
        form = fields[1]
        if not text.startswith(form, at):
            raise Flaw(number, f"expected {form[:40]!a} in '# text', got {text[at : at + 40]!a}; mend one of them")
        spans += _parts([row[1] for row in found.rows[first - 1 : last]], form, at)
        at += len(form)
    if rest := text[at:].strip():
        raise Flaw(found.numbers[-1], f"'# text' goes on with {rest[:40]!a} after the last word; mend it")
    return spans


def _parts(words: list[str], form: str, at: int) -> list[tuple[int, int]]:
    """The characters of the words of one token: their own where they spell it, otherwise all of it."""
    if "".join(words) != form:
        return [(at, at + len(form))] * len(words)
    ends = [at]
    for word in words:
        ends.append(ends[-1] + len(word))
    return list(pairwise(ends))


def _head(found: _Lines, i: int) -> int | None:
    given = found.rows[i][6]
    if given == "_":
        return None
    if not (given.isascii() and given.isdigit() and int(given) <= len(found.rows) and int(given) != i + 1):
        raise Flaw(
            found.numbers[i],
            f"expected the number of another word as the head, 0 to {len(found.rows)}, got {given[:20]!a}; mend it",
        )
    return int(given)


def _depths(found: _Lines, heads: list[int | None]) -> list[int | None]:
    depths: list[int | None] = []
    for i in range(len(heads)):
        depth, at = 0, heads[i]
        while at:
            depth, at = depth + 1, heads[at - 1]
            if depth > len(heads):
                raise Flaw(found.numbers[i], f"the heads of word {i + 1} go in a circle; mend one of them")
        depths.append(None if at is None else depth)
    return depths


class Words:
    """The words of a file as rows.

    Attributes:
        columns: names of the cells.
        lines: of each row.
        bad: of a sentence that is wrong, a row of its own: why, as (kind, words).
        counts: sentences, multiword tokens and empty nodes.
    """

    def __init__(self, stem: str, text: str):
        self._rows: list[tuple[Sentence, str, int]] = []
        self.lines: list[int] = []
        self.bad: dict[int, tuple[str, str]] = {}
        self.counts = {"sentences": 0, "multiword_tokens": 0, "empty_nodes": 0}
        for line, one in sentences(text):
            if isinstance(one, str):
                self.bad[len(self._rows)] = ("conllu", one)
                one = Sentence("", [line], [["_"] * 10], [(0, 0)], [None], [None])
            self._rows += [(one, f"{stem}:{self.counts['sentences']}", i) for i in range(len(one.rows))]
            self.lines += one.lines
            self.counts["sentences"] += 1
            self.counts["multiword_tokens"] += one.multiword
            self.counts["empty_nodes"] += one.empty
        features = sorted({name for one, _, i in self._rows for name in _features(one.rows[i][5])})
        self.columns = ["text", SPAN, GROUP, *PLAIN, *MEASURED, *(f"feats.{name}" for name in features)]

    def column(self, name: str) -> list[Any]:
        """The cells of all rows."""
        cell = _cell(name)
        return [cell(*row) for row in self._rows]


def _features(cell: str) -> dict[str, str]:
    return {} if cell == "_" else dict(part.split("=", 1) for part in cell.split("|") if "=" in part)


def _cell(name: str) -> Callable[[Sentence, str, int], Any]:
    """What a column holds for a sentence, its name, and word i of it."""
    if name in PLAIN:
        at = PLAIN[name]
        return lambda one, sentence, i: _said(one.rows[i][at], name)
    if name.startswith("feats."):
        return lambda one, sentence, i: _features(one.rows[i][5]).get(name[len("feats.") :])
    return {
        "text": lambda one, sentence, i: one.text,
        SPAN: lambda one, sentence, i: list(one.spans[i]),
        GROUP: lambda one, sentence, i: sentence,
        "head_distance": lambda one, sentence, i: _distance(one.heads[i], i),
        "depth": lambda one, sentence, i: one.depths[i],
    }[name]


def _said(cell: str, name: str) -> str | None:
    """A field; "_" says nothing, but of a word it is the word itself."""
    return None if cell == "_" and name not in ("form", "lemma") else cell


def _distance(head: int | None, i: int) -> int | None:
    return abs(head - i - 1) if head else None

"""CoNLL-U: sentences with annotated words, as Universal Dependencies publishes them; a table with one row per word.

The `conllu` package parses the lines. This module checks them, and finds the characters of each word in the text.

The text is the sentence as it was written: its `# text` line, or else its forms joined as SpaceAfter says. A *word* is
a line whose id is a single number. A *multiword token* (3-4 "don't") is written in the text for several words. Where
the words spell it ("do" + "n't"), each has its own characters; otherwise (French "du" = "de" + "le") each has those of
the complete token. *Empty nodes* (8.1) are not in the text and are not words.

Columns: `text`, `span`, `sentence` (file and number from 0), `form`, `lemma`, `upos`, `xpos`, `deprel`, `feats.NAME`
for each feature (morphological, such as `feats.Number`), and two numbers: `head_distance`, how many words away the head
is, and `depth`, how many arcs lead from the root to the word. Where a word has no value (`_`, a feature that it lacks,
the distance of a root) the cell is None, and the word is not an example of that label.

Format: https://universaldependencies.org/format.html
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from conllu.exceptions import ParseException
from conllu.parser import DEFAULT_FIELD_PARSERS, DEFAULT_FIELDS, parse_comment_line, parse_line

from probekit.tasks.tables.data_table import Flaw as RowFlaw

PLAIN = ("form", "lemma", "upos", "xpos", "deprel")
SPAN, GROUP = "span", "sentence"
MEASURED = ("head_distance", "depth")
UNPARSED = dict.fromkeys(("xpos", "feats", "head", "deps"), lambda fields, i: fields[i])
# `conllu` parses ids and misc; its parser of feats would cut "Ref=x=y" to "x"
PARSERS: dict[str, Any] = DEFAULT_FIELD_PARSERS | UNPARSED

Row = Mapping[str, Any]  # a line as `conllu` parses it, by field


class Flaw(Exception):
    """A sentence cannot be used; its arguments are a line number and a description."""


@dataclass
class AnnotatedSentence:
    """One sentence.

    Attributes:
        text: as it was written.
        lines: the line number of each word.
        rows: the fields of each word.
        surface: (first word, last word, fields, line number) of each token.
        spans: the characters of each word.
        heads: the number of each word's head, 0 for a root; None where it is not annotated.
        depths: arcs from the root to each word; None where they do not lead to a root.
        multiword: number of multiword tokens.
        empty: number of empty nodes.
    """

    text: str = ""
    lines: list[int] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    surface: list[tuple[int, int, Row, int]] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    heads: list[int | None] = field(default_factory=list)
    depths: list[int | None] = field(default_factory=list)
    multiword: int = 0
    empty: int = 0


def read_sentences(text: str) -> Iterator[tuple[int, AnnotatedSentence | str]]:
    """The sentences of a file: (its first line, the sentence), or (the flawed line, a description of the flaw)."""
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


def _sentence(begins: int, block: list[str]) -> AnnotatedSentence:
    one = AnnotatedSentence()
    for number, line in enumerate(block, start=begins):
        if line.startswith("#"):
            one.text = dict(parse_comment_line(line)).get("text") or one.text
        else:
            _add(one, number, line)
    if not one.rows:
        raise Flaw(begins, "expected a sentence, got no word in it; remove it")
    if one.surface[-1][1] > len(one.rows):
        raise Flaw(one.surface[-1][3], f"the token spans words up to {one.surface[-1][1]}, got {len(one.rows)}")
    one.text = one.text or _spelled(one)
    one.heads = [_head(one, i) for i in range(len(one.rows))]
    one.spans, one.depths = _spans(one), _depths(one)
    one.surface.clear()
    return one


def _add(one: AnnotatedSentence, number: int, line: str) -> None:
    """Add one line to the words, the multiword tokens or the empty nodes."""
    row = _parsed(number, line)
    covered = one.surface[-1][1] if one.surface else 0
    n = len(one.rows)
    match row["id"]:
        case (_, ".", _):
            one.empty += 1
        case (first, "-", last):
            if not (first == n + 1 and last > first and covered <= n):
                raise Flaw(number, f"expected a token from word {n + 1} on, got {first}-{last}; renumber the words")
            one.surface.append((first, last, row, number))
            one.multiword += 1
        case given if given == n + 1:
            if not row["form"].strip():
                raise Flaw(number, "expected a word's form, got none; write it")
            if covered <= n:
                one.surface.append((n + 1, n + 1, row, number))
            one.rows.append(row)
            one.lines.append(number)
        case _:
            given = line.split("\t")[0][:20]
            raise Flaw(number, f"expected word {n + 1}, got {given!a}; number the words from 1 in every sentence")


def _parsed(number: int, line: str) -> Row:
    """The fields of a line; its id is None where it is not an id."""
    n_fields = line.count("\t") + 1
    if n_fields != len(DEFAULT_FIELDS):
        raise Flaw(number, f"expected 10 fields with tabs between them, got {n_fields}; correct the line")
    if "  " in line:  # which `conllu` would take for the end of a field
        raise Flaw(number, "expected single blanks within a field, got several in a row; remove the others")
    try:
        return parse_line(line, DEFAULT_FIELDS, PARSERS)
    except (ParseException, ValueError):  # of the id; a number of 5,000 digits is a ValueError
        return {"id": None}


def _spelled(one: AnnotatedSentence) -> str:
    """The text of a sentence without a text line: a blank after each token except where SpaceAfter=No."""
    ends = {True: "", False: " "}
    return "".join(
        row["form"] + ends[(row["misc"] or {}).get("SpaceAfter") == "No"] for _, _, row, _ in one.surface
    ).rstrip(" ")


def _spans(one: AnnotatedSentence) -> list[tuple[int, int]]:
    """The characters of each word: tokens follow each other in the text, with only blanks between them."""
    text, at = one.text, 0
    spans: list[tuple[int, int]] = []
    for first, last, row, number in one.surface:
        at += len(text[at:]) - len(text[at:].lstrip())
        form = row["form"]
        if not text.startswith(form, at):
            raise Flaw(number, f"expected {form[:40]!a} in '# text', got {text[at : at + 40]!a}; correct one of them")
        spans += _parts([word["form"] for word in one.rows[first - 1 : last]], form, at)
        at += len(form)
    if rest := text[at:].strip():
        raise Flaw(one.lines[-1], f"'# text' continues with {rest[:40]!a} after the last word; correct it")
    return spans


def _parts(words: list[str], form: str, at: int) -> list[tuple[int, int]]:
    """The characters of the words of one token: their own where they spell it, otherwise all of it."""
    if "".join(words) != form:
        return [(at, at + len(form))] * len(words)
    ends = [at]
    for word in words:
        ends.append(ends[-1] + len(word))
    return list(pairwise(ends))


def _head(one: AnnotatedSentence, i: int) -> int | None:
    given, n = one.rows[i]["head"], len(one.rows)
    if given == "_":
        return None
    is_number = given.isascii() and given.isdigit() and len(given) < 10
    if not (is_number and int(given) <= n and int(given) != i + 1):
        what = f"expected the number of another word as the head, 0 to {n}, got {given[:20]!a}; correct it"
        raise Flaw(one.lines[i], what)
    return int(given)


def _depths(one: AnnotatedSentence) -> list[int | None]:
    heads, depths = one.heads, list[int | None]()
    for i in range(len(heads)):
        depth, at = 0, heads[i]
        while at:
            depth, at = depth + 1, heads[at - 1]
            if depth > len(heads):
                raise Flaw(one.lines[i], f"the heads of word {i + 1} form a circle; correct one of them")
        depths.append(None if at is None else depth)
    return depths


class WordRows:
    """The words of a file as rows.

    Attributes:
        columns: names of the columns.
        lines: the line number of each row.
        bad: row -> (kind, description) for a flawed sentence, which has a single row.
        counts: numbers of sentences, multiword tokens and empty nodes.
    """

    def __init__(self, stem: str, text: str):
        self._rows: list[tuple[AnnotatedSentence, str, int]] = []
        self.lines: list[int] = []
        self.bad: dict[int, RowFlaw] = {}
        self.counts = {"sentences": 0, "multiword_tokens": 0, "empty_nodes": 0}
        for line, one in read_sentences(text):
            if isinstance(one, str):
                self.bad[len(self._rows)] = ("conllu", one)
                one = AnnotatedSentence("", [line], [NO_WORD], spans=[(0, 0)], heads=[None], depths=[None])
            self._rows += [(one, f"{stem}:{self.counts['sentences']}", i) for i in range(len(one.rows))]
            self.lines += one.lines
            self.counts["sentences"] += 1
            self.counts["multiword_tokens"] += one.multiword
            self.counts["empty_nodes"] += one.empty
        features = sorted({name for one, _, i in self._rows for name in _features(one.rows[i])})
        self.columns = ["text", SPAN, GROUP, *PLAIN, *MEASURED, *(f"feats.{name}" for name in features)]

    def column(self, name: str) -> list[Any]:
        """The cells of all rows."""
        cell = _cell(name)
        return [cell(*row) for row in self._rows]


NO_WORD: Row = dict.fromkeys((*PLAIN, "feats"), "_")  # the fields of a flawed sentence's row


def _features(row: Row) -> dict[str, str]:
    pairs = (pair.partition("=") for pair in row["feats"].split("|"))
    return {name: value for name, _, value in pairs if name and value}


def _cell(name: str) -> Callable[[AnnotatedSentence, str, int], Any]:
    """The function that returns a column's cell for a sentence, the sentence's name, and word i."""
    if name in PLAIN:
        return lambda one, sentence, i: _value(one.rows[i][name], name)
    if name.startswith("feats."):
        return lambda one, sentence, i: _features(one.rows[i]).get(name[len("feats.") :])
    return {
        "text": lambda one, sentence, i: one.text,
        SPAN: lambda one, sentence, i: list(one.spans[i]),
        GROUP: lambda one, sentence, i: sentence,
        "head_distance": lambda one, sentence, i: _distance(one.heads[i], i),
        "depth": lambda one, sentence, i: one.depths[i],
    }[name]


def _value(cell: str, name: str) -> str | None:
    """A field's value; "_" means none, except as a form or lemma, where it is the word itself."""
    return None if cell == "_" and name not in ("form", "lemma") else cell


def _distance(head: int | None, i: int) -> int | None:
    return abs(head - i - 1) if head else None

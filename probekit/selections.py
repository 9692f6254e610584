"""Which tokens of each text are read, as one small language for all tasks and families; nothing here needs torch.

    SELECTION = PICK | PICK@PART | in:"TEXT" | before:"TEXT" | after:"TEXT"
    PICK      = last | first | mean | all | a number, such as 3 or -2 | a slice, such as -5: or 2:8
    PART      = a role of a chat, such as assistant or user; one turn of it, user[0] or assistant[-1];
                prompt | generated; in:"TEXT" | before:"TEXT" | after:"TEXT"

A pick without a part is of the complete text. `in:"TEXT"` alone is all of its tokens, `before:"TEXT"` the last token
before it, and `after:"TEXT"` the first token after it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from probekit.errors import UsageError, nearest
from probekit.text import listed

if TYPE_CHECKING:
    import numpy as np

PICKS = ("last", "first", "mean", "all")
MODEL_PARTS = ("prompt", "generated")  # of a text that the model continued
EXAMPLES = 'last, first, mean, all, 3, -5:, last@assistant, mean@user, in:"TEXT", before:"TEXT" or after:"TEXT"'
SEVERAL = "give several selections as a list, such as ['last', 'last@assistant']"
_SLICE = re.compile(r"(-?[0-9]{1,9})?:(-?[0-9]{1,9})?")
_NUMBER = re.compile(r"-?[0-9]{1,9}")
_QUOTED = re.compile(r'(in|before|after):\s*(?:"((?:[^"\\]|\\.)*)"|\'((?:[^\'\\]|\\.)*)\'|([^"\'\s].*))', re.DOTALL)
_ROLE = re.compile(r"([A-Za-z_][A-Za-z0-9_-]*)(?:\[(-?[0-9]{1,9})\])?")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_BARE = re.compile(r"""(?:.*@\s*)?(?:in|before|after):\s*[^"'\s].*""", re.DOTALL)
_ONE = re.compile(
    r"""(?:(?:in|before|after):\s*(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|[^,])+""", re.DOTALL
)  # a quote anywhere else, as in after:don't, is a letter
_OF_TEXT = {"in": "all", "before": "last", "after": "first"}  # the pick where none is written

Pick = str | int | tuple[int | None, int | None]
Kind = Literal["role", "prompt", "generated", "in", "before", "after"]


@dataclass(frozen=True)
class Part:
    """A part of each text; `str` gives it as the language writes it.

    Attributes:
        kind: "role" (messages of a chat), "prompt" and "generated" (of a text that the model continued), or "in",
            "before", "after" (of characters that occur once in each text).
        name: the role, or the characters; "" for "prompt" and "generated".
        turn: which of the role's messages, negative from the end; None is all of them.
    """

    kind: Kind
    name: str = ""
    turn: int | None = None

    def __str__(self) -> str:
        if self.kind in _OF_TEXT:
            quoted = re.sub(r'(["\\])', r"\\\1", self.name)
            return f'{self.kind}:"{quoted}"'
        return (self.name or self.kind) + ("" if self.turn is None else f"[{self.turn}]")


def _written(pick: Pick, part: Part | None) -> str:
    """The text of a selection in the language."""
    name = ":".join("" if end is None else str(end) for end in pick) if isinstance(pick, tuple) else str(pick)
    return name if part is None else str(part) if pick == _OF_TEXT.get(part.kind) else f"{name}@{part}"


class Selection(str):
    """Which tokens of each text are read: what a text of the language says, and the text, one for each selection.

    It is that text, so files, tables and messages name it as it is, and `selection == "last@user"` holds.

    Attributes:
        pick: "last", "first", "mean" or "all" of the part's tokens, the index of one, or a slice (start, stop); None
            if the selection is an array, or a bare name from a store.
        part: None is the complete text.
        each: the index of one token in each text, int64 [N]; None where every text is read alike.
    """

    __slots__ = ("each", "part", "pick")
    pick: Pick | None
    part: Part | None
    each: "np.ndarray | None"

    def __new__(
        cls, pick: Pick | None, part: Part | None = None, each: "np.ndarray | None" = None, name: str = ""
    ) -> "Selection":
        """A selection from what its text says (`parse` takes the text); without a pick, `name` is the text."""
        assert not isinstance(pick, str) or pick in PICKS, f"{pick!a} is a text; Selection.parse takes it"
        self = super().__new__(cls, name if pick is None else _written(pick, part))
        self.pick, self.part, self.each = pick, part, each
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Selection, (self.pick, self.part, self.each, str(self))

    def __repr__(self) -> str:
        return repr(self.plain)

    @classmethod
    def parse(cls, text: str) -> "Selection":
        """A selection as it is written.

        Raises:
            UsageError: text outside the language.
        """
        if isinstance(text, Selection) and text.pick is not None:
            return text
        text = text.strip()
        if text.startswith(("in:", "before:", "after:")):
            part = _parse_part(text, text)
            return cls(_OF_TEXT[part.kind], part)
        pick, at, part = text.partition("@")
        return cls(_parse_pick(pick.strip(), text), _parse_part(part.strip(), text) if at else None)

    @classmethod
    def of(cls, given: Any) -> "Selection":
        """A position as options take it: a selection, the index of a token, or an array of an index for each text.

        Raises:
            UsageError: text outside the language, or anything else.
        """
        if isinstance(given, str):
            return given if isinstance(given, Selection) else PER_EXAMPLE if given == PER_EXAMPLE else cls.parse(given)
        import numpy as np

        index = np.asarray(given)
        if index.dtype.kind not in "iu":
            raise not_a_selection(given, ", an int or an int for each example")
        return cls(None, each=index.astype(np.int64), name=PER_EXAMPLE) if index.ndim else cls(int(index))

    @classmethod
    def named(cls, name: object) -> "Selection":
        """The position that a store or results have under this name, which may be outside the language."""
        try:
            return cls.parse(str(name)) if not isinstance(name, Selection) else name
        except UsageError:
            return cls(None, name=str(name))

    @property
    def several(self) -> bool:
        """Whether it keeps a row for each of several tokens of a text, rather than one row."""
        return self.pick == "all" or isinstance(self.pick, tuple)

    @property
    def plain(self) -> str | int:
        """As JSON has it: the number of one token of the complete text as a number, others as text."""
        return self.pick if self.part is None and isinstance(self.pick, int) else str(self)

    @property
    def in_words(self) -> str:
        """For people: "last@assistant" -> "last token of assistant"."""
        pick, part = self.pick, self.part
        if pick is None:
            return "one given token in each text" if self == PER_EXAMPLE else str(self)
        words = {"mean": "mean over the tokens", "all": "all tokens", "last": "last token", "first": "first token"}
        name = _written(pick, None)
        said = words.get(name, f"token {name}" if isinstance(pick, int) else f"tokens [{name}]")
        if part is None:
            return said
        if part.kind == "role":
            return f"{said} of {part}"
        if part.kind in MODEL_PARTS:
            return f"{said} of the {part.kind} text"
        place = {"in": "of", "before": "before", "after": "after"}[part.kind]
        return f'{said} {place} "{part.name}"'


ALL = Selection("all")  # every token of a text
PER_EXAMPLE = Selection(None, name="per example")  # with an index of its own in each text


def not_a_selection(given: Any, other: str) -> UsageError:
    """The error for a position that is none; `other` is what else it may be."""
    return UsageError(f"a position is a selection such as {EXAMPLES}{other}; got {given!r:.80}")


def check_in_language(selection: Selection) -> None:
    """Raise a UsageError for a bare name, such as "per example", which says nothing of which tokens are read."""
    if selection.pick is None and selection.each is None:
        raise UsageError(f"expected the tokens to read, got {selection!a}; write {EXAMPLES}")


def check_together(selections: Sequence[Selection]) -> None:
    """Check that selections can be read at once: all differ, and one that keeps several tokens is by itself.

    Raises:
        UsageError: they cannot.
    """
    if not selections:
        raise UsageError(f"expected the tokens to read, got none; write {EXAMPLES}")
    for one in selections if len(selections) > 1 else []:
        if one.several:
            raise UsageError(f"{str(one)!a:.80} keeps several tokens of a text; give it alone")
        if selections.count(one) > 1:
            raise UsageError(f"several positions must all differ, and {str(one)!a:.80} is given twice; leave one out")


def check_kept(kept: Sequence[Selection], position: Selection | None) -> None:
    """Check that a probe can read one position of those that were kept.

    Raises:
        UsageError: several were kept and none is named, or one that was not kept is.
    """
    is_ragged = len(kept) == 1 and kept[0].several
    if position is None and (is_ragged or len(kept) > 1):
        choice = "last, first, mean, a token's index, last@assistant, ... or all" if is_ragged else listed(kept)
        raise UsageError(
            f"a probe reads one position of each text; name it with --position (in Python, position=): {choice}"
        )
    if position not in (None, ALL) and not is_ragged and position not in kept:
        known = f"take {listed(kept)}" if len(kept) > 1 else f"the only one is {kept[0]!a}: leave it out"
        raise UsageError(f"position {position!a} was not extracted; {known}, or extract again")


def check_several_kept(kept: Sequence[Selection], position: Selection | None) -> None:
    """Check that a probe over a sequence can read several tokens of each text.

    Raises:
        UsageError: one token of each text was kept, or each of several positions; a position that names one token.
    """
    if len(kept) != 1 or not kept[0].several:
        raise UsageError(
            f"a probe over a sequence reads several tokens of each text, and these activations are of {listed(kept)}; "
            "extract again with position all (--position all)"
        )
    if position is not None and position not in kept and not position.several:
        raise UsageError(
            f"a probe over a sequence reads several tokens of each text, and position {position} is one; leave "
            "position (--position) out, or name several, such as -5: or all@assistant"
        )


def parse_selections(text: str) -> list[Selection]:
    """Selections with commas between them; a comma in quotes belongs to its text.

    Raises:
        UsageError: a text outside the language; one with a comma that has no quotes, which is what a shell makes of
            in:"Hello, world"; or nothing between two commas.
    """
    found = _ONE.findall(text)
    parts = [part.strip() for part in found]
    if text.strip() and (",".join(found) != text or not all(parts)):
        raise UsageError(f"expected a selection on either side of each comma, got {text!a:.80}; leave the comma out")
    selections = []
    for before, part in zip(["", *parts], parts, strict=False):
        try:
            selections.append(Selection.of(part))
        except UsageError:
            if not _BARE.fullmatch(before):
                raise
            raise UsageError(
                f"expected the tokens to read, got {part!a:.80} after {before!a:.80} and a comma; a text with a "
                "comma needs quotes that the shell leaves, as in --position 'in:\"Hello, world\"'"
            ) from None
    return selections


def _parse_pick(pick: str, text: str) -> Pick:
    if pick in PICKS:
        return pick
    if _NUMBER.fullmatch(pick):
        return int(pick)
    if found := _SLICE.fullmatch(pick):
        start, stop = (None if end is None else int(end) for end in found.groups())
        if start is not None and stop is not None and (start < 0) == (stop < 0) and start >= stop:
            raise UsageError(f"the slice {pick} of {text!a:.80} holds no token; write its end after its start")
        return start, stop
    hint = nearest(pick, PICKS) if pick.isalpha() else f"write {EXAMPLES}"
    if _are_several(text):
        hint = SEVERAL
    elif pick in ("user", "assistant", "system", *MODEL_PARTS):
        hint = f"write last@{pick}, mean@{pick} or all@{pick}"
    raise UsageError(f"expected the tokens to read, got {text!a:.80}; {hint}")


def _parse_part(part: str, text: str) -> Part:
    if part in MODEL_PARTS:
        return Part(part)  # pyright: ignore[reportArgumentType]
    if found := _QUOTED.fullmatch(part):
        kind, *names = found.groups()
        *quoted, bare = names
        name = bare if bare is not None else _ESCAPED.sub(r"\1", next(one for one in quoted if one is not None))
        if name:
            return Part(kind, name)  # pyright: ignore[reportArgumentType]
    elif found := _ROLE.fullmatch(part):
        return Part("role", found[1], None if found[2] is None else int(found[2]))
    hint = SEVERAL if _are_several(text) else f"write {EXAMPLES}"
    raise UsageError(f"expected a part of the text after @ or a quoted text, got {text!a:.80}; {hint}")


def _are_several(text: str) -> bool:
    """Whether selections are given as one text with commas between them, as on the command line."""
    return len(_ONE.findall(text)) > 1

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
from typing import Literal

from probekit.errors import UsageError, nearest

PICKS = ("last", "first", "mean", "all")
MODEL_PARTS = ("prompt", "generated")  # of a text that the model continued
PER_EXAMPLE = "per example"  # the name of a position with an index of its own in each text
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

Kind = Literal["role", "prompt", "generated", "in", "before", "after"]


@dataclass(frozen=True)
class Part:
    """A part of each text.

    Attributes:
        kind: "role" (messages of a chat), "prompt" and "generated" (of a text that the model continued), or "in",
            "before", "after" (of characters that occur once in each text).
        name: the role, or the characters; "" for "prompt" and "generated".
        turn: which of the role's messages, negative from the end; None is all of them.
    """

    kind: Kind
    name: str = ""
    turn: int | None = None


@dataclass(frozen=True)
class Selection:
    """Which tokens of each text are read.

    Attributes:
        pick: "last", "first", "mean" or "all" of the part's tokens, the index of one, or a slice (start, stop).
        part: None is the complete text.
    """

    pick: str | int | tuple[int | None, int | None]
    part: Part | None = None


def parse_selection(text: str) -> Selection:
    """A selection as it is written.

    Raises:
        UsageError: text outside the language.
    """
    text = text.strip()
    if text.startswith(("in:", "before:", "after:")):
        part = _parse_part(text, text)
        return Selection({"in": "all", "before": "last", "after": "first"}[part.kind], part)
    pick, at, part = text.partition("@")
    return Selection(_parse_pick(pick.strip(), text), _parse_part(part.strip(), text) if at else None)


def selection_text(selection: Selection) -> str:
    """A selection as the language writes it, one text for each: what stores and tables name it."""
    pick, part = selection.pick, selection.part
    if isinstance(pick, tuple):
        pick = ":".join("" if end is None else str(end) for end in pick)
    if part is None:
        return str(pick)
    if part.kind in ("in", "before", "after"):
        quoted = re.sub(r'(["\\])', r"\\\1", part.name)
        where = f'{part.kind}:"{quoted}"'
        return where if pick == {"in": "all", "before": "last", "after": "first"}[part.kind] else f"{pick}@{where}"
    return f"{pick}@{part.name or part.kind}" + ("" if part.turn is None else f"[{part.turn}]")


def in_words(position: str) -> str:
    """A position for people: "last@assistant" -> "last token of assistant".

    Raises:
        UsageError: text outside the language.
    """
    if position == PER_EXAMPLE:
        return "one given token in each text"
    selection = parse_selection(position)
    pick, part = selection.pick, selection.part
    words = {"mean": "mean over the tokens", "all": "all tokens", "last": "last token", "first": "first token"}
    name = selection_text(Selection(pick))
    said = words.get(name, f"token {name}" if isinstance(pick, int) else f"tokens [{name}]")
    if part is None:
        return said
    if part.kind == "role":
        return f"{said} of {selection_text(selection).partition('@')[2]}"
    if part.kind in MODEL_PARTS:
        return f"{said} of the {part.kind} text"
    place = {"in": "of", "before": "before", "after": "after"}[part.kind]
    return f'{said} {place} "{part.name}"'


def as_position(text: str) -> str | int:
    """A selection as options and stores hold it: the number of one token of the text as an int, others as one text.

    Raises:
        UsageError: text outside the language.
    """
    selection = parse_selection(text)
    is_index = selection.part is None and isinstance(selection.pick, int)
    return int(text) if is_index else selection_text(selection)


def check_together(names: Sequence[str]) -> None:
    """Check that selections can be read at once: all differ, and one that keeps several tokens is by itself.

    Raises:
        UsageError: they cannot.
    """
    if not names:
        raise UsageError(f"expected the tokens to read, got none; write {EXAMPLES}")
    for name in names if len(names) > 1 else []:
        if name != PER_EXAMPLE and keeps_several(parse_selection(name)):
            raise UsageError(f"{name!a:.80} keeps several tokens of a text; give it alone")
        if names.count(name) > 1:
            raise UsageError(f"several positions must all differ, and {name!a:.80} is given twice; leave one out")


def keeps_several(selection: Selection) -> bool:
    """Whether it keeps a row for each of several tokens of a text, rather than one row."""
    return selection.pick == "all" or isinstance(selection.pick, tuple)


def names_several(name: str) -> bool:
    """Whether the name of an extracted position is a selection that keeps several tokens; others are in no language."""
    try:
        return keeps_several(parse_selection(name))
    except UsageError:
        return False


def split_selections(text: str) -> list[str]:
    """Selections with commas between them; a comma in quotes belongs to its text.

    Raises:
        UsageError: a text with a comma that has no quotes, which is what a shell makes of in:"Hello, world"; or nothing
            between two commas.
    """
    found = _ONE.findall(text)
    parts = [part.strip() for part in found]
    if text.strip() and (",".join(found) != text or not all(parts)):
        raise UsageError(f"expected a selection on either side of each comma, got {text!a:.80}; leave the comma out")
    for before, part in zip(["", *parts], parts, strict=False):
        try:
            parse_selection(part)
        except UsageError:
            if part != PER_EXAMPLE and _BARE.fullmatch(before):
                raise UsageError(
                    f"expected the tokens to read, got {part!a:.80} after {before!a:.80} and a comma; a text with a "
                    "comma needs quotes that the shell leaves, as in --position 'in:\"Hello, world\"'"
                ) from None
    return parts


def _parse_pick(pick: str, text: str) -> str | int | tuple[int | None, int | None]:
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

"""Find the tokens of a selection (`probekit.selections`) in each text; nothing here needs a model or torch.

A token belongs to a part of a text if it covers a character of the part. `before:"TEXT"` and `after:"TEXT"` are the
tokens before the first and after the last token of TEXT, so that neither sees a character of it.

Axes: N examples, L tokens of one text, T tokens in all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from probekit.errors import UsageError
from probekit.ragged import ranges
from probekit.selections import MODEL_PARTS, Part, Selection
from probekit.tasks.fields import Region
from probekit.text import counted, listed


@dataclass(frozen=True, eq=False)
class ReadableTokens:
    """The tokens of texts, context tokens left out, and what is known of the texts.

    Attributes:
        lengths: tokens of each text, int64 [N].
        usable: the tokens that a selection may take, one text after the other; None is all of them.
        texts: N texts; None where only token ids are known.
        offsets: the characters of each token, N arrays int64 [L, 2]; None if unknown.
        regions: the contents of each chat's messages.
        generated: how many tokens at the end of each text the model wrote, int64 [N].
        totals: tokens of each text before it was cut at the context, int64 [N], where `generated` counts from.
        spans: the word or phrase that each example is, as its first token and one past its last, int64 [N, 2].
        cut: whether the text may have been cut at the context, bool [N]; None: none was.
        are_some: whether these are only some of the tokens, those that a store kept.
    """

    lengths: np.ndarray
    usable: "TokenSet | None" = None
    texts: Sequence[str] | None = None
    offsets: Sequence[np.ndarray] | None = None
    regions: Sequence[Sequence[Region]] | None = None
    generated: np.ndarray | None = None
    totals: np.ndarray | None = None
    spans: np.ndarray | None = None
    cut: np.ndarray | None = None
    are_some: bool = False


@dataclass(frozen=True, eq=False)
class TokenSet:
    """Some tokens of each text.

    Attributes:
        counts: how many of each text, int64 [N].
        index: which, in order, counted from the text's first, one text after the other, int64 [T]; None is all.
    """

    counts: np.ndarray
    index: np.ndarray | None = None

    @property
    def starts(self) -> np.ndarray:
        """Where the tokens of each text begin in `index`, int64 [N]."""
        return np.cumsum(self.counts) - self.counts


class Unread(Exception):
    """A text without the tokens of a selection; the message says why."""


AROUND = 20  # characters shown on either side of each of two occurrences
AGAIN = "read other tokens, extract again with --position all, or leave the row out"
UNREAD = "no such token"  # under which rows without the tokens to read are counted
Bad = dict[int, str]  # row -> why its tokens cannot be read, and what to do


def select_tokens(selection: Selection, tokens: ReadableTokens) -> tuple[TokenSet, Bad]:
    """The tokens of a selection in each text; for "mean" those that are averaged.

    Args:
        selection: of a task or of options; not a bare name from a store.
        tokens: of the texts.

    Returns:
        The tokens, at least one of each text but the bad ones, and the bad ones.

    Raises:
        UsageError: a part that none of the texts can have, such as a role where there are no chats.
    """
    if (each := selection.each) is not None:
        chosen, bad = tokens.usable or TokenSet(tokens.lengths), {}
        return _picked(each, chosen, bad, lambda row: Selection(int(each[row])))
    part, bad, every = selection.part, {}, tokens.usable or TokenSet(tokens.lengths)
    if part is None and tokens.spans is None:
        return _picked(selection.pick, every, bad, lambda _: selection)
    if part is not None:
        chosen, bad = _found(part, tokens, selection)
    else:
        assert tokens.spans is not None
        first, end = tokens.spans.T
        chosen = TokenSet(end - first, ranges(first, end - first))
    chosen = chosen if tokens.usable is None else _both(chosen, tokens.usable, tokens.lengths)
    return _picked(selection.pick, chosen, bad, lambda _: selection)


def needs_offsets(selection: Selection) -> bool:
    """Whether the characters of the tokens must be known."""
    return selection.part is not None and selection.part.kind not in MODEL_PARTS


def _both(a: TokenSet, b: TokenSet, lengths: np.ndarray) -> TokenSet:
    """The tokens that are in both sets."""
    firsts = np.cumsum(lengths) - lengths
    flats = [np.repeat(firsts, one.counts) + one.index for one in (a, b) if one.index is not None]
    flat = np.intersect1d(*flats, assume_unique=True) if len(flats) == 2 else flats[0]
    of = np.searchsorted(firsts + lengths, flat, side="right")
    return TokenSet(np.bincount(of, minlength=len(lengths)), flat - firsts[of])


def _found(part: Part, tokens: ReadableTokens, selection: Selection) -> tuple[TokenSet, Bad]:
    """The tokens of a part, text by text."""
    if part.kind in MODEL_PARTS and tokens.generated is None:
        name = ascii(str(selection))
        raise UsageError(f"{name:.80} needs texts that the model continued; extract with --generate N")
    check_characters(selection, tokens.texts is not None and tokens.offsets is not None, tokens.regions)
    found, bad = [], {}
    for row in range(len(tokens.lengths)):
        try:
            own = _own_part(part, tokens, row, selection)
        except Unread as why:
            bad[row], own = str(why), np.empty(0, dtype=np.int64)
        found.append(own)
    counts = np.fromiter(map(len, found), np.int64, len(found))
    return TokenSet(counts, np.concatenate(found) if found else np.empty(0, np.int64)), bad


def check_characters(selection: Selection, has_texts: bool, regions: Sequence[Sequence[Region]] | None) -> None:
    """Raise a UsageError for a part that is found by characters or by roles where there are none of these."""
    part, name = selection.part, ascii(str(selection))
    if part is None or not needs_offsets(selection):
        return
    if not has_texts:
        raise UsageError(
            f"{name:.80} needs the characters of each token, and only token ids are known; give texts, or a token's "
            "number"
        )
    if part.kind == "role" and not any(map(len, regions or ())):
        raise UsageError(f"{name:.80} needs a chat, rows of messages with roles; the rows here are plain texts")


def _own_part(part: Part, tokens: ReadableTokens, row: int, selection: Selection) -> np.ndarray:
    """The tokens of a part of one text, int64. Raises Unread where there are none."""
    n = int(tokens.lengths[row])
    if tokens.generated is not None and part.kind in MODEL_PARTS:
        total = n if tokens.totals is None else int(tokens.totals[row])
        return _generated(part.kind == "generated", n, total, int(tokens.generated[row]))
    assert tokens.texts is not None
    assert tokens.offsets is not None
    text, offsets = tokens.texts[row], tokens.offsets[row]
    spans = _contents(part, (tokens.regions or [])[row]) if part.kind == "role" else [_occurrence(part.name, text)]
    is_inside = np.zeros(n, dtype=bool)
    for start, end in spans:
        is_inside |= (offsets[:, 0] < end) & (offsets[:, 1] > start) & (offsets[:, 0] < offsets[:, 1])
    found = np.flatnonzero(is_inside)
    if tokens.cut is not None and tokens.cut[row]:
        _check_cut(part, selection, text[int(offsets[:, 1].max(initial=0)) : spans[-1][1]], len(found))
    missing = f"of {_part_text(part)}"
    if not len(found) and not tokens.are_some:
        raise Unread(f"the tokenizer makes no token {missing}; read other tokens, or leave the row out")
    if part.kind in ("before", "after") and len(found):
        missing = f"{part.kind} {part.name!a}"
        found = np.arange(found[0]) if part.kind == "before" else np.arange(found[-1] + 1, n)
    if not len(found):
        if tokens.are_some:
            raise Unread(f"no token {missing} was kept; {AGAIN}")
        raise Unread(f"there is no token {missing}; read other tokens, or leave the row out")
    return found


def _generated(is_generated: bool, n: int, total: int, generated: int) -> np.ndarray:
    """The tokens of a prompt or of its continuation."""
    begin = min(total - generated, n)
    found = np.arange(begin, n) if is_generated else np.arange(begin)
    if not len(found):
        why = "the model wrote nothing" if is_generated and not generated else "no token of it is in the context"
        why = why if is_generated else "its prompt has no token"
        raise Unread(f"{why}; leave the row out")
    return found


def _contents(part: Part, regions: Sequence[Region]) -> list[tuple[int, int]]:
    """The characters of the messages of a role."""
    own = [(start, end) for name, start, end in regions if name == part.name]
    if not own:
        roles = list(dict.fromkeys(region.name for region in regions))
        there = f"its roles are {listed([ascii(role) for role in roles])}" if roles else "it has no messages"
        raise Unread(f"no message has the role {part.name!a}, {there}; read another role, or leave the row out")
    if part.turn is not None:
        if not -len(own) <= part.turn < len(own):
            messages = counted(len(own), "message")
            raise Unread(f"it has {messages} of the role {part.name!a}, and number {part.turn} is to be read")
        own = [own[part.turn]]
    if all(start == end for start, end in own):
        raise Unread(f"the content of {_part_text(part)} is empty; read another role, or leave the row out")
    return own


def _occurrence(name: str, text: str) -> tuple[int, int]:
    """The characters of the only occurrence of a substring."""
    first = text.find(name)
    if first < 0:
        raise Unread(f"{name!a} does not occur in it; correct the selection, or leave the row out")
    if (second := text.find(name, first + 1)) >= 0:
        raise Unread(
            f"{name!a} occurs twice or more, at character {first} in {_around(text, first, name)} and at {second} in "
            f"{_around(text, second, name)}; give a longer text that occurs once"
        )
    return first, first + len(name)


def _around(text: str, at: int, name: str) -> str:
    """An occurrence with a few characters on either side, escaped."""
    start, end = max(at - AROUND, 0), at + len(name) + AROUND
    return f"{'...' if start else ''}{text[start:end]!a}{'...' if end < len(text) else ''}"


def _check_cut(part: Part, selection: Selection, left: str, found: int) -> None:
    """Raise Unread where tokens to read were cut off at the context; `left` are the part's characters after the cut."""
    pick = selection.pick
    ends = pick if isinstance(pick, tuple) else [-1 if pick == "last" else pick]
    from_end = any(isinstance(end, int) and end < 0 for end in ends)
    if left.strip() and (not found or part.kind in ("in", "after") or (part.kind == "role" and from_end)):
        raise Unread(f"{_part_text(part)} is cut off at the model's context; shorten the text, or leave the row out")


def _part_text(part: Part) -> str:
    """A part in words."""
    if part.kind != "role":
        return ascii(part.name)
    return f"the role {part.name!a}" + ("" if part.turn is None else f" (message {part.turn})")


def _picked(pick: Any, chosen: TokenSet, bad: Bad, selection_of: Callable[[int], Selection]) -> tuple[TokenSet, Bad]:
    """The tokens of the part that a selection takes; and the bad texts, with those whose part has no such token."""
    n = chosen.counts
    if isinstance(pick, tuple):
        start, stop = (np.clip(_from_start(end, n), 0, n) for end in (pick[0] or 0, pick[1]))
        counts = np.maximum(stop - start, 0)
    elif isinstance(pick, str) and pick in ("all", "mean"):
        start, counts = np.zeros_like(n), n
    else:
        start = _from_start({"first": 0, "last": -1}[pick] if isinstance(pick, str) else pick, n)
        counts = ((start >= 0) & (start < n)).astype(np.int64)
    outside = np.flatnonzero(counts == 0).tolist()
    bad = {row: _outside(selection_of(row), int(n[row])) for row in outside} | bad
    if chosen.index is None and counts is n:
        return chosen, bad
    within = ranges(start, counts)
    index = within if chosen.index is None else chosen.index[np.repeat(chosen.starts, counts) + within]
    return TokenSet(counts, index), bad


def _from_start(end: int | np.ndarray | None, n: np.ndarray) -> np.ndarray:
    """An index counted from the first of n tokens; None is one past the last."""
    return n if end is None else np.where(np.less(end, 0), n + end, end)


def _outside(selection: Selection, n: int) -> str:
    pick = selection.pick
    of = "" if selection.part is None else f" of {selection.part}"
    if not n:
        return f"it has no token{of} to read; read other tokens, or leave the row out"
    what = "slice" if isinstance(pick, tuple) else "token"
    name = Selection(pick)
    return f"it has {counted(n, 'token')}{of}, and {what} {name} is to be read; read another, or leave the row out"

"""Short warnings shown with the best score, in the table and in the picture: leaks, texts that were cut, and edits."""

from typing import Any, Protocol

from probekit.tasks.quality.compare_splits import difference_text
from probekit.text import counted

LONGEST = 70  # characters of a phrase
LEAST_LEAK = 0.01  # share of test; a smaller leak is left to the audit
LEAST_RATIO = 1.5  # of the mean lengths of test and train; smaller differences are left to the audit


class _Recorded(Protocol):
    @property
    def meta(self) -> dict[str, Any]: ...


def cautions(data: _Recorded) -> list[str]:
    """Phrases of at most 70 characters, the most important first; empty if all is well.

    They are made from `meta["test_leak"]`, `meta["audit"]`, `meta["unread"]`, `meta["texts_cut"]` and what the
    activations record of edits, which older results lack.
    """
    leak, cut = data.meta.get("test_leak"), data.meta.get("texts_cut")
    found = [] if not leak or leak["removed"] else [*_texts_leak(leak), _groups_leak(leak)]
    edited = data.meta.get("activations", {}).get("edited")
    unread = data.meta.get("unread", 0)
    found += [_unlike(one) for one in (data.meta.get("audit") or {}).get("differences", []) if one["split"] == "test"]
    found += [f"{counted(unread, 'text')} without the token to read left out"] if unread else []
    found += [_cut(cut) if cut else "", _short(f"edited model: {edited}") if edited else ""]
    return [phrase for phrase in found if phrase]


def _texts_leak(leak: dict[str, Any]) -> list[str]:
    """Test texts that are in another split, and those that only have near-duplicates there, each if they are many."""
    if leak["texts"] <= LEAST_LEAK * leak["of_texts"]:
        return []
    near = leak.get("near", 0)  # older results did not tell them apart
    where, removes = " or ".join(leak["also_in"]), " removes them" if len(leak["also_in"]) == 1 else ""
    kinds = {"are also in": leak["texts"] - near, "are near-duplicates of": near}
    told = [f"{_share(n, leak['of_texts'])} of test texts {what} {where}" for what, n in kinds.items() if n]
    advice = (f" (--drop-leaks{removes})", " (--drop-leaks)", "")
    return [next(phrase + one for one in advice if len(phrase + one) <= LONGEST) for phrase in told]


def _groups_leak(leak: dict[str, Any]) -> str:
    n, of = leak["group_rows"], leak["of_rows"]
    if n <= LEAST_LEAK * of:
        return ""
    return f"{_share(n, of)} of test rows share a group with another split (--drop-leaks)"


def _unlike(one: dict[str, Any]) -> str:
    """How test differs from train where that alone may change the score: in its labels, or much in its length."""
    own, train = one["values"]
    if one["what"] in ("label", "target"):
        return _short(difference_text(one))
    if one["what"] != "length" or not min(own, train) or max(own, train) < LEAST_RATIO * min(own, train):
        return ""
    return f"test texts are {own / train:.1f} times as long as train texts"


def _cut(cut: dict[str, Any]) -> str:
    """How many texts were cut, and whether the token that is read is at the cut, if that is known."""
    if not cut["texts"]:
        return ""
    read = {"cut": ", and read there", "before": " after the token read"}.get(cut["read"], "")
    were = "was" if cut["texts"] == 1 else "were"
    return f"{cut['texts']:,} of {counted(cut['of'], 'text')} {were} cut at the context{read}"


def _short(phrase: str) -> str:
    return phrase if len(phrase) <= LONGEST else f"{phrase[: LONGEST - 3]}..."


def _share(n: int, of: int) -> str:
    return "100%" if n == of else "below 1%" if n < 0.005 * of else f"{min(n / of, 0.99):.0%}"

"""The step of training in the name of a checkpoint: "step1000", "stage1-step1000-tokens5B", "checkpoint-500", "10k"."""

import re

_NUMBER = r"(?P<number>\d+(?:\.\d+(?=[kmbt]))?)(?:(?P<unit>[kmbt])(?![a-z0-9]))?"
# how checkpoints of public suites are called: Pythia and OLMo "step", Trainer "checkpoint", others "iter" and "ckpt"
_NAMED = re.compile(r"(?:step|checkpoint|ckpt|iter(?:ation)?)[-_]?" + _NUMBER, re.IGNORECASE)
_LAST = re.compile(r"(?<!\d)(?<!\d\.)" + _NUMBER + r"(?!.*\d)", re.IGNORECASE)
_UNITS = {"": 0, "k": 3, "m": 6, "b": 9, "t": 12}  # powers of ten
_COMMIT = re.compile(r"[0-9a-f]{40}")
_LONGEST = 15  # digits


def training_step(revision: str | None) -> int | None:
    """The step in the name of a revision: the number after "step" or "checkpoint", or else the last number.

    A unit after the number counts: 10k is 10,000, and 300B (of tokens) is 300,000,000,000.
    """
    found = _search(revision)
    if found is None or len(found["number"]) > _LONGEST:
        return None
    whole, _, part = found["number"].partition(".")
    zeros = _UNITS[(found["unit"] or "").lower()]
    return int(whole + part[:zeros].ljust(zeros, "0"))


def series_of(revision: str) -> str:
    """What precedes the step: "stage1-step10000-tokens42B" -> "stage1-"; another stage counts its own steps."""
    found = _search(revision)
    return "" if found is None else revision[: found.start()]


def _search(revision: str | None) -> re.Match[str] | None:
    if revision is None or _COMMIT.fullmatch(revision):
        return None
    return _NAMED.search(revision) or _LAST.search(revision)

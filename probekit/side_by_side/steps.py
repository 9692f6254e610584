"""The step of training that the name of a checkpoint says: "step1000", "stage1-step1000-tokens5B", "checkpoint-500"."""

import re

# how checkpoints of public suites are called: Pythia and OLMo "step", Trainer "checkpoint", others "iter" and "ckpt"
_NAMED = re.compile(r"(?:step|checkpoint|ckpt|iter(?:ation)?)[-_]?(\d+)", re.IGNORECASE)
_LAST = re.compile(r"(\d+)(?!.*\d)")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_LONGEST = 15  # digits


def training_step(revision: str | None) -> int | None:
    """The step in the name of a revision: the number after "step" or "checkpoint", or else the last number."""
    if revision is None or _COMMIT.fullmatch(revision):
        return None
    found = _NAMED.search(revision) or _LAST.search(revision)
    return int(found[1]) if found and len(found[1]) <= _LONGEST else None

"""Try the rules of a tokenizer.json on hard texts, in a child process that can be stopped.

The regular expressions of the `tokenizers` library run outside Python, where nothing can interrupt them. Its engine
gives up on a match after ten million steps, which `Tokenizer.encode` reports. That stops an expression of exponential
time, but not one whose time grows with the cube of the text, and nothing stops rules that make a text a billion times
longer. So rules that are not well known have to treat hard texts in seconds first. This is a trial, not a proof.
"""

import json
import math
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from probekit.errors import DataError

SECONDS = 10  # with a published expression all texts take 0.05 s
MOST_GROWTH = 64  # how many times longer rules may make a text without a trial; a blank becomes 3 bytes in many
LENGTH = 3000  # characters of a text
_ENDINGS = r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SUFFIXES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WELL_KNOWN = {
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": "GPT-2",
    _SUFFIXES + _ENDINGS % "{1,3}": "Llama 3",
    _SUFFIXES + _ENDINGS % "": "Qwen2",
    "^ +| +$": "Marian",
    " {2,}": "Marian",
}
_RULES = ("normalizer", "pre_tokenizer", "decoder")
_CHILD = """
import json, sys
from tokenizers import Tokenizer
try:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, resource.getrlimit(resource.RLIMIT_AS)[1]))
except (ImportError, ValueError):  # not on Windows; the limit is lower already
    pass
rules, texts = json.load(sys.stdin)
for text in texts:
    try:
        tokenizer = Tokenizer.from_str(rules)
        tokenizer.decode(tokenizer.encode(text).ids)
    except BaseException as error:  # a panic is one; the parent meets it, too, and reports it
        if isinstance(error, (KeyboardInterrupt, MemoryError)):
            raise
print("done")
"""


def check_patterns(path: Path, content: Mapping[str, Any]) -> None:
    """Refuse a tokenizer.json whose rules take too long, or make texts too long.

    Args:
        path: the file, for the message.
        content: what is in it.

    Raises:
        DataError: its own rules did not treat the hard texts in time.
    """
    rules = {name: content.get(name) for name in _RULES}
    found = list(_patterns(rules))
    strange = [expression for kind, expression, _ in found if kind == "Regex" and expression not in WELL_KNOWN]
    growth = math.prod(max(1, length) for _, _, length in found)
    if (strange or growth > MOST_GROWTH) and not _is_quick(rules, "".join(strange)):
        what = f"the expression {strange[0]!a:.80}" if strange else "its replacements"
        raise DataError(
            f"{str(path)!a}: with {what}, a text of {LENGTH:,} characters takes more than {SECONDS} s or 2 GB; use the "
            "model's published tokenizer files"
        )


def _patterns(rules: Any) -> Iterator[tuple[str, str, int]]:
    """("Regex" or "String", expression, characters of its replacement) of every rule, however deep."""
    nodes = [rules]
    while nodes:
        node = nodes.pop()
        if isinstance(node, dict):
            pattern, text = node.get("pattern"), node.get("content")
            for kind, expression in pattern.items() if isinstance(pattern, dict) else ():
                yield kind, str(expression), len(text) if isinstance(text, str) else 1
            nodes += node.values()
        elif isinstance(node, list):
            nodes += node


def _is_quick(rules: Mapping[str, Any], expressions: str) -> bool:
    """True if the rules treat runs of each character that matters within the limits."""
    letters = sorted({*" aA1.,'-_\n\u00e9\u4e2d", *expressions[:200]})
    texts = [text for one in letters for text in (one * LENGTH, one * LENGTH + "!", (one + "a") * (LENGTH // 2))]
    model = {"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"}
    tokenizer = {"version": "1.0", "added_tokens": [], "post_processor": None, "model": model, **rules}
    command = [sys.executable, "-P", "-c", _CHILD]
    try:
        sent = json.dumps([json.dumps(tokenizer), texts])
        done = subprocess.run(command, input=sent, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.stdout == "done\n"

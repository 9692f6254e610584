"""What can be read off the syntax tree about every message of an error: short, in plain words, lists that end.

A message is the text inside a `raise`, with `{}` for each field.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "probekit"
SOURCES = {str(path.relative_to(PACKAGE)): path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


def raises(block: ast.AST) -> Iterator[ast.Raise]:
    """The `raise` statements; expressions hold none and are left out, for speed."""
    for name in BLOCKS:
        for node in getattr(block, name, ()):
            if isinstance(node, ast.Raise):
                yield node
            yield from raises(node)


@cache
def all_raises() -> list[tuple[str, ast.Call]]:
    """Where an error is raised, and the call that makes it; parsed when a test asks for it."""
    return [
        (f"{name}:{node.lineno}", node.exc)
        for name, source in SOURCES.items()
        for node in raises(ast.parse(source))
        if isinstance(node.exc, ast.Call)
    ]


def texts(message: ast.expr) -> Iterator[str]:
    """The texts in an expression; those in the fields of an f-string are texts of their own."""
    for node in ast.walk(message):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def found(pattern: str) -> list[str]:
    return [f"{where} {text}" for where, message in all_raises() for text in texts(message) if re.search(pattern, text)]


def test_the_messages_are_found():
    assert len(all_raises()) > 400
    (raised,) = ast.parse('raise E(f"got {len(a)} of {b!a}")').body
    assert isinstance(raised, ast.Raise)
    assert raised.exc is not None
    assert next(texts(raised.exc)) == "got {} of {}"


def test_a_message_has_at_most_two_sentences():
    assert found(r"[.?!] [A-Z].*[.?!] [A-Z]") == []


def test_a_message_asks_no_question_and_ends_without_a_full_stop():
    assert found(r"\?|[^.]\.$") == []  # "did you mean ...?" is of `probekit.errors.nearest`


def test_lists_of_data_in_a_message_end():
    """`probekit.text.listed` writes "and 990 more"; only a constant, in capitals, may be joined."""
    endless = [
        f"{where} {ast.unparse(node)}"
        for where, message in all_raises()
        for node in ast.walk(message)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "join"
        if isinstance(node.func.value, ast.Constant) and str(node.func.value.value)[:1] in ",;"
        if not (isinstance(node.args[0], ast.Name) and node.args[0].id.isupper())
    ]
    assert endless == []


def test_paths_in_a_message_are_escaped():
    """A path is shown as `{str(path)!a}`: its name may hold characters that a terminal obeys."""
    bare = [
        f"{where} {ast.unparse(node.value)}"
        for where, message in all_raises()
        for node in ast.walk(message)
        if isinstance(node, ast.FormattedValue) and node.conversion == -1
        if re.match(r"(path|folder|file|str\((path|folder|file)\))$", ast.unparse(node.value))
    ]
    assert bare == []


def test_plurals_are_written_in_one_place():
    """`probekit.text.counted` writes "1 text" and "2 texts"."""
    own = [name for name, source in SOURCES.items() if re.search(r"""["']s["'] (\*|if) """, source)]
    assert own == []


def test_no_error_of_ours_carries_the_traceback_of_a_library():
    """`from None`: in a notebook the chain of a tokenizer's error is 90 lines. An error of the disk keeps its cause,
    whose number says what to advise."""
    keep_the_cause = {"cli/stores.py", "worlds/train.py", "sharing/remote.py"}
    keep_the_cause |= {"activations/sums/statistics.py"}
    keep_the_cause |= {"results/kinds.py"}
    chained = [
        f"{name}:{node.lineno}"
        for name, source in SOURCES.items()
        if name not in keep_the_cause and not name.startswith("files/")
        for node in raises(ast.parse(source))
        if isinstance(node.cause, ast.Name)
    ]
    assert chained == []

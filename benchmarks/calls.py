"""Count how control passes between the rooms and modules of probekit during one `extract` or `train_probes`.

    python benchmarks/calls.py extract --carry layers
    python benchmarks/calls.py train_probes --carry acts

A room is a folder of the package; a file directly in `probekit/` is a room by itself. A tiny GPT-2 with random weights
runs on 60 texts of random tokens, so nothing is downloaded. `sys.setprofile` reports every call of the main thread.

What is counted: an entry is a call from a function of one room (or module) to a function of another, where frames
outside of probekit are skipped. The same caller and callee count once, so that loops over places, batches and shards do
not add up. An entry is "again" if its room was entered before, and "again from above" if moreover no function of the
room is waiting on the stack; a call into a waiting room is a callback or a recursion. The tools that every room may use
(errors, points, text, progress, ...) are listed but left out of the totals.

With --carry only those calls count that have the value among their arguments: the argument itself, what it was resolved
to (`layers`: the list of places; `position`: the array of indices; `options`: every object that holds the options of an
extraction; `out`, with which the activations go to a store: the path and those inside it), or a dataclass, list or dict
with it, four levels deep at most. That follows one argument from the public function to the last one that takes it.
Methods and properties of the value itself are left out: `acts.labels` passes nothing on.
"""

import argparse
import dataclasses
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

import probekit
from probekit.selections import Selection

PACKAGE = Path(probekit.__file__).parent
TOOLS = {"errors", "text", "versions", "progress", "tables", "devices", "durable", "files", "points", "options"}
TOOLS |= {"remote", "plain_files", "scratch", "hub"}  # of `files`, where they stood before there was this folder
DEEP = 4
LONG = 32  # containers with more entries are not searched
Carries = Callable[[Any], bool]


class Calls:
    """Counts entries into modules and rooms while it is active."""

    def __init__(self, is_value: Carries | None):
        self.is_value = is_value
        self.carries = None if is_value is None else carries_any(is_value)
        self.counts = {kind: {"entered": Counter(), "from above": Counter()} for kind in ("room", "module")}
        self._stack: list[CodeType] = []
        self._seen: set[tuple[CodeType, CodeType]] = set()
        self._names: dict[CodeType, tuple[str, str] | None] = {}

    def __enter__(self) -> "Calls":
        sys.setprofile(self._event)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _event(self, frame: FrameType, event: str, _: Any) -> None:
        if event not in ("call", "return"):
            return
        code = frame.f_code
        if code not in self._names:
            self._names[code] = names_of(code)
        if self._names[code] is None or code.co_name.startswith("<"):
            return
        if event == "return":
            if self._stack and self._stack[-1] is code:
                self._stack.pop()
            return
        if self._stack and (self._stack[-1], code) not in self._seen and self._counts(frame):
            self._seen.add((self._stack[-1], code))
            self._count(code)
        self._stack.append(code)

    def _counts(self, frame: FrameType) -> bool:
        if self.carries is None:
            return True
        code = frame.f_code
        n = code.co_argcount + code.co_kwonlyargcount
        n += bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)  # *args and **kwargs
        named = {name: frame.f_locals.get(name) for name in code.co_varnames[:n]}
        if self.is_value is not None and self.is_value(named.get("self")):
            return False
        return any(self.carries(value) for value in named.values())

    def _count(self, code: CodeType) -> None:
        callee = self._names[code]
        waiting = [name for name in (self._names[other] for other in self._stack) if name]
        for i, kind in enumerate(("room", "module")):
            assert callee is not None
            if waiting[-1][i] != callee[i]:
                self.counts[kind]["entered"][callee[i]] += 1
                if all(name[i] != callee[i] for name in waiting):
                    self.counts[kind]["from above"][callee[i]] += 1


def names_of(code: CodeType) -> tuple[str, str] | None:
    """(room, module) of a function of probekit; None for any other."""
    path = Path(code.co_filename)
    if PACKAGE not in path.parents:
        return None
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return "/".join(parts[:-1]) or parts[0], "/".join(parts)


def carries_any(is_value: Carries) -> Carries:
    """True for the value, and for dataclasses, lists and dicts with it."""

    def carries(x: Any, deep: int = DEEP) -> bool:
        if is_value(x):
            return True
        if deep == 0 or x is None or isinstance(x, (str, int, float, np.ndarray)):
            return False
        if dataclasses.is_dataclass(x) and not isinstance(x, type):
            inner: Sequence[Any] = [getattr(x, field.name, None) for field in dataclasses.fields(x)]
        elif isinstance(x, (list, tuple, dict)) and len(x) <= LONG:
            inner = list(x.values()) if isinstance(x, dict) else x
        else:
            return False
        return any(carries(one, deep - 1) for one in inner)

    return carries


def report(calls: Calls) -> None:
    """Print a table of rooms and one of modules, with totals."""
    for kind, counts in calls.counts.items():
        tools = {name for name in counts["entered"] if name.split("/")[0] in TOOLS}
        print(f"{kind:<34}{'entered':>9}{'again':>9}{'again from above':>19}")
        totals = Counter[str]()
        for name, n in counts["entered"].items():
            above = max(0, counts["from above"][name] - 1)
            print(f"{name:<34}{n:>9}{n - 1:>9}{above:>19}{'   (tool)' if name in tools else ''}")
            if name not in tools:
                totals += Counter(entered=n, again=n - 1, above=above, names=1)
        print(f"{totals['names']} {kind}s entered {totals['entered']} times, {totals['again']} again,", end=" ")
        print(f"{totals['above']} again from above\n")


def tiny() -> tuple[Any, Any]:
    """A model with random weights and a task of random tokens."""
    from probekit.models.families.gpt2 import GPT2, GPT2Config
    from probekit.tasks import Task

    sizes: dict[str, Any] = {"d_model": 16, "n_heads": 2, "d_mlp": 24, "n_layers": 3, "n_ctx": 12, "d_vocab": 27}
    model = GPT2(GPT2Config(**sizes)).init_weights(0)
    rng = np.random.default_rng(0)
    inputs = [rng.integers(1, 27, size=rng.integers(4, 13)).tolist() for _ in range(60)]
    splits = np.array([("train", "validation", "test")[i % 3] for i in range(60)])
    labels = {"odd": np.array([text[0] % 2 for text in inputs])}
    return model, Task("random", inputs, labels, {"odd": ["no", "yes"]}, splits, "odd")


def main() -> None:
    """Run, count and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["extract", "train_probes"])
    parser.add_argument("--carry", choices=["layers", "position", "acts", "options", "out"])
    args = parser.parse_args()
    import probekit as pk

    model, task = tiny()
    scratch = tempfile.TemporaryDirectory()
    out = Path(scratch.name) / "store"
    layers, position = [0, 2], np.array([i % 3 + 1 for i in range(60)])
    how: dict[str, Any] = {"layers": layers, "position": position, "progress": False}
    acts = pk.extract(model, task, **how)  # also imports everything
    places = list(map(repr, acts))

    def is_position(x: Any) -> bool:
        index = x.each if isinstance(x, Selection) else x
        return isinstance(index, np.ndarray) and np.array_equal(index, position)

    values: dict[str, Carries] = {
        "layers": lambda x: x is layers or (isinstance(x, list) and len(x) < LONG and list(map(repr, x)) == places),
        "position": is_position,
        "acts": lambda x: x is acts,
        "options": lambda x: type(x).__name__ in ("ExtractOptions", "ExtractArguments"),
        "out": lambda x: isinstance(x, str | Path) and Path(x).is_relative_to(out),
    }
    if args.carry == "out":
        how["out"] = out
    if args.verb == "train_probes":
        pk.train_probes(acts)
    with Calls(values.get(args.carry)) as calls:
        if args.verb == "extract":
            pk.extract(model, task, **how)
        else:
            pk.train_probes(acts)
    report(calls)


if __name__ == "__main__":
    main()

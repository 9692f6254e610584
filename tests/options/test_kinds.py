"""Values of options of a wrong kind, and options by position: one line, before anything runs."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import probekit as pk
from probekit.errors import DataError, ProbekitError, UsageError
from probekit.options import EngineOptions, ProbeArguments
from probekit.options.kinds import CallError, dtype, positive_numbers, stacked_layers
from probekit.options.option import keywords, option


@dataclass(frozen=True, kw_only=True)
class Options:
    """Fields of every kind that is checked, and two that are not."""

    name: str | None = option(None, "")
    size: int = option(1, "")
    share: float = option(0.5, "")
    deep: bool | None = option(None, "")
    path: str | Path = option("x", "")
    layers: str | int | Iterable[int] = option("all", "")
    done: Callable[[int, int], None] | None = option(None, "")
    mode: Literal["a", "b"] = option("a", "")
    other: Any = option(None, "")


@keywords(Options)
def verb(given: int, options: Options) -> Options:
    """A verb."""
    return options


@pytest.mark.parametrize(
    "options",
    [
        {"name": np.str_("x"), "size": np.int64(3), "share": 2, "deep": np.bool_(True), "path": Path("y")},
        {"share": np.float32(0.5), "layers": (1, 2), "done": print, "mode": "c", "other": object()},
        {"layers": range(3)},
        {"layers": np.arange(3), "deep": None},
    ],
)
def test_values_of_the_fields_types_pass(options):
    for name, value in options.items():
        assert getattr(verb(1, **options), name) is value


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": 3}, "name must be a text or None; got 3"),
        ({"size": True}, "size must be a whole number; got True"),
        ({"size": 2.5}, "size must be a whole number; got 2.5"),
        ({"share": "x"}, "share must be a number; got 'x'"),
        ({"deep": 1}, "deep must be True or False or None; got 1"),
        ({"path": b"x"}, "path must be a text or a path; got a bytes"),
        ({"layers": None}, "layers must be a text, a whole number or a list; got None"),
        ({"done": 3}, "done must be a function or None; got 3"),
        ({"name": "x" * 999, "size": "y" * 999}, "size must be a whole number; got 'yyy"),
    ],
)
def test_other_values_are_refused(options, words):
    with pytest.raises(UsageError, match=words) as caught:
        verb(1, **options)
    assert len(str(caught.value)) < 120


def test_options_by_position_and_unknown_ones_are_errors_of_both_families():
    with pytest.raises(
        CallError, match=r"verb\(\) takes its options by name, such as name=\.\.\.; got 2 as a positional argument"
    ):
        verb(1, 2)  # pyright: ignore[reportCallIssue]
    with pytest.raises(CallError, match=r"no option 'nam'; did you mean name"):
        verb(1, nam=2)  # pyright: ignore[reportCallIssue]
    assert issubclass(CallError, TypeError)
    assert issubclass(CallError, ProbekitError)


READ: list[tuple[Callable[[str], Any], dict[str, Any], list[str]]] = [
    (lambda text: ProbeArguments(memory=text).memory, {"8GB": 8e9, "1.5MiB": 1.5 * 2**20, "512": 512}, ["0", "8XB"]),
    (
        lambda text: EngineOptions(part=text).part,
        {"1/1": (1, 1), "4/4": (4, 4)},
        ["0/4", "5/4", "1/100000", "1"],
    ),
    (lambda text: EngineOptions(engine="ray", workers=text).workers, {"4": (4, 4), "1:8": (1, 8)}, ["0", "8:1", "x"]),
    (
        lambda text: EngineOptions(devices=text).devices,
        {"0, cpu": ("cuda:0", "cpu"), "auto": ("auto",)},
        ["", "auto,0"],
    ),
    (stacked_layers, {"3,0": [3, 0], "2-4": [2, 3, 4], "5-5": [5]}, ["4-", "x", "", "0-99999"]),
    (positive_numbers, {"0.1,inf": [0.1, float("inf")]}, ["0", "1,,2", "x", "nan"]),
    (dtype, {"bf16": "bfloat16", "float32": "float32"}, ["fp64", "int8"]),
]


@pytest.mark.parametrize(("read", "good", "bad"), READ)
def test_words_are_read_as_their_values_or_refused(read, good, bad):
    assert {text: read(text) for text in good} == good
    for text in bad:
        with pytest.raises(UsageError):
            read(text)


@pytest.mark.parametrize("given", [3, None, 2.5, [], {}, b"x", True, np.zeros(3)])
def test_what_is_no_path_is_refused_by_every_verb_that_reads_one(given):
    verbs: list[Any] = [
        pk.load_model,
        pk.load_activations,
        pk.load_statistics,
        pk.load_probe,
        pk.random_init_of,
        pk.import_activations,
        pk.ProbeResults.load,
        pk.TransferResults.load,
    ]
    for read in verbs:
        with pytest.raises(UsageError, match="must be a path; got"):
            read(given)


@pytest.mark.parametrize("given", ["gpt2", 3, None, []])
def test_verbs_say_what_they_take(given):
    verbs: list[Any] = [pk.selftest, pk.train_probes, pk.transfer]
    for read in verbs:
        with pytest.raises(UsageError, match=r"a model from|expected activations|takes a list of|two tasks"):
            read(given)


def test_results_of_nothing_are_refused():
    with pytest.raises(DataError, match="expected the results of one place or more"):
        pk.ProbeResults([], [], {})

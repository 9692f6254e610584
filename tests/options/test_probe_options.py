from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from probekit.errors import UsageError
from probekit.options import CurveOptions, ModelOptions, ProbeOptions, SweepOptions
from probekit.options.capabilities import CAPABILITIES, Needs
from probekit.options.causal import CausalOptions
from probekit.options.check import check_positive, check_whole
from probekit.options.generate import ContinuationOptions


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(({"folds": folds}, "nested folds must be 3 or more") for folds in (2, 1, 0, -1, 2.5, True)),
        ({"folds": 3, "drop_leaks": True}, "folds keep repeated and nearly repeated texts together"),
        ({"seed": -1}, "seed must be a whole number, 0 or more; got -1"),
        ({"controls": 1.5}, "controls must be a whole number, 0 or more; got 1.5"),
        ({"control_type": "texts"}, "control_type .* is one of token, text; got 'texts'; did you mean text"),
        ({"C": []}, "the list of C is empty"),
        ({"layers": 2.5}, "layers are all, 3, .*; got 2.5"),
        ({"layers": None}, "layers are all, 3, .*; got None"),
        ({"C": [1, float("nan")]}, "C must be a positive number, or inf for no penalty; got nan"),
        ({"C": [1, 1e101]}, "C must be between 1e-100 and 1e\\+100; got 1e\\+101"),
        ({"C": 1e-101}, "C must be between 1e-100 and 1e\\+100; got 1e-101"),
    ],
)
def test_values_that_no_data_allows_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ProbeOptions(**options)


def test_iterators_are_kept_and_C_rises() -> None:
    options = CurveOptions(C=(value for value in (10, 0.1, 10)), layers=iter([2, 0]))
    assert (options.C, options.layers) == ((0.1, 10.0), (2, 0))
    assert CurveOptions(**vars(options)) == options
    assert CurveOptions(C=1).C == (1.0,)


def test_numbers_of_numpy_become_those_of_python_which_json_can_hold() -> None:
    three: Any = np.int64(3)
    options = ProbeOptions(seed=three, controls=three, folds=three, layers=three)
    assert [type(value) for value in (options.seed, options.controls, options.folds, options.layers)] == [int] * 4


def test_what_is_no_number_is_refused() -> None:
    assert check_positive("C", np.float32(0.5)) == 0.5
    for wrong in (True, np.bool_(True), "3", 2.0, None, np.array([3])):
        with pytest.raises(UsageError, match="n must be a whole number"):
            check_whole("n", wrong)
    for wrong in (True, "1", None, 0, -1, float("inf"), np.array(1.0)):
        with pytest.raises(UsageError, match="C must be a positive, finite number"):
            check_positive("C", wrong)


def test_several_probes_may_come_in_any_collection() -> None:
    for several in (["ridge", "lda"], dict.fromkeys(["ridge", "lda"]).keys(), iter(["ridge", "lda"])):
        given: Any = several
        assert SweepOptions(probe=given).probe == ("ridge", "lda")
    assert SweepOptions(probe={"name": "ridge"}).probe == {"name": "ridge"}


@pytest.mark.parametrize(
    ("options", "arguments", "message"),
    [
        (
            CausalOptions,
            {"neutral": np.array(["a", "b"]), "methods": "patch"},
            r"and neutral \(--neutral\) exclude each other",
        ),
        (
            ModelOptions,
            {"device": "\x1b[31mX\n" * 100, "device_map": "auto"},
            r"^device \(--device\) and device_map='auto' \(--device-map\) exclude",
        ),
        (
            ProbeOptions,
            {"by": "position", "concatenate": []},
            r"and concatenate \(--concatenate\) exclude",
        ),
    ],
)
def test_options_that_exclude_each_other_may_be_of_any_type(options: Any, arguments: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        options(**arguments)


def test_each_option_of_continuations_needs_a_number_of_tokens() -> None:
    (needing,) = (set(row.options) for row in CAPABILITIES if isinstance(row, Needs) and row.others == ("generate",))
    assert needing == {each.name for each in fields(ContinuationOptions)} - {"generate"} | {"no_stop"}

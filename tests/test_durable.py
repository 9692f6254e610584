"""The form of JSON values."""

from typing import Any

import pytest

from probekit.files.durable import matches


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        (1, int),
        ("a", str | int),
        ([1, "a"], [str | int]),
        ([], [int]),
        ([[], [1, 2]], [[int]]),
        ([["q", 0], ["embed", None]], [(str, int | None)]),
        ({"rows": 3, "more": 1}, {"rows": int}),
        ({"a": [1], "b": []}, {str: [int]}),
        ({"rows": 3}, {"rows": int, "shards?": int}),
        ({"rows": 3, "shards": None}, {"rows": int, "shards?": int}),
    ],
)
def test_values_of_a_form_match_it(value: Any, schema: Any) -> None:
    assert matches(value, schema)


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        (True, int),
        (1.0, int),
        (None, str),
        ([1, True], [int]),
        ([[1], [2, True]], [[int]]),
        ([[1], 2], [[int]]),
        ("ab", [str]),
        (["q"], [(str, int)]),
        ([["q", 0, 1]], [(str, int)]),
        ({}, {"rows": int}),
        ({"rows": 3, "shards": "x"}, {"rows": int, "shards?": int}),
        ({"a": 1}, {str: [int]}),
        ([], {"rows": int}),
    ],
)
def test_other_values_do_not(value: Any, schema: Any) -> None:
    assert not matches(value, schema)

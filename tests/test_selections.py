"""The language of selections: what is written comes back, and what is outside it is refused in one line."""

import json
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probekit.errors import UsageError
from probekit.selections import ALL, PER_EXAMPLE, Part, Selection, check_in_language, parse_selections

numbers = st.integers(-999, 999)
ends = st.one_of(st.none(), numbers)
slices = st.tuples(ends, ends).filter(lambda e: e[0] is None or e[1] is None or (e[0] < 0) != (e[1] < 0) or e[0] < e[1])
picks = st.one_of(st.sampled_from(["last", "first", "mean", "all"]), numbers, slices)
roles = st.builds(str.__add__, st.sampled_from("aZ_"), st.text("bY_-7", max_size=3))
parts = st.one_of(
    st.none(),
    st.builds(Part, st.just("role"), roles, ends),
    st.builds(Part, st.sampled_from(["prompt", "generated"])),
    st.builds(Part, st.sampled_from(["in", "before", "after"]), st.text(min_size=1)),
)
selections = st.builds(Selection, picks, parts)


def said(selection):
    return str(selection), selection.pick, selection.part


@given(selections)
def test_what_is_written_is_read_again(selection):
    assert said(Selection.parse(str(selection))) == said(selection)


@given(st.lists(selections, min_size=1, max_size=4))
def test_commas_inside_quotes_separate_nothing(several):
    texts = [str(one) for one in several]
    assert list(map(said, parse_selections(",".join(texts)))) == list(map(said, several))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("last", Selection("last")),
        ("-5:", Selection((-5, None))),
        ("last@assistant", Selection("last", Part("role", "assistant"))),
        ("all@user[0]", Selection("all", Part("role", "user", 0))),
        ("mean@generated", Selection("mean", Part("generated"))),
        ('in:"a, b"', Selection("all", Part("in", "a, b"))),
        ("in:Paris", Selection("all", Part("in", "Paris"))),
        ('in: "Paris"', Selection("all", Part("in", "Paris"))),
        ("before:'x'", Selection("last", Part("before", "x"))),
        (r'after:"\""', Selection("first", Part("after", '"'))),
        ('mean@in:"x"', Selection("mean", Part("in", "x"))),
        ("last@in", Selection("last", Part("role", "in"))),  # a role may have any name
    ],
)
def test_examples(text, expected):
    assert said(Selection.parse(text)) == said(expected)


def test_several_rows_for_a_text():
    several = {"all": True, "-5:": True, 'in:"x"': True, "last": False, "mean@user": False, "3": False}
    assert {text: Selection.parse(text).several for text in several} == several


@pytest.mark.parametrize("one", [Selection.parse("last@user[-1]"), Selection(-2), Selection.of([3, 1]), ALL])
def test_a_selection_is_its_text_and_travels_with_what_it_says(one):
    again = pickle.loads(pickle.dumps(one))
    assert one == str(one) == again
    assert said(again) == said(one)
    np.testing.assert_array_equal(again.each, one.each)
    assert json.loads(json.dumps(one.plain)) == one.plain


def test_a_position_is_a_selection_a_number_or_a_number_for_each_text():
    assert Selection.of(3) == Selection.of(np.int64(3)) == Selection.of("3") == "3"
    assert Selection.of(np.arange(4)) == PER_EXAMPLE == Selection.of("per example")
    for other in (1.5, True, {"last": 1}, None, np.array(["last"])):
        with pytest.raises(UsageError, match="a position is a selection such as last"):
            Selection.of(other)


@pytest.mark.parametrize("name", [PER_EXAMPLE, Selection.named("not recorded")])
def test_a_bare_name_reads_no_tokens(name):
    """A task or an import with such a position could be stored, and not read again."""
    for refuse in (Selection.parse, check_in_language):
        with pytest.raises(UsageError, match="expected the tokens to read"):
            refuse(name)
    assert Selection.of(name) is name


def test_a_store_may_name_a_position_outside_of_the_language():
    assert (Selection.named("not recorded"), Selection.named("not recorded").several) == ("not recorded", False)
    assert said(Selection.named("all@user")) == said(Selection.parse("all@user"))


def test_a_quote_inside_a_text_is_a_letter():
    assert parse_selections("in:don't,before:can't") == [Selection.parse(one) for one in ("in:don't", "before:can't")]


OUTSIDE = [
    *(
        (Selection.parse, text, "expected (the tokens to read|a part)|holds no token")
        for text in ("", "lst", "last@", "@user", "5:2", "-2:-5", "in:", 'in:""', "1.5", "a b")
    ),
    (Selection.parse, "user", r"got 'user'; write last@user, mean@user or all@user$"),
    *(
        (Selection.parse, text, "give several selections as a list")
        for text in ("last,mean", "last@user,last", 'in:"x",last')
    ),
    *((parse_selections, text, "either side of each comma") for text in ("last,,mean", ",last", "last,", ",")),
    (parse_selections, "in:Hello, world", r"'world' after '.*Hello' and a comma; .*--position 'in:.Hello, world.'$"),
    (parse_selections, "last,in: Hello,world,mean", r"'world' after '.*Hello' and a comma"),
]


@pytest.mark.parametrize(("parse", "text", "message"), OUTSIDE)
def test_other_texts_are_refused_in_one_line(parse, text, message):
    with pytest.raises(UsageError, match=message) as error:
        parse(text)
    assert "\n" not in str(error.value)

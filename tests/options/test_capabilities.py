import dataclasses
from itertools import combinations, product
from typing import Any, get_type_hints

import pytest

from probekit.cli.commands import COMMANDS
from probekit.errors import UsageError
from probekit.options.capabilities import CAPABILITIES, IN_WORDS, Excludes, Needs, OneOf, refuse
from probekit.options.option import Options, option
from probekit.options.score import MonitorOptions

EXCLUDED = [(one, other, row.why) for row in CAPABILITIES if isinstance(row, Excludes)
            for one, other in product(row.options, row.others)]  # fmt: skip
EXCLUDED += [(one, other, row.why) for row in CAPABILITIES if isinstance(row, OneOf)
             for group in row.groups for one, other in combinations(group, 2)]  # fmt: skip
NEEDED = [(one, row.others, row.why) for row in CAPABILITIES if isinstance(row, Needs) for one in row.options]


def with_terms(*terms: str) -> Any:
    """A list of options that has these alone, none by default."""
    return dataclasses.make_dataclass("Some", [(term, Any, option(None, "A thing.")) for term in terms])


def every_list() -> list[Any]:
    hints = [hint for command in COMMANDS.values() for hint in get_type_hints(command.run).values()]  # imports all
    found: list[Any]
    left: list[Any]
    found, left = [hint for hint in hints if dataclasses.is_dataclass(hint)], [Options]
    while left:
        found.append(left.pop())
        left += found[-1].__subclasses__()
    return found


@pytest.mark.parametrize(("one", "other", "why"), EXCLUDED)
def test_options_that_exclude_each_other_are_refused_together_whatever_their_value(one: str, other: str, why: str):
    some = with_terms(one, other)
    for values in product((0, 0.0, "x", True), repeat=2):
        with pytest.raises(UsageError) as caught:
            refuse(some(**dict(zip((one, other), values, strict=True))))
        assert why in str(caught.value)
    for alone in (one, other):
        refuse(some(**{alone: 0}))
    with pytest.raises(UsageError):  # also in two lists of one command
        refuse(with_terms(one)(**{one: 0}), with_terms(other)(**{other: 0}))


@pytest.mark.parametrize(("one", "others", "why"), NEEDED)
def test_an_option_that_needs_another_is_refused_alone(one: str, others: tuple[str, ...], why: str):
    some = with_terms(one, *others)
    with pytest.raises(UsageError) as caught:
        refuse(some(**{one: 0}))
    assert why in str(caught.value)
    for other in others:
        refuse(some(**{one: 0, other: 0}))
    refuse(some(), with_terms(one)())
    refuse(with_terms(one)(**{one: 0}))  # a verb without the other ones


def test_every_term_is_an_option_or_a_property_that_says_what_it_is():
    lists = every_list()
    fields = {name for each in lists for name in getattr(each, "__dataclass_fields__", ())}
    for one, other, _ in [*EXCLUDED, *((one, other, why) for one, others, why in NEEDED for other in others)]:
        for term in (one, other):
            assert term in fields or (term in IN_WORDS and any(hasattr(each, term) for each in lists)), term


def test_a_threshold_of_zero_is_one():
    assert MonitorOptions(threshold=0.0, on_alarm=print).threshold == 0.0
    how: dict[str, Any]
    for how in ({"threshold": 0.0, "fpr": 0.1}, {"target": 0, "fpr": 0.1}):
        with pytest.raises(UsageError, match="exclude each other"):
            MonitorOptions(**how)

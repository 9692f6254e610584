"""Scores of a text so far, whatever the parts in which its tokens come, against the scores of its prefixes."""

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone

from probekit.options.curve import AGGREGATES
from probekit.probes import AggregateProbe, AttentionProbe, MultiMaxProbe
from probekit.probes.running import Fold, running_scores, token_rule
from probekit.probes.sequence.ragged import as_ragged

OWN: dict[str, dict[str, int]] = {"rolling-max": {"window": 4}, "ema-max": {"window": 4}, "top-k": {"k": 3}}
KINDS: dict[str, Any] = {how: AggregateProbe("ridge", how, **OWN.get(how, {})) for how in AGGREGATES}
KINDS |= {"attention": AttentionProbe(n_random=1), "heads": AttentionProbe(n_random=1, heads=3)}
KINDS |= {"multimax": MultiMaxProbe(n_random=1, heads=2)}


@cache
def fitted(kind: str, classes: int, scale: float) -> Any:
    rng = np.random.default_rng(0)
    labels = np.arange(60) % classes
    X = [scale * (rng.normal(size=(3 + i % 9, 5)) + 0.4 * label) for i, label in enumerate(labels)]
    probe: Any = clone(KINDS[kind])
    return probe.fit(X, labels)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("kind", sorted(KINDS))
@settings(max_examples=15)
@given(st.integers(0, 1000), st.lists(st.integers(1, 6), min_size=1, max_size=6), st.sampled_from([1e-3, 1.0, 1e4]))
def test_any_parts_of_a_text_give_the_scores_of_its_prefixes(kind, classes, seed, parts, scale):
    probe, n = fitted(kind, classes, scale), sum(parts)
    x = scale * np.random.default_rng(seed).normal(size=(n, 5)) * 2
    rule: Any = token_rule(probe, probe.label_names_[0])
    so_far, found = Fold(), []
    products = x @ rule.weights.T + rule.shift
    for part in np.split(products, np.cumsum(parts)[:-1]):
        found.append(rule.fold(part, so_far))
    decided = probe.decision_function([x[: t + 1] for t in range(n)]).reshape(n, -1)
    np.testing.assert_allclose(np.concatenate(found), decided, rtol=1e-7, atol=1e-7 * (1 + np.abs(decided).max()))
    if classes == 2:
        (whole,) = running_scores(probe, as_ragged([x]))
        np.testing.assert_allclose(whole, decided[:, 0], rtol=1e-7, atol=1e-7 * (1 + np.abs(decided).max()))


def test_what_is_remembered_does_not_grow_with_the_text():
    for kind in KINDS:
        probe, so_far = fitted(kind, 2, 1.0), Fold()
        rule: Any = token_rule(probe)
        rng = np.random.default_rng(0)
        sizes = []
        for _ in range(300):
            rule.fold(rng.normal(size=(1, 5)) @ rule.weights.T + rule.shift, so_far)
            sizes.append(sum(np.size(value) for value in vars(so_far).values() if value is not None))
        assert sizes[10:] == [sizes[10]] * 290, kind

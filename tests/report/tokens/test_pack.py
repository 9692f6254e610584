"""What the page holds of the scores."""

import base64

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as of_numpy

from probekit.report.tokens.section import NONE, common_step, cut, levels, restored

FINITE = st.floats(-1e9, 1e9)


@settings(deadline=None)
@given(of_numpy.arrays(np.float64, st.integers(1, 50), elements=st.one_of(FINITE, st.just(float("nan")))))
def test_a_stored_score_is_within_half_a_step(scores):
    """Half a step of asinh: near 0 that is the error itself, far away its share of the score."""
    step = common_step(scores)
    stored = levels(scores, step)
    assert stored.dtype == np.int8
    back = restored(stored, step)
    known = np.isfinite(scores)
    assert (np.isnan(back) == ~known).all()
    assert (stored[~known] == NONE).all()
    error = np.abs(np.arcsinh(back[known]) - np.arcsinh(scores[known]))
    assert (error <= step / 2 * (1 + 1e-6)).all()
    assert (np.sign(back[known]) * np.sign(scores[known]) >= 0).all()  # never on the other side of the threshold


def test_all_texts_and_layers_share_one_step():
    large, small = np.array([300.0, 1.0]), np.array([0.2])
    step = common_step(large, small)
    assert levels(large, step)[0] == 127
    assert abs(restored(levels(small, step), step)[0] - 0.2) < 0.03
    assert base64.b64encode(levels(large, step).tobytes())


def test_long_texts_are_cut_in_the_middle():
    assert cut("abcdefgh", 4) == "ab…gh"
    assert cut("abcd", 4) == "abcd"

"""Slices and numbers read the rows that the activations of all tokens have there, in every family."""

import numpy as np
import pytest
import torch
from tiny_configs import tiny_configs, tiny_model

from probekit.tasks.base import Task
from probekit.verbs.extract import extract

IDS = [np.random.default_rng(n).integers(3, 40, size=n).tolist() for n in (9, 5, 7, 6)]


@pytest.mark.parametrize("name", tiny_configs())
def test_a_slice_is_rows_of_all_tokens(name):
    model = tiny_model(name)
    is_pair = hasattr(model, "decode")
    task = Task("t", IDS, targets=[ids[::-1] for ids in IDS] if is_pair else None)
    for stack in ("encoder.", "decoder.") if is_pair else ("",):
        every = extract(model, task, points=f"{stack}resid_pre", position="all")
        place = next(iter(every))
        for position, at in (("-3:", slice(-3, None)), ("1:3", slice(1, 3)), (-2, slice(-2, -1))):
            own = extract(model, task, points=f"{stack}resid_pre", position=position)
            expected = torch.cat([rows[at] for rows in every.per_text(place)])
            torch.testing.assert_close(own[place], expected, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(every.at(position)[place], expected)

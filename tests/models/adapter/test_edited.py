"""Edits of wrapped models: packed, padded and one by one, and in generation with transformers' own caches."""

import numpy as np
import pytest
import torch
from models.adapter.wrapped import wrapped

import probekit as pk
from probekit.interventions import add, project_out, replace

_drawn = np.random.default_rng(0)
TEXTS = [_drawn.integers(3, 60, size=n).tolist() for n in (9, 4, 6)]
TEXTS += [TEXTS[0][:5]]
ROWS = torch.from_numpy(_drawn.normal(size=(4, 32)))
KINDS = ("gptj", "bloom", "mamba")  # packed, padded, and batches of one length


@pytest.mark.parametrize("kind", KINDS)
def test_an_edit_in_a_batch_equals_the_edit_on_the_text_alone(kind):
    model = wrapped(kind)
    last = model.cfg.n_layers - 1
    for at, positions in (("all", "all"), ("read", "last")):
        acts = pk.extract(model, TEXTS, edits={("resid_pre", 1): add(ROWS, 2.0)}, edit_positions=at)  # pyright: ignore[reportArgumentType]
        for i, ids in enumerate(TEXTS):
            with model.edited({("resid_pre", 1): add(ROWS[i], 2.0)}, positions):
                alone = model(torch.tensor([ids]), stop_at_layer=last + 1, return_logits=False)
            torch.testing.assert_close(acts["resid_post", last][i], alone[0, -1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["gptj", "bloom", "mamba"])
def test_generation_under_edits_needs_no_cache_and_no_batch(kind):
    model = wrapped(kind)
    plain = model.generate(TEXTS, 3, stop_tokens=[])
    for positions in ("all", "generated", [0, -1, 2, 1]):
        with model.edited({("resid_pre", 1): add(ROWS, 6.0)}, positions):
            cached = model.generate(TEXTS, 3, stop_tokens=[])
            assert model.generate(TEXTS, 3, stop_tokens=[], use_cache=False) == cached
        if positions == "all":
            assert cached != plain
        for i, ids in enumerate(TEXTS):
            own = positions[i] if isinstance(positions, list) else positions
            with model.edited({("resid_pre", 1): add(ROWS[i], 6.0)}, own):
                assert model.generate(ids, 3, stop_tokens=[]) == cached[i]


def test_right_padding_moves_no_position_and_every_point_of_the_stream_is_edited():
    model = wrapped("opt")
    tokens = torch.tensor([[*TEXTS[1], 0, 0], TEXTS[2]])
    mask = torch.tensor([[1, 1, 1, 1, 0, 0], [1] * 6])
    for point in ("resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post"):
        seen: list[torch.Tensor] = []
        with (
            model.edited({(point, 1): [project_out(ROWS[0]), replace(torch.full((32,), 3.0))]}, "last"),
            model.hooks(((point, 1), lambda x, _, seen=seen: seen.append(x.clone()))),
        ):
            model(tokens, attention_mask=mask, return_logits=False)
        is_edited = (seen[0] == 3).all(-1)
        assert is_edited.nonzero().tolist() == [[0, 3], [1, 5]]

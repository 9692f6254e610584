"""Tasks that read each example at a token of its own: one text stands in many, with other labels."""

import numpy as np
import pytest
import torch

from probekit.activations.activations import ActivationSet
from probekit.activations.layout import Layout
from probekit.evaluation.compare.controls import control_types
from probekit.evaluation.rows import resampling_units
from probekit.points import Place
from probekit.selections import Selection
from probekit.tasks.base import Task
from probekit.tasks.quality.audit import audit
from probekit.verbs.train_probes import train_probes

READS = 4  # places of each text


def world(n_texts=60, point="resid_pre", read: int | None = None) -> ActivationSet:
    """Each text is read at four of its letters; the class is whether that is a vowel, which activations show."""
    rng = np.random.default_rng(0)
    inputs, places, letters = [], [], []
    for _ in range(n_texts):
        text = rng.choice(list("abefiklo"), size=8)
        chosen = rng.permutation(8)[:READS]
        inputs += [" ".join(text)] * READS
        places += chosen.tolist()
        letters += text[chosen].tolist()
    y = np.isin(letters, list("aeio")).astype(np.int64)
    splits = np.repeat(np.array(["train", "train", "validation", "test"])[np.arange(n_texts) % 4], READS)
    task = Task("places", inputs, {"y": y}, {"y": ["no", "yes"]}, splits, "y", position=np.array(places))
    x = torch.from_numpy((np.eye(2)[y] + rng.normal(size=(len(y), 2))).astype(np.float32))
    tokens = np.array([ord(letter) for letter in letters]) if read is None else np.full(len(y), read)
    layout = Layout([Selection.named("per example")], np.full(len(y), 8), 0, tokens)
    tensors: dict[Place, torch.Tensor] = {
        Place(point, 0): x,
        Place(point, 1): x + torch.from_numpy(np.eye(2)[y].astype(np.float32)),
    }
    return ActivationSet(tensors, task, layout=layout)


def test_other_places_of_a_text_are_neither_conflicts_nor_leaks():
    found = audit(world().task)
    assert found.conflicts["texts"] == 0
    assert not len(found.leaks)
    task = world().task
    assert isinstance(task.position, np.ndarray)
    task.position[1], task.labels["y"][:2] = task.position[0], (0, 1)
    assert audit(task).conflicts["rows"] == 2


def test_the_rows_of_a_text_are_resampled_together():
    acts = world()
    units = resampling_units(acts.task)
    assert units is not None
    np.testing.assert_array_equal(units, np.repeat(np.arange(60), READS))
    results = train_probes(acts, controls=0, codelength=False)
    assert results.meta["interval"]["unit"] == "text"
    once = acts.task.subset(np.arange(0, len(acts.task), READS))
    assert resampling_units(once) is None


def test_the_type_is_the_token_that_is_read_and_nothing_stands_in_for_it():
    acts = world()
    assert acts.layout.tokens is not None
    assert control_types(acts) == acts.layout.tokens.tolist()
    assert control_types(world(read=103)) is None  # a [MASK] everywhere; the text's last word says nothing of it


@pytest.mark.parametrize("point", ["resid_pre", "encoder.resid_pre", "decoder.resid_pre"])
def test_what_comes_before_the_first_block_is_a_baseline_in_every_stack(point):
    results = train_probes(world(point=point), controls=0, codelength=False)
    assert "embedding" in [baseline.name for baseline in results.baselines]


def test_in_the_activations_of_an_encoder_a_name_without_a_stack_is_the_encoders():
    acts = world(point="encoder.resid_pre")
    assert torch.equal(acts["resid_pre", 1], acts["encoder.resid_pre.1"])
    assert ("resid_pre", 0) in acts
    assert acts.curve("resid_pre") == acts.curve("encoder.resid_pre")
    bare, full = (
        train_probes(acts, point=point, layers=1, controls=0, codelength=False)
        for point in ("resid_pre", "encoder.resid_pre")
    )
    assert [layer.place for layer in bare.layers] == [layer.place for layer in full.layers] == ["encoder.resid_pre.1"]
    assert bare.layers == full.layers


def test_in_the_activations_of_a_decoder_it_is_not_there():
    with pytest.raises(KeyError, match=r"no activations of resid_pre\.1 here; there are decoder\.resid_pre 0-1"):
        world(point="decoder.resid_pre")["resid_pre", 1]

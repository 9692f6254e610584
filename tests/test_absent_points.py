"""Points that a model does not have, in any layer or in some: the error says why, or where they are."""

import re
from typing import Any

import pytest
import torch
from store_cases import plan_of
from tiny_configs import tiny_configs
from torch.nn import Identity

import probekit as pk
from probekit.activations.plan.identity import identity_of
from probekit.activations.plan.places import find_places
from probekit.activations.replan import plan_again
from probekit.activations.store.examples import read_examples
from probekit.activations.store.format import read_plan
from probekit.cli.points import point_rows
from probekit.errors import UsageError
from probekit.models.families import family_of
from probekit.models.families.gpt2 import GPT2, GPT2Config
from probekit.points import POINTS, UnknownPoint
from probekit.tasks.base import Task
from probekit.verbs.extract import extract


class Uneven(GPT2):
    """A GPT-2 whose first block shows neither its mid stream nor its first norm, and says why for one of these."""

    def __init__(self, cfg: GPT2Config):
        super().__init__(cfg)
        first: Any = self.blocks[0]
        first.hook_resid_mid = Identity()
        first.ln1.hook_normalized = Identity()
        self.absent = {"ln1_normalized": "the first block has no norm", "mlp_pre_linear": "it has no gate"}


@pytest.fixture(scope="module")
def uneven() -> GPT2:
    cfg = GPT2Config(d_model=16, n_heads=2, d_mlp=24, n_layers=3, n_ctx=12, d_vocab=11, init_std=0.3)
    return Uneven(cfg).init_weights(0).eval()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("resid_mid.0", "this model has no point resid_mid.0; there are resid_mid 1-2"),
        ("blocks.0.hook_resid_mid", "this model has no point resid_mid.0; there are resid_mid 1-2"),
        (
            "ln1_normalized.0",
            "this model has no point ln1_normalized.0: the first block has no norm; there are ln1_normalized 1-2",
        ),
        ("mlp_pre_linear", "this model has no point mlp_pre_linear: it has no gate"),
        ("mlp_pre_linear.7", "this model has no point mlp_pre_linear: it has no gate"),
        ("resid_mid.3", "layer 3 is not in 0..2"),
        ("rot_q", "this model has no point rot_q; known are: embed"),
        ("token_type_embed", "this model has no point token_type_embed; did you mean pos_embed?"),
        ("token_type_embed.0", "token_type_embed belongs to no layer"),
    ],
)
def test_a_point_that_is_absent_says_why_or_where_it_is(uneven, spec, message):
    with pytest.raises(UsageError, match=f"^{re.escape(message)}"):
        uneven.resolve(["resid_pre", spec])


def test_a_name_without_a_layer_means_the_layers_that_have_the_point(uneven):
    assert uneven.resolve("resid_mid") == [f"blocks.{i}.hook_resid_mid" for i in (1, 2)]
    assert uneven.layers_of("resid_mid") == uneven.layers_of("ln1_normalized") == [1, 2]
    assert uneven.layers_of("resid_pre") == [0, 1, 2]
    assert uneven.layers_of("embed") == uneven.layers_of("rot_q") == []
    assert {row["short"]: row["full"] for row in point_rows(uneven)}["resid_mid"] == "blocks.{1..2}.hook_resid_mid"


@pytest.mark.parametrize(
    ("points", "layers", "places"),
    [
        (["resid_mid"], "all", ["resid_mid.1", "resid_mid.2", "resid_post.2"]),
        (["attn_out", "ln1_normalized"], "0-1", ["attn_out.0", "attn_out.1", "ln1_normalized.1"]),
        (["embed", "resid_mid"], "1", ["embed", "resid_mid.1"]),
        (["embed", "resid_mid"], [0], "no point resid_mid.0; there are"),
        (["resid_mid", "ln1_normalized"], "0,2", "no point resid_mid.0; there are"),
        (["attn_out", "resid_mid"], [0], "no point resid_mid.0; there are"),
        (["attn_out", "mlp_pre_linear"], "all", "no point mlp_pre_linear: it has no gate"),
        (["mlp_pre_linear"], "2", "no point mlp_pre_linear: it has no gate"),
    ],
)
def test_layers_choose_among_those_that_have_a_point(uneven, points, layers, places):
    if isinstance(places, str):
        with pytest.raises(UnknownPoint, match=places):
            find_places(uneven, points, layers)
    else:
        assert [str(place) for place in find_places(uneven, points, layers)] == places


TASK = Task("ids", [[1, 2, 3], [4, 5]])


@pytest.mark.parametrize("points", [["resid_mid"], ["resid_mid", "resid_pre"], ["embed", "ln1_normalized"], ["embed"]])
@pytest.mark.parametrize("layers", ["all", [1, 2]])
def test_a_store_plans_the_same_places_again(uneven, tmp_path, points, layers):
    acts = extract(uneven, TASK, points=points, layers=layers, out=tmp_path)
    plan = read_plan(tmp_path)
    again = plan_again(plan, read_examples(tmp_path, plan), uneven)
    assert list(acts) == again.places == find_places(uneven, points, layers)
    assert identity_of(again) == identity_of(plan_of(uneven, TASK, points=points, layers=layers))


def test_a_selftest_checks_the_points_that_there_are(uneven):
    found = pk.selftest(uneven)
    assert found.passed, found.describe()
    assert {"resid_mid", "ln1_normalized", "resid_post"} <= {row.point for row in found.rows}


@pytest.mark.parametrize("cfg", tiny_configs().values(), ids=tiny_configs())
def test_what_a_family_says_of_absent_points_is_so(cfg):
    """Its reason is the error's, and the points that it offers instead exist."""
    with torch.device("meta"):
        model = family_of(cfg).model(cfg)
    for short, why in model.absent.items():
        assert all(model.resolve(word) for word in re.findall(r"\w+", why) if word in POINTS)
        for layer in set(range(model.n_layers)) - set(model.layers_of(short)):
            with pytest.raises(UnknownPoint, match=re.escape(f": {why}")):
                model.resolve((short, layer))

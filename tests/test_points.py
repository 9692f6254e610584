"""Layers and places as they are typed: what is out of range is refused before anything is built of it."""

from typing import Any

import pytest

from probekit.activations.imports.arrays import place_of
from probekit.errors import DataError, UsageError
from probekit.options.kinds import stacked_layers
from probekit.points import POINTS, Place, base_name, depth_of, parse_layers

LONG = "9" * 5000


@pytest.mark.parametrize("layer", ["99999999999", "1000", "9" * 90])
def test_a_name_with_a_layer_that_no_model_has_is_refused_by_name(layer: str) -> None:
    with pytest.raises(DataError, match=rf"'file' gives layer {layer}, and models have at most 1,000 layers"):
        place_of(f"resid_pre.{layer}", "'file'", None, None)


def test_a_point_with_thousands_of_digits_is_unknown() -> None:
    with pytest.raises(UsageError, match=r"unknown point") as caught:
        Place.of(f"resid_pre.{LONG}")
    assert len(str(caught.value)) < 300


INPUTS = {"resid_pre_streams", "embed", "pos_embed", "token_type_embed", "ln_embed_scale", "ln_embed", "resid_pre"}
OUTPUTS = {"resid_post_streams", "resid_post", "ln_final_scale", "ln_final", "head_ln_scale", "head_ln"}


@pytest.mark.parametrize("point", POINTS)
def test_every_point_has_a_depth(point: str) -> None:
    """0 at the input of the first block, 1 at the output of the last one and after it, in between inside a block."""
    layers = range(4) if "{layer}" in POINTS[point] else [None]
    start = 0.0 if base_name(point) in INPUTS else 1.0 if base_name(point) in OUTPUTS else 0.5
    expected = [start if i is None else (i + start) / 4 for i in layers]
    if base_name(point) == "latents":  # whose name does not say where in a block they were read
        expected = [None] * 4
    assert [depth_of(Place(point, i), 4) for i in layers] == expected
    assert depth_of(Place("resid_pre.0+resid_pre.1", None), 4) is None


@pytest.mark.parametrize(
    ("spec", "layers"),
    [
        ("all", [0, 1, 2, 3, 4, 5]),
        (3, [3]),
        ("0,4", [0, 4]),
        ("2-4", [2, 3, 4]),
        ([5, 1], [1, 5]),
        ("0, 2-3,3", [0, 2, 3]),
    ],
)
def test_layers(spec: Any, layers: list[int]) -> None:
    assert parse_layers(spec, 6) == layers


@pytest.mark.parametrize(
    "spec",
    ["", "a", "1-", "-1", "3-1", "1,,2", "6", 6, -1, [0, 6], [], "2-6", "0-999999999999", LONG, f"0-{LONG}", "0-"],
)
def test_layers_that_no_model_has(spec: Any) -> None:
    with pytest.raises(UsageError) as caught:
        parse_layers(spec, 6)
    assert len(str(caught.value)) < 200


def test_more_stacked_layers_than_any_array_has() -> None:
    assert stacked_layers("0-2,9") == [0, 1, 2, 9]
    with pytest.raises(UsageError, match="at most 10,000"):
        stacked_layers(",".join(["0-9999"] * 10_000))

"""Directions in files: read back by `safetensors` and `gguf`, and by the rules of llama.cpp's loader."""

import gguf
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from probekit.causal.directions.directions import Direction
from probekit.causal.directions.export import export_directions
from probekit.errors import DataError, StorageError, UsageError

D = 13  # no multiple of the alignment
VECTORS = {layer: np.random.default_rng(layer).standard_normal(D) for layer in range(2, 6)}


def test_safetensors_hold_each_place_by_name(tmp_path):
    path = export_directions(tmp_path / "made" / "v.safetensors", VECTORS | {"resid_post.5": VECTORS[2]}, model="m")
    found = load_file(path)
    assert set(found) == {*(f"resid_pre.{layer}" for layer in VECTORS), "resid_post.5"}
    for layer, vector in VECTORS.items():
        assert found[f"resid_pre.{layer}"].numpy() == pytest.approx(vector.astype(np.float32), rel=0)
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"model": "m"}


def test_gguf_is_a_control_vector_as_llama_cpp_reads_it(tmp_path):
    """`direction.N` is added to the output of block N, which is the input of block N + 1."""
    path = export_directions(tmp_path / "v.gguf", VECTORS | {("resid_post", 5): VECTORS[3]}, model="naïve")
    reader = gguf.GGUFReader(path)
    assert reader.fields["general.architecture"].contents() == "controlvector"
    assert reader.fields["controlvector.model_hint"].contents() == "naïve"
    assert reader.fields["controlvector.layer_count"].contents() == 5
    assert [tensor.name for tensor in reader.tensors] == [f"direction.{n}" for n in range(1, 6)]
    for tensor in reader.tensors:
        assert tensor.tensor_type == gguf.GGMLQuantizationType.F32
        assert list(tensor.shape) == [D]
        number = int(tensor.name.split(".")[1])
        vector = VECTORS[3] if number == 5 else VECTORS[number + 1]
        assert tensor.data == pytest.approx(vector.astype(np.float32), rel=0)
    assert path.stat().st_size % 32 == 0


def test_gguf_is_what_the_gguf_package_writes(tmp_path):
    ours = export_directions(tmp_path / "ours.gguf", VECTORS, model="gpt2").read_bytes()
    writer = gguf.GGUFWriter(tmp_path / "theirs.gguf", "controlvector")
    writer.add_string("controlvector.model_hint", "gpt2")
    writer.add_uint32("controlvector.layer_count", len(VECTORS))
    for layer, vector in VECTORS.items():
        writer.add_tensor(f"direction.{layer - 1}", vector.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert ours == (tmp_path / "theirs.gguf").read_bytes()


@pytest.mark.parametrize("suffix", ["gguf", "safetensors"])
def test_a_direction_is_written_as_one_standard_deviation(tmp_path, suffix):
    unit = torch.zeros(D, dtype=torch.float64)
    unit[3] = 1
    path = export_directions(tmp_path / f"v.{suffix}", {4: Direction("probe", unit, 2.5)})
    if suffix == "gguf":
        (tensor,) = gguf.GGUFReader(path).tensors
        assert tensor.data.tolist() == (2.5 * unit).tolist()
    else:
        assert load_file(path)["resid_pre.4"].tolist() == (2.5 * unit).tolist()


ONE = np.ones(D)


@pytest.mark.parametrize(
    ("name", "given", "error", "message"),
    [
        ("v.npz", {4: ONE}, UsageError, r"to a \.safetensors or \.gguf file; got '.*v\.npz'"),
        ("v.gguf", {}, UsageError, "got a dict; give one or more"),
        ("v.gguf", [ONE], UsageError, "expected layers or places with their directions, got a list"),
        ("v.gguf", {1: ONE}, UsageError, r"cannot steer resid_pre\.1; leave it out"),
        ("v.gguf", {0: ONE}, UsageError, r"cannot steer resid_pre\.0"),
        ("v.gguf", {"resid_post.0": ONE}, UsageError, r"cannot steer resid_post\.0"),
        ("v.gguf", {"mlp_out.3": ONE}, UsageError, "not to mlp_out; write .safetensors"),
        ("v.gguf", {4: ONE, "resid_post.3": ONE}, UsageError, r"resid_pre\.4 and resid_post\.3 are the same place"),
        ("v.gguf", {4: ONE, 5: np.ones(3)}, UsageError, r"all of one width; got 2 of \[3, 13\]"),
        ("v.safetensors", {4: ONE, "resid_pre.4": ONE}, UsageError, "one vector for each place"),
        ("v.safetensors", {4: np.ones((2, D))}, UsageError, r"expected a vector \[D\], got \[2, 13\]"),
        ("v.safetensors", {"embed": ONE}, UsageError, "expected a layer, such as 5"),
        ("v.safetensors", {-1: ONE}, UsageError, "expected a layer, such as 5"),
        ("v.safetensors", {"resid_pr.1": ONE}, UsageError, "did you mean resid_pre"),
        ("v.safetensors", {4: ONE * np.inf}, DataError, "holds NaN, infinity"),
        ("v.safetensors", {4: ONE * 1e60}, DataError, "float32 cannot hold"),
    ],
)
def test_bad_input_is_refused_and_writes_nothing(tmp_path, name, given, error, message):
    with pytest.raises(error, match=message):
        export_directions(tmp_path / name, given)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_not_replaced(tmp_path):
    (tmp_path / "v.gguf").mkdir()
    with pytest.raises(StorageError, match=r"v\.gguf"):
        export_directions(tmp_path / "v.gguf", {4: ONE})

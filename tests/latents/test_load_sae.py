"""Sparse autoencoders and transcoders compute what the papers' equations say, and what SAELens computes."""

import contextlib
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from probekit.errors import DataError, UsageError
from probekit.latents import load_sae
from probekit.points import Place

D, F, D_OUT, N = 6, 16, 5, 40
SAELENS: dict[str, dict[str, Any]] = {
    "standard": {},
    "without the decoder's bias": {"apply_b_dec_to_input": False},
    "layer norm": {"normalize_activations": "layer_norm"},
    "constant norm": {"normalize_activations": "constant_norm_rescale"},
    "gated": {"architecture": "gated"},
    "jumprelu": {"architecture": "jumprelu"},
    "jumprelu in a layer norm": {"architecture": "jumprelu", "normalize_activations": "layer_norm"},
    "topk": {"architecture": "topk", "k": 3},
    "topk by norm": {"architecture": "topk", "k": 3, "rescale_acts_by_decoder_norm": True},
    "transcoder": {"architecture": "transcoder", "d_out": D_OUT, "apply_b_dec_to_input": False},
    "skip transcoder": {"architecture": "skip_transcoder", "d_out": D_OUT, "apply_b_dec_to_input": False},
    "jumprelu transcoder": {"architecture": "jumprelu_transcoder", "d_out": D_OUT, "apply_b_dec_to_input": False},
    "jumprelu skip": {"architecture": "jumprelu_skip_transcoder", "d_out": D_OUT, "apply_b_dec_to_input": False},
}


def cfg_of(kind: str) -> dict[str, Any]:
    about = {"hook_name": "blocks.3.hook_resid_pre", "model_name": "gpt2"}
    plain = {"architecture": "standard", "d_in": D, "d_sae": F, "dtype": "float32", "device": "cpu", "metadata": about}
    return plain | {"apply_b_dec_to_input": True, "normalize_activations": "none"} | SAELENS[kind]


def weights_of(cfg: dict[str, Any]) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    out, kind = cfg.get("d_out", D), cfg["architecture"]
    shapes: dict[str, tuple[int, ...]] = {"W_enc": (D, F), "W_dec": (F, out), "b_dec": (out,)}
    shapes |= {"b_gate": (F,), "b_mag": (F,), "r_mag": (F,)} if kind == "gated" else {"b_enc": (F,)}
    shapes |= {"threshold": (F,)} if "jumprelu" in kind else {}
    shapes |= {"W_skip": (out, D)} if "skip" in kind else {}
    weights = {name: torch.randn(*shape, generator=draw) / 2 for name, shape in shapes.items()}
    return weights | {name: x.abs() for name, x in weights.items() if name == "threshold"}


def saved(folder: Path, kind: str, **changed: Any) -> Path:
    cfg = cfg_of(kind) | changed
    (folder / "cfg.json").write_text(json.dumps(cfg))
    save_file(weights_of(cfg), folder / "sae_weights.safetensors")
    return folder


def rows() -> torch.Tensor:
    return torch.randn(N, D, generator=torch.Generator().manual_seed(1)) * 3 + 1


def by_equations(cfg: dict[str, Any], w: dict[str, np.ndarray], x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Latents and reconstruction, in float64 (arXiv 2404.16014, 2407.14435, 2406.04093, 2406.11944)."""
    kind, norm = cfg["architecture"], cfg["normalize_activations"]
    mean, length = np.zeros((N, 1)), np.ones((N, 1))
    read = x
    if norm == "layer_norm":
        mean, length = x.mean(1, keepdims=True), x.std(1, ddof=1, keepdims=True)
        read = (x - mean) / (length + 1e-5)
    if norm == "constant_norm_rescale":
        length = np.linalg.norm(x, axis=1, keepdims=True) / np.sqrt(D)
        read = x / length
    if cfg["apply_b_dec_to_input"]:
        read = read - w["b_dec"]
    before = read @ w["W_enc"] + w.get("b_enc", 0)
    norms = np.linalg.norm(w["W_dec"], axis=1) if cfg.get("rescale_acts_by_decoder_norm") else 1
    before = before * norms
    latents = np.maximum(before, 0)
    if kind == "gated":
        magnitudes = np.maximum(before * np.exp(w["r_mag"]) + w["b_mag"], 0)
        latents = np.where(before + w["b_gate"] > 0, magnitudes, 0)
    if "jumprelu" in kind:
        latents = latents * (before > w["threshold"])
    if kind == "topk":
        latents = np.where(before >= np.sort(before, 1)[:, -cfg["k"], None], latents, 0)
    out = latents / norms @ w["W_dec"] + w["b_dec"]
    out = out if "transcoder" in kind else out * length + mean
    return latents, out + x @ w["W_skip"].T if "skip" in kind else out


@pytest.mark.parametrize("kind", SAELENS)
def test_latents_and_reconstructions_are_those_of_the_equations(tmp_path: Path, kind: str) -> None:
    cfg = cfg_of(kind)
    sae, x = load_sae(saved(tmp_path, kind), dtype=torch.float64), rows().double()
    latents, out = by_equations(cfg, {name: one.double().numpy() for name, one in weights_of(cfg).items()}, x.numpy())
    assert 0 < (latents > 0).mean() < 0.9
    np.testing.assert_allclose(sae.encode(x), latents, atol=1e-12)
    np.testing.assert_allclose(sae(x), out, atol=1e-12)
    assert torch.equal(sae.decode(sae.encode(x), like=x), sae(x))
    assert (sae.cfg.place, sae.cfg.model) == (Place("resid_pre", 3), "gpt2")


@pytest.mark.parametrize("kind", SAELENS)
def test_latents_and_reconstructions_are_those_of_saelens(tmp_path: Path, kind: str) -> None:
    sae_lens = pytest.importorskip("sae_lens", reason="sae-lens is not installed")
    theirs, ours = sae_lens.SAE.load_from_disk(saved(tmp_path, kind)), load_sae(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(ours.encode(rows()), theirs.encode(rows()), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(ours(rows()), theirs(rows()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["batchtopk", "matryoshka_batchtopk"])
def test_a_threshold_for_all_latents_is_one_for_each(tmp_path: Path, kind: str) -> None:
    saved(tmp_path, "jumprelu", architecture=kind, k=3)
    weights = weights_of(cfg_of("standard")) | {"topk_threshold": torch.tensor(0.7, dtype=torch.float64)}
    save_file(weights, tmp_path / "sae_weights.safetensors")
    before = (rows() - weights["b_dec"]) @ weights["W_enc"] + weights["b_enc"]
    torch.testing.assert_close(load_sae(tmp_path).encode(rows()), before * (before > 0.7))


@pytest.mark.parametrize("activation", ["topk", "groupmax"])
@pytest.mark.parametrize("transcode", [False, True])
def test_files_of_sparsify(tmp_path: Path, activation: str, transcode: bool) -> None:
    folder = tmp_path / "layers.7.mlp"
    folder.mkdir()
    weights = weights_of(cfg_of("standard")) | {"W_skip": torch.randn(D, D)}
    cfg = {"activation": activation, "expansion_factor": 32, "num_latents": F, "k": 4, "d_in": D, "multi_topk": False}
    (folder / "cfg.json").write_text(json.dumps(cfg | {"transcode": transcode, "skip_connection": transcode}))
    named = {"encoder.weight": weights["W_enc"].T.contiguous(), "encoder.bias": weights["b_enc"]}
    kept = ("W_dec", "b_dec", "W_skip") if transcode else ("W_dec", "b_dec")
    save_file(named | {name: weights[name] for name in kept}, folder / "sae.safetensors")
    sae, x = load_sae(folder), rows()
    before = ((x if transcode else x - weights["b_dec"]) @ weights["W_enc"] + weights["b_enc"]).relu()
    if activation == "topk":
        wanted = torch.where(before >= before.sort(1).values[:, -4, None], before, 0)
    else:
        groups = before.reshape(N, 4, F // 4)
        wanted = torch.where(groups == groups.amax(2, keepdim=True), groups, 0).reshape(N, F)
    torch.testing.assert_close(sae.encode(x), wanted)
    out = wanted @ weights["W_dec"] + weights["b_dec"]
    torch.testing.assert_close(sae(x), out + x @ weights["W_skip"].T if transcode else out, rtol=1e-5, atol=1e-5)
    at = Place("mlp_out", 7)
    assert (sae.cfg.place, sae.cfg.place_out) == ((None, at) if transcode else (at, None))


@pytest.mark.parametrize(
    ("repo", "reads", "gives"),
    [
        ("gemma-scope-2b-pt-res", Place("resid_post", 20), None),
        ("gemma-scope-2b-pt-mlp", Place("mlp_out", 20), None),
        ("gemma-scope-9b-it-res@main", Place("resid_post", 20), None),
        ("gemma-scope-2b-pt-transcoders", None, Place("mlp_out", 20)),  # of rows before the gain of their norm
        ("mine", None, None),
    ],
)
def test_files_of_gemma_scope(tmp_path: Path, repo: str, reads: Place | None, gives: Place | None) -> None:
    folder = tmp_path / repo / "layer_20" / "width_16k" / "average_l0_71"
    folder.mkdir(parents=True)
    weights = {name: x.numpy() for name, x in weights_of(cfg_of("jumprelu")).items()}
    np.savez(folder / "params.npz", **weights)  # pyright: ignore[reportArgumentType]
    wanted, out = by_equations(
        cfg_of("jumprelu") | {"apply_b_dec_to_input": False}, {k: x.astype(float) for k, x in weights.items()},
        rows().double().numpy(),
    )  # fmt: skip
    for path in (folder, folder / "params.npz"):
        sae = load_sae(path, dtype=torch.float64)
        np.testing.assert_allclose(sae.encode(rows()), wanted, atol=1e-12)
        np.testing.assert_allclose(sae(rows()), out, atol=1e-12)
        assert (sae.cfg.place, sae.cfg.place_out) == (reads, gives)
        assert sae.cfg.model == {"g": f"gemma-2-{repo[12:17].removesuffix('-pt')}", "m": ""}[repo[0]]


def test_a_factor_of_the_inputs_is_undone_in_the_reconstruction(tmp_path: Path) -> None:
    saved(tmp_path, "standard", normalize_activations="expected_average_only_in")
    with pytest.raises(DataError, match="the factor of the inputs is not in the file; give it as scale"):
        load_sae(tmp_path)
    plain, scaled = load_sae(tmp_path, scale=1.0), load_sae(tmp_path, scale=0.5)
    torch.testing.assert_close(scaled.encode(rows()), plain.encode(rows() / 2))
    torch.testing.assert_close(scaled(rows()), plain(rows() / 2) * 2)


def test_fields_of_versions_before_6(tmp_path: Path) -> None:
    """The hook and the model lie beside the sizes, among the fields of the training run; topk is an activation."""
    old = {"hook_point": "blocks.8.hook_resid_post", "model_name": "gpt2-small", "l1_coefficient": 8e-5, "lr": 4e-4}
    old |= {"d_in": D, "d_sae": F, "dtype": "torch.float32", "device": "mps", "normalize_activations": "none"}
    weights = weights_of(cfg_of("standard")) | {"scaling_factor": torch.ones(F)}
    save_file(weights, tmp_path / "sae_weights.safetensors")
    (tmp_path / "cfg.json").write_text(
        json.dumps(old | {"activation_fn_str": "topk", "activation_fn_kwargs": {"k": 2}})
    )
    sae = load_sae(tmp_path)
    assert (sae.cfg.place, sae.cfg.model, sae.cfg.activation) == (Place("resid_post", 8), "gpt2-small", "topk")
    assert int((sae.encode(rows()) > 0).sum(1).max()) == 2
    assert load_sae(tmp_path, place="resid_pre.9").cfg.place == Place("resid_pre", 9)


@pytest.mark.parametrize("inside", [False, True])
def test_centred_streams_are_those_of_centred_weights(tmp_path: Path, inside: bool) -> None:
    """TransformerLens's `center_writing_weights` subtracts from each row of the stream its mean."""
    kwargs = {"model_from_pretrained_kwargs": {"center_writing_weights": True}}
    cfg = cfg_of("standard")
    cfg |= {"metadata": cfg["metadata"] | kwargs} if inside else kwargs
    saved(tmp_path, "standard")
    plain, x = load_sae(tmp_path), rows()
    (tmp_path / "cfg.json").write_text(json.dumps(cfg))
    sae, centred = load_sae(tmp_path), x - x.mean(1, keepdim=True)
    torch.testing.assert_close(sae.encode(x), plain.encode(centred))
    torch.testing.assert_close(sae(x), plain(centred) + x.mean(1, keepdim=True))


@pytest.mark.parametrize("norm", ["ln1", "ln2"])
def test_a_norm_before_its_gain_is_no_point_here(tmp_path: Path, norm: str) -> None:
    saved(tmp_path, "standard", metadata={"hook_name": f"blocks.3.{norm}.hook_normalized"})
    sae = load_sae(tmp_path)
    assert (sae.cfg.place, sae.cfg.hook) == (None, f"blocks.3.{norm}.hook_normalized")


@pytest.mark.parametrize("scale", [0, -1.0, float("nan"), True, "2"])
def test_a_scale_is_a_positive_number(tmp_path: Path, scale: Any) -> None:
    saved(tmp_path, "standard", normalize_activations="expected_average_only_in")
    with pytest.raises(UsageError, match="scale must be a positive, finite number"):
        load_sae(tmp_path, scale=scale)


def test_a_scale_that_no_file_asks_for_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, "standard")
    with pytest.raises(DataError, match="normalize_activations = 'none': it takes no scale; leave it out"):
        load_sae(tmp_path, scale=0.5)


@pytest.mark.parametrize("dtype", ["U3", ">f4", "complex64", "int32", "datetime64[s]"])
def test_arrays_of_something_else_than_floats_are_refused(tmp_path: Path, dtype: str) -> None:
    weights = {name: x.numpy() for name, x in weights_of(cfg_of("jumprelu")).items()}
    np.savez(tmp_path / "params.npz", **{**weights, "b_enc": np.zeros(F).astype(dtype)})  # pyright: ignore
    with pytest.raises(DataError, match=r"damaged, or no .npz file of numbers: 'b_enc.npy is"):
        load_sae(tmp_path)


def test_an_array_that_claims_more_than_the_file_holds_is_refused(tmp_path: Path) -> None:
    header = {"descr": "<f4", "fortran_order": False, "shape": (10**9, 10**6)}
    with zipfile.ZipFile(tmp_path / "params.npz", "w") as file, file.open("W_enc.npy", "w") as array:
        np.lib.format.write_array_header_1_0(array, header)  # pyright: ignore
    with pytest.raises(DataError, match=r"W_enc.npy is float32 \(1000000000, 1000000\)"):
        load_sae(tmp_path)


def test_a_damaged_archive_is_refused_wherever_it_is_damaged(tmp_path: Path) -> None:
    weights = {name: x.numpy() for name, x in weights_of(cfg_of("jumprelu")).items()}
    np.savez_compressed(tmp_path / "params.npz", **weights)  # pyright: ignore
    sound = (tmp_path / "params.npz").read_bytes()
    for at in range(0, len(sound), 97):
        (tmp_path / "params.npz").write_bytes(sound[:at] + bytes([sound[at] ^ 0xFF]) + sound[at + 1 :])
        with contextlib.suppress(DataError):  # a date in the archive may change without harm
            load_sae(tmp_path)


def test_heads_are_read_side_by_side(tmp_path: Path) -> None:
    sae = load_sae(saved(tmp_path, "standard"))
    assert torch.equal(sae.encode(rows().reshape(N, 2, 3)), sae.encode(rows()))
    for wrong in (torch.zeros(N, 5), torch.zeros(2, 3)):  # two rows of half the width are no row
        with pytest.raises(UsageError, match=r"reads a width of 6; got activations \[\d+, \d\]; take the model"):
            sae.encode(wrong)


BAD_FIELDS = [
    ({"a_new_field": 1}, "the field 'a_new_field' is not known, and may change what the latents are"),
    ({"architecture": "temporal"}, "architecture 'temporal' is not implemented"),
    ({"normalize_activations": "covariance_whitening"}, "normalize_activations 'covariance_whitening' is not"),
    ({"d_sae": None}, "d_sae must be a whole number above 0; got None"),
    ({"d_in": 7}, r"W_enc in '[^']*' is \[6, 16\], expected \[7, 16\]"),
    ({"architecture": "gated"}, "has no b_gate, b_mag, r_mag, which its kind"),
    ({"architecture": "topk", "k": 17}, "k = 17 in '[^']*' is more than its 16 latents"),
    ({"metadata": {"hook_head_index": 2}}, "one of one head is not implemented"),
    ({"metadata": 3}, "metadata must be an object; got 3"),
    ({"activation_fn_kwargs": [1]}, "activation_fn_kwargs must be an object"),
    ({"apply_b_dec_to_input": "false"}, "apply_b_dec_to_input must be true or false; got 'false'"),
    ({"rescale_acts_by_decoder_norm": 1}, "rescale_acts_by_decoder_norm must be true or false"),
    ({"normalize_activations": []}, r"normalize_activations \[\] is not implemented"),
    ({"reshape_activations": "heads"}, "reshape_activations 'heads' is not implemented"),
    ({"architecture": "gated", "activation_fn": "topk"}, "activation_fn = 'topk' with the architecture gated"),
    ({"architecture": "topk", "k": True}, "k must be a whole number above 0; got True"),
    ({"pre_act_layernorm": True}, "the field 'pre_act_layernorm' is not known"),
    ({"topk_softmax": True}, "the field 'topk_softmax' is not known"),
    ({"model_from_pretrained_kwargs": {"refactor": True}}, "model_from_pretrained_kwargs: 'refactor' is not known"),
    ({"d_sae": 10**13}, "expected"),
]


@pytest.mark.parametrize(("changed", "message"), BAD_FIELDS, ids=lambda x: str(x)[:40])
def test_a_config_that_cannot_be_followed_is_refused(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    cfg = cfg_of("standard") | changed
    saved(tmp_path, "standard")
    (tmp_path / "cfg.json").write_text(json.dumps(cfg))
    with pytest.raises(DataError, match=message):
        load_sae(tmp_path)


def test_weights_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    saved(tmp_path, "standard")
    weights = weights_of(cfg_of("standard"))
    save_file(weights | {"W_extra": torch.ones(2)}, tmp_path / "sae_weights.safetensors")
    with pytest.raises(DataError, match="holds 'W_extra', which its kind"):
        load_sae(tmp_path)
    save_file(weights | {"b_enc": torch.full((F,), float("nan"))}, tmp_path / "sae_weights.safetensors")
    with pytest.raises(DataError, match=r"b_enc in .* holds NaN or infinity"):
        load_sae(tmp_path)
    (tmp_path / "sae_weights.safetensors").write_bytes(b"cut off")
    with pytest.raises(DataError, match="is damaged or not a safetensors file"):
        load_sae(tmp_path)
    (tmp_path / "sae_weights.safetensors").unlink()
    with pytest.raises(DataError, match=r"has cfg.json, but neither sae_weights.safetensors nor sae.safetensors"):
        load_sae(tmp_path)
    (tmp_path / "cfg.json").unlink()
    with pytest.raises(DataError, match=r"holds no cfg.json with .* it holds nothing"):
        load_sae(tmp_path)
    np.savez(tmp_path / "params.npz", W_enc=np.array([{}], dtype=object))
    with pytest.raises(DataError, match=r"params.npz' is damaged, or no .npz file of numbers"):
        load_sae(tmp_path)
    with pytest.raises(UsageError, match="does not exist; name a folder, or hf://owner/name/folder on the Hub"):
        load_sae(tmp_path / "none")
    (tmp_path / "notes.txt").write_text("an SAE")
    with pytest.raises(DataError, match=r"is neither a folder nor an \.npz file"):
        load_sae(tmp_path / "notes.txt")
    (tmp_path / "sae.pt").write_bytes(b"")
    with pytest.raises(DataError, match="is a pickle, which can run code and is never read"):
        load_sae(tmp_path / "sae.pt")

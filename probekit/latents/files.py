"""Read sparse autoencoders and transcoders from the files of SAELens, sparsify and Gemma Scope. Never a pickle."""

import math
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from probekit.errors import DataError, UsageError
from probekit.files.hub import SCHEME, Sought, fetch_folder, is_address, parse_address
from probekit.latents.config import SaeConfig, gemma_scope_config, saelens_config, sparsify_config
from probekit.latents.sae import Sae
from probekit.machine.devices import find_device, find_float
from probekit.models.files import read_json
from probekit.models.weights import READABLE, stored_in
from probekit.options.check import check_path, check_positive
from probekit.points import Place, PointSpec
from probekit.text import listed

CONFIG, SAELENS, SPARSIFY, GEMMA_SCOPE = "cfg.json", "sae_weights.safetensors", "sae.safetensors", "params.npz"
SOUGHT = Sought((GEMMA_SCOPE, SAELENS, SPARSIFY), "name a folder that holds it")
_OF_ACTIVATION = {"gated": ("b_gate", "b_mag", "r_mag"), "jumprelu": ("b_enc", "threshold")}  # else b_enc
_OURS = {"encoder.bias": "b_enc"}  # names of sparsify's tensors
_PICKLES = (".pt", ".pth", ".bin", ".pkl")


def load_sae(
    path: str | Path,
    *,
    place: PointSpec | None = None,
    scale: float | None = None,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype = torch.float32,
) -> Sae:
    """A sparse autoencoder or a transcoder from its files.

    Args:
        path: a folder with SAELens's cfg.json and sae_weights.safetensors, with sparsify's cfg.json and
            sae.safetensors, or with Gemma Scope's params.npz (or that file); or the same on the Hub,
            hf://owner/name[@revision]/folder.
        place: what it reads, such as "resid_post.8".  [default: as its files say]
        scale: what activations are multiplied by before they are read; only for files that say
            `normalize_activations: expected_average_only_in`, and do not hold the factor.
        device: of the weights.
        dtype: of the weights, and so of the latents: a floating-point type of torch, or its name ("bfloat16", "bf16").

    Raises:
        UsageError: no such folder; a place, a scale, a device or a type that is not one.
        DataError: no such files there, or damaged; a pickle; a field that is not known; weights that are missing, of
            another shape, NaN or infinite.
    """
    if scale is not None:
        check_positive("scale", scale)
    kind = find_float(dtype)
    if is_address(path):
        found = fetch_folder(parse_address(str(path), "model"), "model", SOUGHT, _is_wanted)
    else:
        found = check_path("the autoencoder", path)
    if not found.exists():
        raise UsageError(f"{str(path)!a} does not exist; name a folder, or {SCHEME}owner/name/folder on the Hub")
    if found.suffix in _PICKLES:
        raise DataError(f"{str(found)!a} is a pickle, which can run code and is never read; save it as safetensors")
    if found.is_file() and found.suffix != ".npz":
        raise DataError(f"{str(found)!a} is neither a folder nor an .npz file; name the folder that it is in")
    if found.is_dir() and len(held := [one for one in SOUGHT.keys if (found / one).is_file()]) > 1:
        raise DataError(f"{str(found)!a} holds {listed(held, between=' and ')}; keep one of them there")
    name = str(path)
    if found.suffix == ".npz" or (found / GEMMA_SCOPE).is_file():
        file = found if found.suffix == ".npz" else found / GEMMA_SCOPE
        cfg, weights = _of_gemma_scope(file, name, scale)
    else:
        file, cfg, weights = _of_folder(found, scale)
    if place is not None:
        cfg = replace(cfg, place=Place.of(place))
    _check(file, cfg, weights)
    return Sae(cfg, {key: x.to(find_device(device), kind) for key, x in weights.items()}, name)


def _is_wanted(file: str) -> bool:
    return file in (CONFIG, *SOUGHT.keys)


def _of_folder(folder: Path, scale: float | None) -> tuple[Path, SaeConfig, dict[str, Tensor]]:
    """The weights' file, the config and the weights by our names, of SAELens or sparsify."""
    if not folder.is_dir() or not (folder / CONFIG).is_file():
        there = sorted(one.name for one in folder.iterdir())[:5] if folder.is_dir() else []
        raise DataError(
            f"{str(folder)!a} holds no {CONFIG} with {SAELENS} or {SPARSIFY}, and no {GEMMA_SCOPE}; it holds "
            f"{listed([ascii(one) for one in there]) or 'nothing'}"
        )
    fields = read_json(folder / CONFIG)
    if (folder / SAELENS).is_file():
        cfg = _described(folder / CONFIG, lambda: saelens_config(fields, scale))
        return folder / SAELENS, cfg, _from_saelens(folder / SAELENS, cfg)
    if not (folder / SPARSIFY).is_file():
        raise DataError(f"{str(folder)!a} has {CONFIG}, but neither {SAELENS} nor {SPARSIFY}; put the weights there")
    if scale is not None:
        raise UsageError(f"scale is for files of SAELens, and {str(folder)!a} is one of sparsify; leave it out")
    cfg = _described(folder / CONFIG, lambda: sparsify_config(fields, folder.name))
    weights = {_OURS.get(key, key): x for key, x in _tensors(folder / SPARSIFY).items()}
    if "encoder.weight" in weights:
        weights["W_enc"] = weights.pop("encoder.weight").T.contiguous()
    return folder / SPARSIFY, cfg, weights


def _from_saelens(path: Path, cfg: SaeConfig) -> dict[str, Tensor]:
    """Its tensors. One threshold is repeated for each latent; factors of 1 are dropped."""
    weights = _tensors(path)
    if "topk_threshold" in weights and weights["topk_threshold"].numel() == 1:
        weights["threshold"] = weights.pop("topk_threshold").reshape(()).expand(cfg.d_latents)
    factor = weights.get("finetuning_scaling_factor", weights.get("scaling_factor"))
    if factor is not None and bool((factor == 1).all()):
        weights = {key: x for key, x in weights.items() if x is not factor}
    return weights


def _tensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of a safetensors file.

    Raises:
        DataError: the file is damaged, or holds numbers of another type.
    """
    for key, entry in stored_in(path).items():
        if entry.dtype not in (*READABLE, "F64"):
            raise DataError(f"{str(path)!a} holds {key!a:.80} as {entry.dtype}; save it as F32, F16 or BF16")
    return load_file(path)


def _of_gemma_scope(path: Path, name: str, scale: float | None) -> tuple[SaeConfig, dict[str, Tensor]]:
    """The config and the weights of an .npz file.

    Raises:
        UsageError: a scale.
        DataError: the file is damaged, or holds something else.
    """
    if scale is not None:
        raise UsageError(f"scale is for files of SAELens, and {str(path)!a} is one of Gemma Scope; leave it out")
    try:
        with zipfile.ZipFile(path) as file:
            shapes = {one.filename.removesuffix(".npy"): _shape(file, one) for one in file.infolist()}
            cfg = _described(path, lambda: gemma_scope_config(shapes, name))
        with np.load(path, allow_pickle=False) as found:
            weights = {key: torch.from_numpy(found[key]) for key in shapes}
    except DataError:
        raise
    except Exception as error:  # zipfile, zlib and numpy raise whatever they meet in a damaged file
        why = (str(error).splitlines() or [""])[0][:100]
        raise DataError(f"{str(path)!a} is damaged, or no .npz file of numbers: {why!a}; download it again") from None
    return cfg, {key: x for key, x in weights.items() if not (key == "scaling_factor" and bool((x == 1).all()))}


def _shape(file: zipfile.ZipFile, member: zipfile.ZipInfo) -> tuple[int, ...]:
    """The shape of an array of floats in an .npz file, from its header.

    Raises:
        ValueError: numbers of another type, or another size than the file says.
    """
    with file.open(member) as array:
        version = np.lib.format.read_magic(array)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, _, dtype = read(array)
        if (
            dtype.kind != "f"
            or not dtype.isnative
            or math.prod(shape) * dtype.itemsize + array.tell() != member.file_size
        ):
            raise ValueError(f"{member.filename} is {dtype} {shape}")
    return shape


def _described(path: Path, read: Any) -> SaeConfig:
    """What `read` gives, with the file's name before what it refuses."""
    try:
        return read()
    except DataError as error:
        raise DataError(f"{str(path)!a}: {error}") from None


def _check(path: Path, cfg: SaeConfig, weights: Mapping[str, Tensor]) -> None:
    """Raise unless the weights are those that the config needs, in their shapes, and finite."""
    own = _OF_ACTIVATION.get(cfg.activation, ("b_enc",))
    shapes: dict[str, tuple[int, ...]] = {
        "W_enc": (cfg.d_in, cfg.d_latents),
        "W_dec": (cfg.d_latents, cfg.d_out),
        "b_dec": (cfg.d_out,),
        **dict.fromkeys(own, (cfg.d_latents,)),
        **({"W_skip": (cfg.d_out, cfg.d_in)} if cfg.skip else {}),
    }
    if missing := [key for key in shapes if key not in weights]:
        raise DataError(f"{str(path)!a} has no {listed(missing)}, which its kind ({cfg.activation}) needs")
    if unknown := [key for key in weights if key not in shapes]:
        raise DataError(
            f"{str(path)!a} holds {listed([ascii(key) for key in unknown], most=3)}, which its kind "
            f"({cfg.activation}) does not have; nothing says what it is"
        )
    for key, shape in shapes.items():
        weight = weights[key]
        if weight.shape != shape:
            raise DataError(f"{key} in {str(path)!a} is {[*weight.shape]}, expected {[*shape]}")
        if not bool(weight.isfinite().all()):
            raise DataError(f"{key} in {str(path)!a} holds NaN or infinity; download or save it again")
    if cfg.k > cfg.d_latents:
        raise DataError(f"k = {cfg.k} in {str(path)!a} is more than its {cfg.d_latents} latents")
    if cfg.activation == "groupmax" and cfg.d_latents % cfg.k:
        raise DataError(f"{cfg.d_latents} latents in {str(path)!a} cannot be cut into {cfg.k} equal groups")

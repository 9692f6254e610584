"""What the files of a sparse autoencoder or a transcoder say of it, in one form for every library; no torch is needed.

Three layouts are read: SAELens's `cfg.json` (versions 1 to 6), sparsify's `cfg.json`, and the `params.npz` of Gemma
Scope, which has no config. A field that changes the numbers and is not known is refused.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from probekit.errors import DataError
from probekit.options.check import is_whole
from probekit.points import Place, UnknownPoint
from probekit.text import listed

Activation = str  # "relu", "gated", "jumprelu", "topk" or "groupmax"
_SAELENS = {  # architecture in cfg.json -> activation, and whether it is a transcoder
    "standard": ("relu", False),
    "gated": ("gated", False),
    "jumprelu": ("jumprelu", False),
    "topk": ("topk", False),
    "batchtopk": ("jumprelu", False),  # both are topk over a batch in training, and a threshold after it
    "matryoshka_batchtopk": ("jumprelu", False),
    "transcoder": ("relu", True),
    "skip_transcoder": ("relu", True),
    "jumprelu_transcoder": ("jumprelu", True),
    "jumprelu_skip_transcoder": ("jumprelu", True),
}
_NORMS = ("none", "layer_norm", "constant_norm_rescale", "expected_average_only_in")
_READ = {
    "architecture", "d_in", "d_sae", "d_out", "k", "apply_b_dec_to_input", "normalize_activations", "metadata",
    "reshape_activations", "rescale_acts_by_decoder_norm", "activation_fn", "activation_fn_str", "activation_fn_kwargs",
    "finetuning_scaling_factor", "hook_name", "hook_point", "hook_name_out", "hook_head_index", "hook_point_head_index",
    "hook_head_index_out", "model_name", "dtype", "device",
}  # fmt: skip
_OF_TRAINING = re.compile(  # where, on what and how it was trained: nothing of this changes what it computes
    r"(act_store|adam|autocast|aux|b_dec_init|cached|checkpoint|compile|context|dataset|dead|decoder|eval|exclude|"
    r"expansion|feature|finetuning|from_pretrained|hf_hook|hook_eval|hook_layer|init|is_dataset|jumprelu|l0|l1|llm|log|"
    r"lp_norm|lr|matryoshka|model_class|model_from|model_kwargs|mse|n_|neuronpedia|noise|normalize_sae|pre_act|"
    r"prepend|resume|run_name|sae_|scale_sparsity|seed|seqpos|sparsity|store|streaming|tokens|topk|train|use_|verbose|"
    r"wandb|target_l0)"
)
_IN_MODULES = (  # modules of transformers after which sparsify names a file, and the point that is their output
    (re.compile(r"(?:.*\.)?(?:layers|layer|h|blocks)\.(\d+)"), "resid_post"),
    (re.compile(r"(?:.*\.)?(?:layers|layer|h|blocks)\.(\d+)\.(?:mlp|feed_forward)"), "mlp_out"),
    (re.compile(r"(?:.*\.)?(?:layers|layer|h|blocks)\.(\d+)\.(?:self_attn|attn|attention)"), "attn_out"),
)
_SPARSIFY = {  # field -> the values that are known; None is any
    "activation": ("topk", "groupmax"), "k": None, "d_in": None, "num_latents": None, "expansion_factor": None,
    "skip_connection": (True, False), "transcode": (True, False), "multi_topk": None, "normalize_decoder": None,
    "signed": (False,), "embed_skip": (False,), "gram_lookup": (False,), "lookup_max_order": None,
    "gram_table_hash": (None,),
}  # fmt: skip


@dataclass(frozen=True)
class SaeConfig:
    """How a sparse autoencoder or a transcoder computes.

    Attributes:
        activation: what makes latents of its products: "relu"; "gated" (Rajamanoharan et al. 2024, arXiv 2404.16014);
            "jumprelu" (arXiv 2407.14435); "topk" (Gao et al. 2024, arXiv 2406.04093); or "groupmax", the largest of
            each of k groups.
        d_in: width of what it reads.
        d_latents: how many latents it has.
        d_out: width of what it reconstructs.
        k: latents of a row that are not 0, for "topk" and "groupmax".
        norm: what is done to a row before it is read: "none", "layer_norm", or "constant_norm_rescale" to a length of
            sqrt(d_in). Its undoing is part of the reconstruction, but for transcoders.
        scale: what rows are multiplied with before they are read, and reconstructions divided by.
        subtracts_bias: whether the decoder's bias is subtracted from what is read.
        by_decoder_norm: whether latents are in units of their direction: products are multiplied with the length of
            the latent's row of the decoder before the activation, and latents divided by it before the decoder.
        is_transcoder: whether it reconstructs another point than it reads.
        skip: whether a matrix times what is read is added to the reconstruction.
        place: what it reads; None where the file does not say it.
        place_out: what it reconstructs.
        model: the name of the model as the file has it; "" where it has none.
    """

    activation: Activation
    d_in: int
    d_latents: int
    d_out: int
    k: int = 0
    norm: str = "none"
    scale: float = 1.0
    subtracts_bias: bool = False
    by_decoder_norm: bool = False
    is_transcoder: bool = False
    skip: bool = False
    place: Place | None = None
    place_out: Place | None = None
    model: str = ""


def saelens_config(fields: Mapping[str, Any], scale: float | None) -> SaeConfig:
    """The config that SAELens writes; fields of old versions lie side by side, where newer ones have `metadata`.

    Args:
        fields: of cfg.json.
        scale: of the inputs, for `expected_average_only_in`, whose factor no file holds.

    Raises:
        DataError: a field that is missing, not known, or has a value that is not implemented.
    """
    about = fields.get("metadata") or {}
    if not isinstance(about, Mapping):
        raise DataError(f"metadata must be an object; got {about!a:.60}")
    unknown = [name for name in fields if name not in _READ and not _OF_TRAINING.match(name)]
    if unknown:
        raise DataError(f"the field {unknown[0]!a:.80} is not known, and may change what the latents are")
    architecture = fields.get("architecture", "standard")
    named = fields.get("activation_fn", fields.get("activation_fn_str", "relu"))
    kwargs = fields.get("activation_fn_kwargs") or {}
    if architecture == "standard" and named == "topk":  # as versions before 6 wrote it
        architecture, fields = "topk", {**fields, "k": kwargs.get("k")}
    if not isinstance(architecture, str) or architecture not in _SAELENS:
        raise DataError(f"architecture {architecture!a:.60} is not implemented; known are {listed([*_SAELENS])}")
    if named not in ("relu", "topk"):
        raise DataError(f"activation_fn {named!a:.60} is not implemented; known are relu and topk")
    activation, is_transcoder = _SAELENS[architecture]
    head = _of(fields, about, "hook_head_index", "hook_point_head_index")
    if head is not None:
        raise DataError(f"hook_head_index = {head!a:.20}: one of one head is not implemented")
    if fields.get("finetuning_scaling_factor"):
        raise DataError("finetuning_scaling_factor: latents that were scaled after training are not implemented")
    norm = fields.get("normalize_activations")
    norm = {None: "none", False: "none", True: "expected_average_only_in"}.get(
        norm, norm
    )  # as versions 1 to 3 wrote it
    if norm not in _NORMS:
        raise DataError(f"normalize_activations = {norm!a:.60} is not implemented; known are {listed(_NORMS)}")
    if norm == "expected_average_only_in" and scale is None:
        raise DataError(
            "normalize_activations = 'expected_average_only_in': the factor of the inputs is not in the file; give it "
            "as scale (sqrt(d_in) / the mean length of the activations that it was trained on)"
        )
    return SaeConfig(
        activation,
        d_in=_size(fields, "d_in"),
        d_latents=_size(fields, "d_sae"),
        d_out=_size(fields, "d_out" if is_transcoder else "d_in"),
        k=_size(fields, "k") if activation == "topk" else 0,
        norm="none" if norm == "expected_average_only_in" else norm,
        scale=1.0 if scale is None else scale,
        subtracts_bias=not is_transcoder and bool(fields.get("apply_b_dec_to_input", True)),
        by_decoder_norm=bool(fields.get("rescale_acts_by_decoder_norm")),
        is_transcoder=is_transcoder,
        skip="skip" in architecture,
        place=_place_of_hook(_of(fields, about, "hook_name", "hook_point")),
        place_out=_place_of_hook(_of(fields, about, "hook_name_out")) if is_transcoder else None,
        model=str(_of(fields, about, "model_name") or ""),
    )


def sparsify_config(fields: Mapping[str, Any], folder: str) -> SaeConfig:
    """The config that EleutherAI's sparsify writes, in a folder that is named after the module that it reads.

    Raises:
        DataError: a field that is missing, not known, or has a value that is not implemented.
    """
    for name, value in fields.items():
        if name not in _SPARSIFY:
            raise DataError(f"the field {name!a:.80} is not known, and may change what the latents are")
        known = _SPARSIFY[name]
        if known is not None and value not in known:
            raise DataError(f"{name} = {value!a:.60} is not implemented; known are {listed([repr(x) for x in known])}")
    d_in = _size(fields, "d_in")
    n = fields.get("num_latents") or d_in * _size({"expansion_factor": 32, **fields}, "expansion_factor")
    is_transcoder = bool(fields.get("transcode"))
    place = _place_of_module(folder)
    return SaeConfig(
        fields.get("activation", "topk"),
        d_in=d_in,
        d_latents=_size({"num_latents": n}, "num_latents"),
        d_out=d_in,
        k=_size({"k": 32, **fields}, "k"),
        subtracts_bias=not is_transcoder,
        is_transcoder=is_transcoder,
        skip=bool(fields.get("skip_connection")),
        place=None if is_transcoder else place,
        place_out=place if is_transcoder else None,
    )


def gemma_scope_config(shapes: Mapping[str, tuple[int, ...]], path: str) -> SaeConfig:
    """The config of a `params.npz` of Gemma Scope (Lieberum et al. 2024, arXiv 2408.05147), from shapes and its path.

    Raises:
        DataError: an array is missing.
    """
    if missing := [name for name in ("W_enc", "W_dec", "b_enc", "b_dec", "threshold") if name not in shapes]:
        raise DataError(f"it holds no {listed(missing)}, as a params.npz of Gemma Scope does")
    if len(shapes["W_enc"]) != 2 or len(shapes["W_dec"]) != 2:
        raise DataError(f"W_enc and W_dec must be matrices; got {shapes['W_enc']} and {shapes['W_dec']}")
    layer = re.search(r"layer_(\d+)(?=/|$)", path)
    kind = re.search(r"gemma-scope-[^/]*-(res|mlp|att|transcoders)(?=/|$)", path)
    points = {"res": "resid_post", "mlp": "mlp_out", "att": "z", "transcoders": "ln2_normalized"}
    place = Place(points[kind[1]], int(layer[1])) if layer and kind else None
    transcodes = kind is not None and kind[1] == "transcoders"
    return SaeConfig(
        "jumprelu",
        d_in=shapes["W_enc"][0],
        d_latents=shapes["W_enc"][1],
        d_out=shapes["W_dec"][1],
        is_transcoder=transcodes,
        place=place,
        place_out=Place("mlp_out", place.layer) if transcodes and place else None,
    )


def _of(fields: Mapping[str, Any], about: Mapping[str, Any], *names: str) -> Any:
    """The first of these fields that is there, in `metadata` or beside it."""
    return next((each[name] for each in (about, fields) for name in names if each.get(name) is not None), None)


def _size(fields: Mapping[str, Any], name: str) -> int:
    value: Any = fields.get(name)
    if not is_whole(value) or value <= 0:
        raise DataError(f"{name} must be a whole number above 0; got {value!a:.40}")
    return int(value)


def _place_of_hook(name: Any) -> Place | None:
    """The place that a hook of TransformerLens is at; None for one that is not known here."""
    try:
        return Place.of(name) if isinstance(name, str) else None
    except UnknownPoint:
        return None


def _place_of_module(name: str) -> Place | None:
    for pattern, point in _IN_MODULES:
        if match := pattern.fullmatch(name):
            return Place(point, int(match[1]))
    return None

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
from probekit.points import Place, UnknownPoint, base_name
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
    "hook_head_index_out", "model_name", "model_from_pretrained_kwargs", "dtype", "device",
}  # fmt: skip
# where, on what and how it was trained: nothing of this changes what it computes
_OF_TRAINING = """
act_store_device adam_beta1 adam_beta2 autocast autocast_lm b_dec_init_method
aux_loss_coefficient cached_activations_path checkpoint_path compile_llm compile_sae context_size dataset_path
dataset_trust_remote_code dead_feature_threshold dead_feature_window decoder_heuristic_init
decoder_heuristic_init_norm decoder_init_norm decoder_orthogonal_init eval_batch_size_prompts
eval_every_n_wandb_logs exclude_special_tokens expansion_factor feature_sampling_window finetuning_method
finetuning_tokens from_pretrained_path hf_hook_name hf_hook_name_out hook_eval hook_layer hook_point_eval
hook_point_layer init_encoder_as_decoder_transpose is_dataset_tokenized jumprelu_bandwidth jumprelu_init_threshold
jumprelu_sparsity_loss_mode jumprelu_ste_to_input jumprelu_tanh_scale l0_coefficient l0_warm_up_steps l1_coefficient
l1_warm_up_steps llm_compilation_mode log_activations_store_to_wandb log_optimizer_state_to_wandb log_to_wandb lp_norm
lr lr_decay_steps lr_end lr_scheduler_name lr_warm_up_steps matryoshka_widths model_class_name model_kwargs
mse_loss_normalization n_batches_in_buffer n_checkpoints n_eval_batches n_restart_cycles neuronpedia_id noise_scale
normalize_sae_decoder pre_act_loss_coefficient prepend_bos resume run_name sae_compilation_mode sae_lens_version
sae_lens_training_version scale_sparsity_penalty_by_decoder_norm seed seqpos_slice sparsity_penalty_type
store_batch_size_prompts streaming target_l0 tokens_per_buffer topk_threshold_lr total_training_steps
total_training_tokens train_batch_size train_batch_size_tokens training_tokens use_cached_activations use_ghost_grads
use_matryoshka_aux_loss use_sparse_activations verbose wandb_entity wandb_id wandb_log_frequency wandb_project
"""
_OF_LOADING = {  # how SAELens loaded the model, and what of it changes the stream
    "center_writing_weights", "center_unembed", "fold_ln", "device", "dtype", "n_devices", "revision",
}  # fmt: skip
_CENTRED = ("embed", "resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post")  # by center_writing_weights
_BEFORE_GAIN = re.compile(r"(.*\.)?ln(1|2|_final)\.hook_normalized")  # TransformerLens's is the norm before its gain
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
        norm: what is done to a row before it is read: "none"; "centred", less its mean, as TransformerLens's
            `center_writing_weights` makes the stream; "layer_norm"; or "constant_norm_rescale" to a length of
            sqrt(d_in). Its undoing is part of the reconstruction, but for transcoders.
        scale: what rows are multiplied by before they are read, and reconstructions divided by.
        subtracts_bias: whether the decoder's bias is subtracted from what is read.
        by_decoder_norm: whether latents are in units of their direction: products are multiplied by the length of the
            latent's row of the decoder before the activation, and latents divided by it before the decoder.
        is_transcoder: whether it reconstructs another point than it reads.
        skip: whether a matrix times what is read is added to the reconstruction.
        place: what it reads; None where the file does not say it, or names what is no point here.
        place_out: what it reconstructs.
        hook: the name of what it reads, as the file has it; "" where it has none.
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
    hook: str = ""
    model: str = ""


def saelens_config(fields: Mapping[str, Any], scale: float | None) -> SaeConfig:
    """The config that SAELens writes; fields of old versions lie side by side, where newer ones have `metadata`.

    Args:
        fields: of cfg.json.
        scale: of the inputs, for `expected_average_only_in`, whose factor no file holds.

    Raises:
        DataError: a field that is missing, not known, or has a value that is not implemented.
    """
    about, kwargs = _mapping(fields, "metadata"), _mapping(fields, "activation_fn_kwargs")
    unknown = [name for name in fields if name not in _READ and name not in _OF_TRAINING.split()]
    if unknown:
        raise DataError(f"the field {unknown[0]!a:.80} is not known, and may change what the latents are")
    architecture = _one_of(fields, "architecture", tuple(_SAELENS), "standard")
    named = "activation_fn" if "activation_fn" in fields else "activation_fn_str"
    if _one_of(fields, named, ("relu", "topk"), "relu") == "topk" and architecture != "topk":
        if architecture != "standard":
            raise DataError(f"activation_fn = 'topk' with the architecture {architecture} is not implemented")
        architecture, fields = "topk", {**fields, "k": kwargs.get("k")}  # as versions before 6 wrote it
    activation, is_transcoder = _SAELENS[architecture]
    if (head := _of(fields, about, "hook_head_index", "hook_point_head_index")) is not None:
        raise DataError(f"hook_head_index = {head!a:.20}: one of one head is not implemented")
    if _flag(fields, "finetuning_scaling_factor", False):
        raise DataError("finetuning_scaling_factor: latents that were scaled after training are not implemented")
    _one_of(fields, "reshape_activations", ("none", "hook_z"), "none")
    old = {None: "none", False: "none", True: "expected_average_only_in"}  # as versions 1 to 3 wrote it
    norm = fields.get("normalize_activations")
    norm = old[norm] if isinstance(norm, bool | None) else _one_of(fields, "normalize_activations", _NORMS, "none")
    if (norm == "expected_average_only_in") != (scale is not None):
        if scale is not None:
            raise DataError(f"normalize_activations = {norm!a}: it takes no scale; leave it out")
        raise DataError(
            "normalize_activations = 'expected_average_only_in': the factor of the inputs is not in the file; give it "
            "as scale (sqrt(d_in) / the mean length of the activations that it was trained on)"
        )
    norm = "none" if norm == "expected_average_only_in" else norm
    hook = str(_of(fields, about, "hook_name", "hook_point") or "")
    place = _place_of_hook(hook)
    loading = _mapping({**fields, **about}, "model_from_pretrained_kwargs")
    if odd := [name for name, value in loading.items() if name not in _OF_LOADING and value not in (None, False)]:
        raise DataError(f"model_from_pretrained_kwargs: {odd[0]!a:.60} is not known, and may change what it reads")
    if loading.get("center_writing_weights") and place is not None and base_name(place.point) in _CENTRED:
        if norm not in ("none", "layer_norm"):
            raise DataError(f"normalize_activations = {norm!a} of centred activations is not implemented")
        norm = "centred" if norm == "none" else norm  # a layer norm subtracts the mean itself
    return SaeConfig(
        activation,
        d_in=_size(fields, "d_in"),
        d_latents=_size(fields, "d_sae"),
        d_out=_size(fields, "d_out" if is_transcoder else "d_in"),
        k=_size(fields, "k") if activation == "topk" else 0,
        norm=norm,
        scale=1.0 if scale is None else scale,
        subtracts_bias=not is_transcoder and _flag(fields, "apply_b_dec_to_input", True),
        by_decoder_norm=_flag(fields, "rescale_acts_by_decoder_norm", False),
        is_transcoder=is_transcoder,
        skip="skip" in architecture,
        place=place,
        place_out=_place_of_hook(_of(fields, about, "hook_name_out")) if is_transcoder else None,
        hook=hook,
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
        if known is not None and not any(type(value) is type(one) and value == one for one in known):
            raise DataError(f"{name} = {value!a:.60} is not implemented; known are {listed([repr(x) for x in known])}")
    d_in = _size(fields, "d_in")
    n = fields.get("num_latents") or d_in * _size({"expansion_factor": 32, **fields}, "expansion_factor")
    is_transcoder = _flag(fields, "transcode", False)
    place = _place_of_module(folder)
    return SaeConfig(
        _one_of(fields, "activation", ("topk", "groupmax"), "topk"),
        d_in=d_in,
        d_latents=_size({"num_latents": n}, "num_latents"),
        d_out=d_in,
        k=_size({"k": 32, **fields}, "k"),
        subtracts_bias=not is_transcoder,
        is_transcoder=is_transcoder,
        skip=_flag(fields, "skip_connection", False),
        place=None if is_transcoder else place,
        place_out=place if is_transcoder else None,
        hook=f"the input of {folder}" if is_transcoder else folder,
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
    found = re.search(r"gemma-scope-([^/@]+?)-(res|mlp|att|transcoders)(?=[/@]|$)", path)
    points = {"res": "resid_post", "mlp": "mlp_out", "att": "z"}
    kind, number = (found[2], int(layer[1])) if layer and found else ("", 0)
    transcodes = found is not None and found[2] == "transcoders"
    return SaeConfig(
        "jumprelu",
        d_in=shapes["W_enc"][0],
        d_latents=shapes["W_enc"][1],
        d_out=shapes["W_dec"][1],
        is_transcoder=transcodes,
        place=Place(points[kind], number) if kind in points else None,
        place_out=Place("mlp_out", number) if kind == "transcoders" else None,
        hook="the input of the MLP before the gain of its norm" if transcodes else "",
        model=f"gemma-2-{found[1].removesuffix('-pt')}" if found else "",
    )


def plain_name(model: str) -> str:
    """The name of a model without its owner and its punctuation; TransformerLens's gpt2-small is gpt2."""
    name = re.sub(r"[^a-z0-9]", "", model.rpartition("/")[2].lower())
    return name.removesuffix("small") if name == "gpt2small" else name


def _of(fields: Mapping[str, Any], about: Mapping[str, Any], *names: str) -> Any:
    """The first of these fields that is there, in `metadata` or at the top level."""
    return next((each[name] for each in (about, fields) for name in names if each.get(name) is not None), None)


def _mapping(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = fields.get(name)
    if not isinstance(value, Mapping | None):
        raise DataError(f"{name} must be an object; got {value!a:.60}")
    return value or {}


def _flag(fields: Mapping[str, Any], name: str, default: bool) -> bool:
    value = fields.get(name)
    if not isinstance(value, bool | None):
        raise DataError(f"{name} must be true or false; got {value!a:.60}")
    return default if value is None else value


def _one_of(fields: Mapping[str, Any], name: str, known: tuple[str, ...], default: str) -> str:
    value = fields.get(name, default)
    if not isinstance(value, str) or value not in known:
        raise DataError(f"{name} {value!a:.60} is not implemented; known are {listed(known)}")
    return value


def _size(fields: Mapping[str, Any], name: str) -> int:
    value: Any = fields.get(name)
    if not is_whole(value) or value <= 0:
        raise DataError(f"{name} must be a whole number above 0; got {value!a:.40}")
    return int(value)


def _place_of_hook(name: Any) -> Place | None:
    """The place that a hook of TransformerLens is at; None for one that is no point here."""
    try:
        return Place.of(name) if isinstance(name, str) and not _BEFORE_GAIN.fullmatch(name) else None
    except UnknownPoint:
        return None


def _place_of_module(name: str) -> Place | None:
    for pattern, point in _IN_MODULES:
        if match := pattern.fullmatch(name):
            return Place(point, int(match[1]))
    return None

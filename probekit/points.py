"""Names of points, layers and places, as people type them, and which of them activations have; no torch is needed.

The names are those of TransformerLens (github.com/TransformerLensOrg/TransformerLens, 1.x to 3.x); each is the path of
its `HookPoint` in `named_modules()`. A short name and a layer are enough: `("resid_pre", 5)`, `"resid_pre.5"` and
`"blocks.5.hook_resid_pre"` name the same point. A *place* is a point with its layer: `("resid_pre", 5)`, or
`("embed", None)` for a point outside the layers. A store's manifest names its places, so a wrong one is refused before
anything else is read.
"""

import operator
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from probekit.errors import ProbekitError, UsageError, nearest
from probekit.text import listed

LONGEST_NAME = 200  # characters of a point, which names files; file systems take 255 bytes
POINTS = {
    "embed": "hook_embed",
    "pos_embed": "hook_pos_embed",
    "token_type_embed": "hook_token_type_embed",
    "ln_embed_scale": "ln_embed.hook_scale",
    "ln_embed": "ln_embed.hook_normalized",
    "resid_pre_streams": "blocks.{layer}.hook_resid_pre_streams",  # all of them, where blocks pass on several
    "resid_pre": "blocks.{layer}.hook_resid_pre",
    "ln1_scale": "blocks.{layer}.ln1.hook_scale",
    "ln1_normalized": "blocks.{layer}.ln1.hook_normalized",
    "q_latent_scale": "blocks.{layer}.attn.q_latent.hook_scale",
    "q_latent": "blocks.{layer}.attn.q_latent.hook_normalized",
    "kv_latent_scale": "blocks.{layer}.attn.kv_latent.hook_scale",
    "kv_latent": "blocks.{layer}.attn.kv_latent.hook_normalized",
    "q": "blocks.{layer}.attn.hook_q",
    "k": "blocks.{layer}.attn.hook_k",
    "v": "blocks.{layer}.attn.hook_v",
    "q_norm_scale": "blocks.{layer}.attn.q_norm.hook_scale",
    "q_norm": "blocks.{layer}.attn.q_norm.hook_normalized",
    "k_norm_scale": "blocks.{layer}.attn.k_norm.hook_scale",
    "k_norm": "blocks.{layer}.attn.k_norm.hook_normalized",
    "rot_q": "blocks.{layer}.attn.hook_rot_q",
    "rot_k": "blocks.{layer}.attn.hook_rot_k",
    "attn_scores": "blocks.{layer}.attn.hook_attn_scores",
    "attn_pattern": "blocks.{layer}.attn.hook_pattern",
    "attn_gate": "blocks.{layer}.attn.hook_gate",  # what multiplies the heads' outputs, where there is such a gate
    "z": "blocks.{layer}.attn.hook_z",
    "result": "blocks.{layer}.attn.hook_result",
    "ln1_post_scale": "blocks.{layer}.ln1_post.hook_scale",
    "ln1_post_normalized": "blocks.{layer}.ln1_post.hook_normalized",
    "attn_out": "blocks.{layer}.hook_attn_out",
    "mixer_out": "blocks.{layer}.hook_mixer_out",  # of models in which some layers have no attention
    "resid_mid": "blocks.{layer}.hook_resid_mid",
    "ln2_scale": "blocks.{layer}.ln2.hook_scale",
    "ln2_normalized": "blocks.{layer}.ln2.hook_normalized",
    "mlp_pre": "blocks.{layer}.mlp.hook_pre",
    "mlp_pre_linear": "blocks.{layer}.mlp.hook_pre_linear",
    "mlp_post": "blocks.{layer}.mlp.hook_post",
    "router_logits": "blocks.{layer}.mlp.hook_router_logits",
    "expert_weights": "blocks.{layer}.mlp.hook_expert_weights",
    "ln2_post_scale": "blocks.{layer}.ln2_post.hook_scale",
    "ln2_post_normalized": "blocks.{layer}.ln2_post.hook_normalized",
    "mlp_out": "blocks.{layer}.hook_mlp_out",
    "per_layer_out": "blocks.{layer}.hook_per_layer_out",  # what a layer's own embedding of the token adds
    "resid_post_streams": "blocks.{layer}.hook_resid_post_streams",
    "resid_post": "blocks.{layer}.hook_resid_post",
    "latents": "blocks.{layer}.hook_latents",  # of a sparse autoencoder; no model has them by itself
    "ln_final_scale": "ln_final.hook_scale",
    "ln_final": "ln_final.hook_normalized",
    "head_ln_scale": "head.ln.hook_scale",
    "head_ln": "head.ln.hook_normalized",
}
_IN_STACKS = [short for short, full in POINTS.items() if "{layer}" in full or short in ("embed", "pos_embed")]
POINTS |= {f"{stack}.{short}": f"{stack}.{POINTS[short]}" for stack in ("encoder", "decoder") for short in _IN_STACKS}
_IN_CROSS_ATTENTION = {"q": "q", "k": "k", "v": "v", "attn_scores": "attn_scores", "attn_pattern": "pattern", "z": "z"}
POINTS |= {
    f"decoder.cross_{short}": f"decoder.blocks.{{layer}}.cross_attn.hook_{full}"
    for short, full in (_IN_CROSS_ATTENTION | {"result": "result"}).items()
} | {
    "decoder.cross_attn_out": "decoder.blocks.{layer}.hook_cross_attn_out",
    "decoder.resid_mid_cross": "decoder.blocks.{layer}.hook_resid_mid_cross",
    "decoder.ln3_scale": "decoder.blocks.{layer}.ln3.hook_scale",
    "decoder.ln3_normalized": "decoder.blocks.{layer}.ln3.hook_normalized",
}
# points whose curve over all layers ends with the output of the last block
FOLLOWED_BY_OUTPUT = tuple(f"{stack}resid_{at}" for stack in ("", "encoder.", "decoder.") for at in ("pre", "mid"))
# points with one row per (query, key); the width is the number of heads
PAIR_POINTS = tuple(f"{stack}attn_{what}" for stack in ("", "encoder.", "decoder.") for what in ("scores", "pattern"))
# points whose rows [H * K] hold K numbers for each of H heads; there may be fewer heads of keys and values
KEY_POINTS = ("k", "k_norm", "rot_k", "v")
HEAD_POINTS = ("q", "q_norm", "rot_q", "z", "result", *KEY_POINTS)
# points of cross-attention with a row for each token of the source
OF_SOURCES = ("decoder.cross_attn_scores", "decoder.cross_attn_pattern", "decoder.cross_k", "decoder.cross_v")
# why a block whose attention and MLP read the same stream has no `resid_mid`
PARALLEL = (
    "its attention and MLP read the same stream, so that resid_pre + attn_out + mlp_out = resid_post; "
    "take resid_pre, attn_out, mlp_out or resid_post"
)
MAX_LAYERS = 1000  # far above any model
MAX_DIGITS = 100  # of a layer's number; Python refuses to read thousands of them
HIDDEN = "hidden_states"  # Hugging Face's list, which imports know as a point
ALIASES = {"pattern": "attn_pattern"}  # TransformerLens's short name
_FULL = re.compile(r"(blocks|encoder\.blocks|decoder\.blocks)\.([0-9]{1,100})\.(.+)")
_SHORT = re.compile(r"(.+)\.([0-9]{1,100})")

PointSpec = str | tuple[str, int | None]


LATENTS = "latents"  # a point of autoencoders, which no model has


class UnknownPoint(UsageError, KeyError):
    """No such point; a KeyError too, so that `in` and `.get` of a cache behave."""

    __str__ = ProbekitError.__str__


class Place(NamedTuple):
    """A point and a layer, `("resid_pre", 5)`; its text is "resid_pre.5". Points such as "embed" have no layer."""

    point: str
    layer: int | None

    def __str__(self) -> str:
        return self.point if self.layer is None else f"{self.point}.{self.layer}"

    def __repr__(self) -> str:
        return repr(tuple(self))

    @classmethod
    def of(cls, spec: PointSpec) -> "Place":
        """`"resid_pre.5"`, `("resid_pre", 5)` or a full name, as a place; without a layer where none is given.

        Raises:
            UnknownPoint: the short name is not in `POINTS`; the message names the nearest.
        """
        if isinstance(spec, str):
            if match := _FULL.fullmatch(spec):
                return cls(_short(f"{match[1]}.{{layer}}.{match[3]}", spec), int(match[2]))
            if match := _SHORT.fullmatch(spec):
                return cls(_short(match[1], spec), int(match[2]))
            return cls(_short(spec, spec), None)
        if not (isinstance(spec, tuple) and len(spec) == 2 and isinstance(spec[0], str)):
            raise UsageError(f'a point is "resid_pre.5" or ("resid_pre", 5); got {spec!r}')
        name, layer = spec
        if layer is None:
            return cls(_short(name, name), None)
        if isinstance(layer, bool) or not hasattr(layer, "__index__"):
            raise UsageError(f"the layer of a point is a whole number; got {layer!r}")
        return cls(_short(name, name), operator.index(layer))


def base_name(short: str) -> str:
    """A short name without its stack: `"encoder.resid_pre"` -> `"resid_pre"`."""
    return short.rpartition(".")[2]


def depth_of(place: Place, n_layers: int) -> float | None:
    """The share of the model's blocks that come before a place: 0 at the embedding, 1 at the output of the last block.

    A place inside a block, such as the output of its attention, counts half of that block. None for places side by
    side and for latents, whose names do not say where in a block they were read.
    """
    point, layer = place
    base = base_name(point)
    if point not in POINTS or base == "latents":
        return None
    if layer is None:
        return 0.0 if "embed" in base else 1.0
    ends = {"resid_pre": 0.0, "resid_pre_streams": 0.0, "resid_post": 1.0, "resid_post_streams": 1.0}
    done = ends.get(base, 0.0 if "embed" in base else 0.5)
    return min(1.0, (layer + done) / max(1, n_layers))


def in_stack(short: str, stack: str) -> str:
    """The short name in a stack, "" or "encoder.": `"resid_pre"` -> `"encoder.resid_pre"`; others stay as they are."""
    return stack + short if stack + short in POINTS else short


def as_extracted(short: str, places: Iterable[Place]) -> str:
    """The short name among the places of an extraction: `"encoder.resid_pre"` if these are of an encoder."""
    return in_stack(short, "encoder." if any(point.startswith("encoder.") for point, _ in places) else "")


def _short(name: str, typed: str) -> str:
    name = ALIASES.get(name, name)
    if name in POINTS:
        return name
    for short, template in POINTS.items():
        if name == template:
            return short
    stacks = ("encoder.", "decoder.")
    known = [one for one in (*POINTS, *POINTS.values()) if one.startswith(stacks) == typed.startswith(stacks)]
    raise UnknownPoint(f"unknown point {typed!r:.80}; {nearest(typed[:80], known)}")


def resolve_point(spec: PointSpec, n_layers: int) -> str:
    """The full name of a point in a model with `n_layers` blocks: `("resid_pre", 5)` -> `"blocks.5.hook_resid_pre"`.

    Raises:
        UsageError: an unknown name, a layer out of range, a missing layer, or a layer for a point that has none.
    """
    short, layer = Place.of(spec)
    per_layer = "{layer}" in POINTS[short]
    if per_layer and layer is None:
        raise UnknownPoint(f"{short} exists in every layer; name one of them, such as ({short!r}, 0)")
    if not per_layer and layer is not None:
        raise UnknownPoint(f"{short} belongs to no layer; write {short!r}")
    if layer is not None:
        check_layer(layer, n_layers)
    return POINTS[short].format(layer=layer)


def check_layer(layer: int, n_layers: int) -> int:
    """`layer` itself, or a UsageError with the valid range."""
    if not 0 <= layer < n_layers:
        raise UsageError(f"layer {layer} is not in 0..{n_layers - 1}")
    return layer


def parse_layers(spec: str | int | Iterable[int], n_layers: int) -> list[int]:
    """`"all"`, `3`, `[0, 4]`, `"0,4,8"` or `"2-6"` (ends included) as sorted, distinct layers.

    Raises:
        UsageError: a layer outside 0..n_layers-1, or text in none of these forms.
    """
    if isinstance(spec, str):
        spans = [] if spec.strip() == "all" else [_ends(part, spec) for part in spec.split(",")]
        # checked before a range is built of it
        layers = [i for first, last in spans for i in range(first, check_layer(last, n_layers) + 1)]
        layers = layers if spans else [*range(n_layers)]
    elif isinstance(spec, int):
        layers = [spec]
    else:
        layers = [int(i) for i in spec]
    if not layers:
        raise UsageError(f"no layers in {spec!r}; give all, 3, 0,4,8 or 2-6")
    return sorted({check_layer(layer, n_layers) for layer in layers})


def check_layers(spec: str) -> None:
    """Raise a UsageError unless the text is all, 3, 0,4,8 or 2-6, whatever the model."""
    for part in [] if spec.strip() == "all" else spec.split(","):
        _ends(part, spec)


def _ends(part: str, spec: str) -> tuple[int, int]:
    first, dash, last = part.strip().partition("-")
    sound = all(word.isdecimal() and len(word) <= MAX_DIGITS for word in (first, last or first))
    if not sound or (dash and not last) or (dash and int(last) < int(first)):
        raise UsageError(f"layers are all, 3, 0,4,8 or 2-6; got {spec!r:.80}")
    return int(first), int(last if dash else first)


def is_point_name(name: str) -> bool:
    """True for the short name of a point, which can be a part of a file's name."""
    return len(name) <= LONGEST_NAME and all(part.isidentifier() for part in name.split("."))


def joined_name(places: Iterable[Place]) -> str:
    """The name of places side by side, which can be a file's: "resid_pre_0_to_3", "resid_pre_0_2_and_resid_post_3"."""
    parts = spans_of(places).split(", ")
    return "_and_".join(re.sub("[ ,.]", "_", part.replace("-", "_to_")) for part in parts)


def spans_of(places: Iterable[Place]) -> str:
    """Places as a short text: "resid_pre 0-3, resid_post 3, embed"."""
    by_point: dict[str, list[int]] = {}
    for point, layer in places:
        by_point.setdefault(point, []).extend([] if layer is None else [layer])
    return ", ".join(f"{point} {_ranges(layers)}".strip() for point, layers in by_point.items())


def _ranges(layers: list[int]) -> str:
    """[0, 1, 2, 5] -> "0-2,5"."""
    runs: list[list[int]] = []
    for layer in sorted(layers):
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def parse_points(points: str | Iterable[str]) -> list[str]:
    """Short names, each once, from a list or from a text with commas.

    Raises:
        UsageError: no such point, none at all, one with a layer, points of both stacks of an encoder-decoder, or of
            cross-attention from targets to sources, whose rows have no layout.
    """
    names = []
    for spec in [part.strip() for part in points.split(",")] if isinstance(points, str) else points:
        short, layer = Place.of(spec)
        if layer is not None:
            raise UsageError(f"give points without a layer, such as {short!r}, and layers separately; got {spec!r}")
        names.append(short)
    if not names:
        raise UsageError("no points given; give one or more, such as resid_pre")
    names = list(dict.fromkeys(names))
    of_decoder = [point for point in names if point.startswith("decoder.")]
    others = [point for point in names if point not in of_decoder]  # a name without a stack is never of a decoder
    if of_decoder and others:
        one, other = (f"--points {','.join(part)}" for part in (others, of_decoder))
        raise UsageError(
            "the encoder reads inputs and the decoder targets, got points of both; extract them in two runs: "
            f"one command with {one}, one with {other}"
        )
    for point in OF_SOURCES:
        if point in names:
            raise UsageError(
                f"{point} has a row for each source token, which a store cannot hold; read it with run_with_cache"
            )
    return names


class NamedPlaces:
    """Places with what the record of their activations says of the model.

    Attributes:
        meta: JSON-able: points, n_layers, output and more.
    """

    def __init__(self, places: Iterable[Place], meta: dict[str, Any]):
        self._places = [Place(*place) for place in places]
        self.meta = meta

    def point_of(self, key: PointSpec) -> Place:
        """The short name of a point, and its layer where the key names one; places side by side have their own name."""
        own = (key, None) if isinstance(key, str) else key
        if own in self._places:
            return Place(*own)
        short, layer = Place.of(key)
        return Place(self.in_stack(short), layer)

    @property
    def points(self) -> list[str]:
        """The short names of the requested points, in that order."""
        return list(self.meta["points"])

    @property
    def n_layers(self) -> int:
        """The number of blocks of the model, including any that were not extracted."""
        return int(self.meta["n_layers"])

    @property
    def output(self) -> str:
        """The point of the last block's output, which ends the residual curve."""
        return str(self.meta.get("output", "resid_post"))

    def in_stack(self, short: str) -> str:
        """The short name here: `"resid_pre"` is `"encoder.resid_pre"` in the activations of an encoder."""
        return as_extracted(short, self._places)

    def curve(self, point: str) -> list[Place]:
        """The places of one point in layer order; for a residual point, then the output of the last block.

        Raises:
            UnknownPoint: the point was not extracted.
        """
        short, _ = self.point_of(point)
        places = sorted((p for p in self._places if p[0] == short), key=lambda p: p[1] or 0)
        if not places:
            raise UnknownPoint(f"no activations of {short} here; there are {spans_of(self._places)}")
        output = Place(self.output, self.n_layers - 1)
        return [*places, output] if short in FOLLOWED_BY_OUTPUT and output in self._places else places


def has_layers(acts: NamedPlaces, point: str) -> bool:
    """Whether a point was extracted at layers, rather than once for the model."""
    return any(layer is not None for name, layer in acts.curve(point) if name == point)


def places_of(acts: NamedPlaces, point: str | None, layers: str | int | Iterable[int]) -> tuple[str, list[Place]]:
    """The point's short name, and its places at these layers.

    Raises:
        UsageError: a point or layer that was not extracted.
    """
    short = short_name(acts, point)
    curve = acts.curve(short)
    if isinstance(layers, str) and layers.strip() == "all":
        return short, curve
    extracted = [layer for name, layer in curve if name == short and layer is not None]
    if not extracted:
        raise UsageError(f"{short} belongs to no layer; leave --layer (in Python, layers=) out")
    if str(layers).strip() in ("out", "output", str(acts.n_layers)) and curve[-1][0] != short:
        output, last = curve[-1]
        raise UsageError(
            f"{short} has no layer {layers!a}; for the output of the last block alone give --point {output} "
            f"--layer {last} (in Python, point={output!r}, layers={last})"
        )
    wanted = parse_layers(layers, acts.n_layers)
    if missing := [layer for layer in wanted if layer not in extracted]:
        known = listed(extracted)
        raise UsageError(f"layer {missing[0]} of {short} was not extracted; there are {known}")
    return short, [Place(short, layer) for layer in wanted]


def short_name(acts: NamedPlaces, point: str | None) -> str:
    """The short name of a point, by default the first that a probe can read."""
    first = next((name for name in acts.points if name not in PAIR_POINTS), acts.points[0])
    short, layer = acts.point_of(first if point is None else point)
    if layer is not None:
        raise UsageError(
            f"point and layer are given separately; give --point {short} --layer {layer} (in Python, point={short!r}, "
            f"layers={layer})"
        )
    return short

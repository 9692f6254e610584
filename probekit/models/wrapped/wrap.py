"""`pk.wrap`: a module of one's own, with points.

    model = pk.wrap(module, points={"resid_pre": "blocks.{layer}", "resid_post": "blocks.{layer}"})

A point is the output of the module at its path; `resid_pre` and `resid_mid` are its input. Before anything is offered,
random texts show that every point is reached once and has a row for each token, and prove the rest (`proof.py`).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn

from probekit.errors import UsageError
from probekit.models.base import LanguageModel
from probekit.models.tokenizer import Tokenizer
from probekit.models.wrapped.extent import extent_of
from probekit.models.wrapped.model import WrappedModule
from probekit.models.wrapped.outside import running_module
from probekit.models.wrapped.places import Points, known_points, module_places
from probekit.models.wrapped.proof import prove_points
from probekit.models.wrapped.shape import observed_shape
from probekit.options.check import is_whole


def wrap(
    module: nn.Module,
    points: Points | Callable[[Any], Points] | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    causal: bool = True,
    d_vocab: int | None = None,
    n_ctx: int | None = None,
    name: str | None = None,
) -> LanguageModel:
    """A module of your own with named points, for everything that takes a model: `extract`, edits, causal curves.

    Args:
        module: called with token ids, int64 [B, L]; returns logits [B, L, V], or a tuple or an object with them first.
            It is put into eval mode.
        points: point -> path of a module within it, or a function of the module that gives them. A point is the
            module's output; `resid_pre` and `resid_mid` are its input. `"resid_pre": "blocks.{layer}"` names every
            layer. None for modules whose points are known: TransformerLens's HookedTransformer and TransformerBridge,
            nanoGPT's GPT, a model of transformers, and nnsight.LanguageModel, whose model of transformers is taken.
        tokenizer: for texts, from `load_tokenizer`; None takes tasks of token ids.
        causal: whether a token's activations depend only on it and the tokens before it; it is proved.
        d_vocab: how many token ids there are; None takes the module's config, or the rows of its token embedding.
        n_ctx: the longest text; None takes the module's config, the rows of its position embedding, or what it can run.
        name: for titles and manifests; None takes the class's.

    Raises:
        UsageError: not a module; points that are not known, or name no module.
        DataError: a point that the forward does not reach, or that is not what its name says; activations that depend
            on the batch, on chance, or on later tokens.
    """
    if not isinstance(module, nn.Module):
        raise UsageError(f"wrap takes a torch module; got {type(module).__name__}")
    if tokenizer is not None and not isinstance(tokenizer, Tokenizer):
        raise UsageError(f"tokenizer is one of probekit, from load_tokenizer(folder); got {type(tokenizer).__name__}")
    inner = getattr(module, "_model", None)
    if points is None and type(module).__module__.startswith("nnsight.") and isinstance(inner, nn.Module):
        module = inner
    for given, least in ((d_vocab, "d_vocab"), (n_ctx, "n_ctx")):
        if given is not None and not (is_whole(given) and given > 0):
            raise UsageError(f"{least} is a whole number above 0; got {given!a:.40}")
    if points is None and any(base.__name__ == "PreTrainedModel" for base in type(module).__mro__):
        if not causal or d_vocab is not None or n_ctx is not None:
            raise UsageError("leave out causal, d_vocab and n_ctx: of a model of transformers its config says them")
        model: LanguageModel = _of_transformers(module)
        model.tokenizer, model.name = tokenizer, name or type(module).__name__
        return model
    if next(module.parameters(), None) is None:
        raise UsageError(f"{type(module).__name__} has no weights; wrap takes a model over token ids")
    module.eval()
    strict = points is not None
    if callable(points):
        with running_module(module):
            points = points(module)
    asked = known_points(module) if points is None else points
    where = module_places(module, asked)
    size = extent_of(module, d_vocab, n_ctx)
    model = WrappedModule(module, *observed_shape(module, where, size, strict))
    model.causal, model.tokenizer, model.name = causal, tokenizer, name or type(module).__name__
    with running_module(module):
        model.batching = prove_points(model)
    model.cfg = replace(model.cfg, batching=model.batching)
    return model.eval()


def _of_transformers(module: Any) -> LanguageModel:
    from probekit.models.adapter.load import HfSource, prove_wrapped

    source = HfSource(type(module), module.config, None, 0, module.dtype, {}, made=module)
    return prove_wrapped(module.eval(), source)

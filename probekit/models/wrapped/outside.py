"""A module from outside: where its points are, how it is hooked and called, and what it raises."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from typing import Any, NamedTuple

from torch import Tensor, nn

from probekit.errors import DataError, ProbekitError
from probekit.models.adapter.proof import first_of


class At(NamedTuple):
    """Where a point is: a module, by its path, and whether it is the module's input."""

    path: str
    module: nn.Module
    is_input: bool


def registered(at: At, hook: Callable[..., Any]) -> Any:
    """The handle of a hook at a point; those of TransformerLens may give their tensors an axis of heads."""
    conversion = getattr(at.module, "hook_conversion", None)
    if conversion is not None:

        def converted(module: nn.Module, args: tuple, output: Any) -> Any:
            changed = hook(module, args, conversion.convert(output))
            return None if changed is None else conversion.revert(changed)

        return at.module.register_forward_hook(converted)
    if at.is_input:
        return at.module.register_forward_pre_hook(hook, with_kwargs=True)
    return at.module.register_forward_hook(hook)


def called(module: nn.Module, tokens: Tensor) -> Tensor:
    """What the module returns first; nanoGPT's returns the logits of every token only where it is given targets."""
    takes_targets = "targets" in signature(module.forward).parameters
    found = _first_tensor(module(tokens, targets=tokens)) if takes_targets else None
    if found is None or found.dim() != 3:
        found = _first_tensor(module(tokens))
    if found is None or found.dim() != 3 or found.shape[:2] != tokens.shape:
        got = "no tensor" if found is None else str(list(found.shape))
        raise DataError(
            f"{type(module).__name__} returns {got} for tokens {list(tokens.shape)}; expected logits [B, L, V], alone, "
            "first of several, or under the name logits"
        )
    return found


def _first_tensor(output: Any) -> Tensor | None:
    """The logits among what a module returns, or the first of several."""
    found = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    found = first_of(output) if found is None and not isinstance(output, Mapping) and output is not None else found
    return found if isinstance(found, Tensor) else None


@contextmanager
def running_module(module: nn.Module) -> Iterator[None]:
    """Turn what the module raises into one line."""
    try:
        yield
    except ProbekitError:
        raise
    except (RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError, AssertionError) as error:
        why = " ".join(str(error).split())[:200]
        raise DataError(f"{type(module).__name__} cannot be run on token ids [B, L]: {why!a}") from None

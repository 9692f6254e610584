"""Run a model with edits: hooks that edit, for as long as a context holds.

Edits at one point are done in the order given, those of different points in the order of the forward. Contexts nest:
the edits of the outer one come first.

Axes: B batch, L position, R positions that the last block computes, N rows of an edit's tensors.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from probekit.errors import UsageError
from probekit.hooks import HookedModule, HookPoint
from probekit.interventions.edits import Edit, Edits, apply_edit, check_edit, check_width, edit_rows, is_identity
from probekit.interventions.where import TextTokens, check_positions, tokens_at
from probekit.points import PAIR_POINTS, Place
from probekit.text import kind_of

Placed = tuple[Tensor | None, Tensor | None]  # which tokens an edit is done at, and the row of each token: [B, L]


def check_edits(model: HookedModule, edits: Edits) -> list[tuple[str, Edit]]:
    """Full name of a point and edit, one pair for each, in the order given.

    A short name without a layer means every layer that has the point.

    Raises:
        UsageError: something else, an unknown point, one that has no row for each token, or an edit as `check_edit`
            refuses it.
    """
    if not hasattr(edits, "items"):
        raise UsageError(f'edits are a dictionary such as {{("resid_pre", 5): add(direction)}}; got {kind_of(edits)}')
    pairs = []
    for spec, some in edits.items():
        for edit in [some] if isinstance(some, Edit) or not isinstance(some, list | tuple) else some:
            if not isinstance(edit, Edit):
                raise UsageError(
                    f"expected an edit at {spec}, got {kind_of(edit)}; make one with add, replace, project_out, "
                    "affine or swap of probekit.interventions"
                )
            check_edit(edit)
            pairs += [(_editable(model, name), edit) for name in model.resolve(spec)]
    return pairs


def _editable(model: HookedModule, name: str) -> str:
    axes = model.points[name].axes
    if axes.split()[:2] == ["B", "L"]:
        return name
    short = Place.of(name)[0]
    instead = "edit q, k, v or z" if short in PAIR_POINTS or "attn_" in short else "edit the encoder's output"
    raise UsageError(
        f"an edit changes one row for each token, and {name} has the axes {axes}; {instead}, or write a hook "
        "(model.hooks)"
    )


@contextmanager
def editing(
    model: HookedModule, edits: Edits, at_BL: Tensor | None = None, rows_BL: Tensor | None = None
) -> Iterator[None]:
    """Within the context, forwards over tokens [B, L] run with the edits; see `apply_edit`.

    Edits at one point are done in the order given. Within `model.reading`, points of the last block may have the read
    positions alone.

    Raises:
        UsageError: an edit with positions of its own.
    """

    def placed(edit: Edit) -> Placed:
        if edit.positions is not None:
            raise UsageError(
                "positions of an edit are for model.edited and extract; give the tokens as edited, or at_BL"
            )
        return at_BL, rows_BL

    with editing_at(model, edits, placed):
        yield


@contextmanager
def editing_texts(
    model: HookedModule, edits: Edits, positions: Any, texts: Callable[[], TextTokens | None]
) -> Iterator[None]:
    """Within the context, forwards run with the edits at these positions of their texts.

    Args:
        model: the model.
        edits: the edits.
        positions: see `check_positions`.
        texts: gives the texts of the forward that runs; None if their tokens are unknown.
    """
    given = check_positions(positions)

    def placed(edit: Edit) -> Placed:
        checked = given if edit.positions is None else check_positions(edit.positions)
        n_rows = edit_rows(edit)
        if n_rows is None and isinstance(checked, str) and checked == "all":
            return None, None
        if (here := texts()) is None:
            raise UsageError(
                "an edit at some positions, or with a row for each text, needs one text in each row, and a mask "
                "[B, L] or none; to extract statistics under it, give ExtractOptions(edits=...)"
            )
        if n_rows not in (None, here.n_rows):
            raise UsageError(f"an edit has tensors for {n_rows} texts, got {here.n_rows}; give one row for each text")
        return tokens_at(checked, here), None if n_rows is None else here.row_B[:, None]

    with editing_at(model, edits, placed):
        yield


@contextmanager
def editing_at(model: HookedModule, edits: Edits, placed: Callable[[Edit], Placed]) -> Iterator[None]:
    """Within the context, forwards run with each edit at the tokens, and with the rows, that `placed` gives for it."""

    def hook_of(edit: Edit) -> Any:
        def hook(x: Tensor, point: HookPoint) -> Tensor:
            at_BL, rows_BL = placed(edit)
            check_width(edit, point.name, x[0, 0].numel())
            return apply_edit(edit, x, _as_read(model, at_BL, x), _as_read(model, rows_BL, x))

        return hook

    # a hooked point may take other kernels, which round differently: at scale 0 there is no hook
    pairs = [(name, edit) for name, edit in check_edits(model, edits) if not is_identity(edit)]
    with model.hooks([([name], hook_of(edit)) for name, edit in pairs]):
        yield


def _as_read(model: HookedModule, of_tokens: Tensor | None, x: Tensor) -> Tensor | None:
    """What belongs to tokens [B, L], for the positions that x has: all, or those of `reading`."""
    if of_tokens is None or (of_tokens.shape[1] in (1, x.shape[1]) and len(of_tokens) in (1, len(x))):
        return of_tokens
    read_BR: Tensor | None = getattr(model, "_read", None)
    if read_BR is None or tuple(x.shape[:2]) != tuple(read_BR.shape):
        raise UsageError(
            f"edits for tokens {list(of_tokens.shape)} met activations {list(x.shape)}; give matching ones"
        )
    return of_tokens.expand(len(x), -1).gather(1, read_BR.to(of_tokens.device))

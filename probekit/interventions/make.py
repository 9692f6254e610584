"""Make edits from directions, subspaces, values and maps; these functions check what they are given.

Every tensor may also be a NumPy array or a list. `scale` is how much of the edit is done: 0 nothing, 1 all of it; a
tensor [R] has one scale for each row. `positions` are the tokens to edit, as for `model.edited`; None: those that
`model.edited(edits, positions)` or `extract(edit_positions=...)` gives for all edits.

Axes: D width of the point, R rows, k dimensions of a subspace.
"""

from typing import Any

import torch
from torch import Tensor

from probekit.errors import UsageError
from probekit.interventions.edits import Add, Affine, ProjectOut, Replace, Swap, Through
from probekit.interventions.where import in_one_line, to_tensor
from probekit.text import kind_of

_VECTORS, _SUBSPACES = ("[D]", "[R, D]"), ("[D]", "[D, k]", "[R, D, k]")


def replace(value: Any, part: Any = None, scale: Any = 1.0, positions: Any = None) -> Replace:
    """Replace the activations by `value`.

    Args:
        value: [D], or [R, D].
        part: which components are replaced, bool [D] or [R, D]; None replaces all.
        scale: a number or [R].
        positions: the tokens to edit; None: those given for all edits.

    Raises:
        UsageError: another shape, or values that are not finite.
    """
    value = _numbers("value", value, _VECTORS)
    which = None if part is None else to_tensor(part)
    if part is not None and (which is None or which.dtype != torch.bool):
        raise UsageError(f"part is bool, True where a component is replaced; got {in_one_line(part)}")
    return Replace(value, which, scale=_scale(scale), positions=positions)


def add(direction: Any, scale: Any = 1.0, positions: Any = None) -> Add:
    """Add `scale` times a direction: a steering vector.

    The direction keeps its length: a unit vector and the standard deviation of the activations along it as scale steer
    by one standard deviation.

    Args:
        direction: [D] or [R, D].
        scale: a number or [R].
        positions: the tokens to edit; None: those given for all edits.

    Raises:
        UsageError: another shape, or values that are not finite.
    """
    return Add(_numbers("direction", direction, _VECTORS), scale=_scale(scale), positions=positions)


def project_out(directions: Any, mean: Any = None, scale: Any = 1.0, positions: Any = None) -> ProjectOut:
    """Remove what lies in the span of some directions.

    Args:
        directions: a direction [D], or several as columns [D, k], or [R, D, k]; they need not be orthonormal.
        mean: what is left of the activations there, [D] or [R, D]; None leaves 0.
        scale: a number or [R].
        positions: the tokens to edit; None: those given for all edits.

    Raises:
        UsageError: another shape, values that are not finite, or no direction other than 0.
    """
    basis = _orthonormal(_numbers("directions", directions, _SUBSPACES))
    mean = None if mean is None else _numbers("mean", mean, _VECTORS)
    return ProjectOut(basis, mean, scale=_scale(scale), positions=positions)


def affine(matrix: Any, bias: Any = None, scale: Any = 1.0, positions: Any = None) -> Affine:
    """Map the activations to P x + b.

    Args:
        matrix: P [D, D].
        bias: b [D]; None is 0.
        scale: a number or [R].
        positions: the tokens to edit; None: those given for all edits.

    Raises:
        UsageError: another shape, or values that are not finite.
    """
    matrix = _numbers("matrix", matrix, ("[D, D]",))
    bias = torch.zeros(len(matrix), dtype=matrix.dtype) if bias is None else _numbers("bias", bias, ("[D]",))
    return Affine(matrix, bias, scale=_scale(scale), positions=positions)


def swap(directions: Any, other: Any, scale: Any = 1.0, positions: Any = None) -> Swap:
    """Give the activations the coordinates of another run, in the span of some directions: an interchange.

    Args:
        directions: as in `project_out`.
        other: activations of the other run, [D] or [R, D]; only their coordinates are kept.
        scale: a number or [R].
        positions: the tokens to edit; None: those given for all edits.

    Raises:
        UsageError: another shape, values that are not finite, or no direction other than 0.
    """
    basis, other = _orthonormal(_numbers("directions", directions, _SUBSPACES)), _numbers("other", other, _VECTORS)
    if other.shape[-1] != basis.shape[-2]:
        raise UsageError(f"other has width {other.shape[-1]}, and the directions {basis.shape[-2]}; give one width")
    if basis.dim() == other.dim() + 1 == 3 and len(basis) != len(other):
        raise UsageError(f"other has {len(other)} rows, and the directions {len(basis)}; give one number of rows")
    equation = "...d,dk->...k" if basis.dim() == 2 else "...d,...dk->...k"
    coordinates = torch.einsum(equation, other.to(basis), basis)
    return Swap(basis, coordinates, scale=_scale(scale), positions=positions)


def through(function: Any, scale: Any = 1.0, positions: Any = None) -> Through:
    """Replace the activations by what a function makes of them, such as an autoencoder that is spliced in.

    Args:
        function: activations [T, D] -> [T, D], with a method `fingerprint` that gives a text which no other function
            has; an autoencoder from `load_sae` is one, a transcoder is not.
        scale: a number or [R].
        positions: the tokens to edit; None: those given for all edits.

    Raises:
        UsageError: something else.
    """
    if not callable(function) or not callable(getattr(function, "fingerprint", None)):
        raise UsageError(f"through takes an autoencoder from load_sae, got {kind_of(function)}")
    return Through(function, scale=_scale(scale), positions=positions)


def _numbers(name: str, given: Any, shapes: tuple[str, ...]) -> Tensor:
    """A tensor of finite floating-point numbers with as many axes as one of these shapes."""
    x = to_tensor(given)
    if x is None:
        raise UsageError(f"{name} is a tensor or an array of numbers; got {kind_of(given)}")
    if x.is_complex():
        raise UsageError(f"{name} holds real numbers; got {x.dtype}")
    if not x.numel() or x.dim() not in [shape.count(",") + 1 for shape in shapes]:
        raise UsageError(f"{name} has the shape {' or '.join(shapes)}; got {list(x.shape)}")
    x = x if x.is_floating_point() and x.element_size() > 1 else x.to(torch.float64)
    if not bool(x.detach().to(torch.float32).isfinite().all()):
        raise UsageError(f"{name} holds NaN, infinity or numbers beyond float32; give finite numbers")
    return x


def _scale(given: Any) -> float | Tensor:
    scale = None if isinstance(given, bool) else to_tensor(given)
    if scale is None or scale.dim() > 1 or not scale.numel() or scale.is_complex() or scale.dtype == torch.bool:
        raise UsageError(f"scale is a number or one for each row; got {in_one_line(given)}")
    if not bool(scale.detach().isfinite().all()):
        raise UsageError("scale holds NaN or infinity; give finite numbers")
    if scale.dim() == 0 and not scale.requires_grad:
        return float(scale)
    return scale if scale.is_floating_point() else scale.to(torch.float64)


def _orthonormal(directions: Tensor) -> Tensor:
    """An orthonormal basis of the span, float64 [D, k] or [R, D, k]; directions in the span of others are left out."""
    columns = directions.to(torch.float64)
    columns = columns[:, None] if columns.dim() == 1 else columns
    width, k = columns.shape[-2:]
    if k > width:
        raise UsageError(
            f"directions are the columns of [D, k], at most D of them; got {list(directions.shape)}: transpose it"
        )
    largest = columns.detach().abs().amax((-2, -1), keepdim=True)
    if not bool(largest.all()):
        raise UsageError("directions are all 0; give one that is not")
    columns = columns / largest  # so that no square underflows
    if k == 1:
        return columns / columns.norm(dim=-2, keepdim=True)
    left, values, _ = torch.linalg.svd(columns, full_matrices=False)
    # the rank as numpy.linalg.matrix_rank counts it, in the type in which the directions were computed
    ranks = (values > width * torch.finfo(directions.dtype).eps * values[..., :1]).sum(-1).flatten()
    if bool((ranks != ranks[0]).any()):
        raise UsageError("the directions of each row must span equally many dimensions; leave out dependent ones")
    return left[..., : int(ranks[0])]

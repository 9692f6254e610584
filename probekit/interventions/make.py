"""Make edits from directions, subspaces, values and maps; these functions check what they are given.

Every tensor may also be a NumPy array or a list. `scale` is how much of the edit is done: 0 nothing, 1 all of it; a
tensor [R] has one scale for each row.

Axes: D width of the point, R rows, k dimensions of a subspace.
"""

from typing import Any

import torch
from torch import Tensor

from probekit.errors import UsageError
from probekit.interventions.edits import Add, Affine, ProjectOut, Replace, Swap, edit_rows
from probekit.text import kind_of

RANK_TOLERANCE = 1e-10  # of the largest singular value: below, a direction lies in the span of the others
_WANTED = {1: "[D] or [R, D]", 2: "[D], [D, k] or [R, D, k]"}


def replace(value: Any, part: Any = None, scale: Any = 1.0) -> Replace:
    """Replace the activations by `value`.

    Args:
        value: [D], or [R, D].
        part: which components are replaced, bool [D] or [R, D]; None replaces all.
        scale: a number or [R].

    Raises:
        UsageError: another shape, or values that are not finite.
    """
    value = _numbers("value", value, (1, 2))
    if part is not None:
        part = torch.as_tensor(part)
        if part.dtype != torch.bool or part.dim() not in (1, 2) or part.shape[-1] != value.shape[-1]:
            raise UsageError(f"part is bool [D], with D {value.shape[-1]}; got {part.dtype} {list(part.shape)}")
    return _checked(Replace(value, part, scale=_scale(scale)))


def add(direction: Any, scale: Any = 1.0) -> Add:
    """Add `scale` times a direction, [D] or [R, D]: a steering vector.

    The direction keeps its length: a unit vector and the standard deviation of the activations along it as scale steer
    by one standard deviation.

    Raises:
        UsageError: another shape, or values that are not finite.
    """
    return _checked(Add(_numbers("direction", direction, (1, 2)), scale=_scale(scale)))


def project_out(directions: Any, mean: Any = None, scale: Any = 1.0) -> ProjectOut:
    """Remove what lies in the span of some directions.

    Args:
        directions: a direction [D], or several as columns [D, k], or [R, D, k]; they need not be orthonormal.
        mean: what is left of the activations there, [D] or [R, D]; None leaves 0.
        scale: a number or [R].

    Raises:
        UsageError: another shape, values that are not finite, or no direction other than 0.
    """
    basis = _orthonormal(_numbers("directions", directions, (1, 2, 3)))
    mean = None if mean is None else _numbers("mean", mean, (1, 2))
    return _checked(ProjectOut(basis, mean, scale=_scale(scale)))


def affine(matrix: Any, bias: Any = None, scale: Any = 1.0) -> Affine:
    """Map the activations to P x + b.

    Args:
        matrix: P [D, D].
        bias: b [D]; None is 0.
        scale: a number or [R].

    Raises:
        UsageError: another shape, or values that are not finite.
    """
    matrix = _numbers("matrix", matrix, (2,))
    bias = torch.zeros(len(matrix), dtype=matrix.dtype) if bias is None else _numbers("bias", bias, (1,))
    if tuple(matrix.shape) != (len(bias), len(bias)):
        raise UsageError(
            f"an affine map has a matrix [D, D] and a bias [D]; got {list(matrix.shape)}, {list(bias.shape)}"
        )
    return _checked(Affine(matrix, bias, scale=_scale(scale)))


def swap(directions: Any, other: Any, scale: Any = 1.0) -> Swap:
    """Give the activations the coordinates of another run, in the span of some directions: an interchange.

    Args:
        directions: as in `project_out`.
        other: activations of the other run, [D] or [R, D]; only their coordinates are kept.
        scale: a number or [R].

    Raises:
        UsageError: another shape, values that are not finite, or no direction other than 0.
    """
    basis, other = _orthonormal(_numbers("directions", directions, (1, 2, 3))), _numbers("other", other, (1, 2))
    if other.shape[-1] != basis.shape[-2]:
        raise UsageError(f"other has width {other.shape[-1]}, and the directions {basis.shape[-2]}; give one width")
    of_other = other.to(basis.dtype)
    if basis.dim() == 3:
        of_other = of_other.expand(len(basis), -1)
        return _checked(Swap(basis, torch.einsum("rd,rdk->rk", of_other, basis), scale=_scale(scale)))
    return _checked(Swap(basis, of_other @ basis, scale=_scale(scale)))


def _checked(edit: Any) -> Any:
    edit_rows(edit)  # raises for different numbers of rows
    return edit


def _numbers(name: str, given: Any, dims: tuple[int, ...]) -> Tensor:
    """A tensor of finite floating-point numbers with one of these numbers of axes."""
    try:
        x = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"{name} is a tensor or an array of numbers; got {kind_of(given)}") from error
    if x.is_complex():
        raise UsageError(f"{name} holds real numbers; got {x.dtype}")
    x = x if x.is_floating_point() else x.to(torch.float64)
    if x.dim() not in dims or not x.numel():
        shapes = " or ".join(
            {1: "[D]", 2: "[R, D]" if 1 in dims and 3 not in dims else "[D, k]", 3: "[R, D, k]"}[n] for n in dims
        )
        raise UsageError(f"{name} has the shape {shapes}; got {list(x.shape)}")
    if not bool(x.detach().isfinite().all()):
        raise UsageError(f"{name} holds NaN or infinity; give finite numbers")
    return x


def _scale(given: Any) -> float | Tensor:
    if isinstance(given, bool):
        raise UsageError(f"scale is a number or one for each row; got {given}")
    try:
        scale = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"scale is a number or one for each row; got {kind_of(given)}") from error
    if scale.dim() > 1 or scale.dtype == torch.bool or not bool(scale.detach().isfinite().all()):
        raise UsageError(f"scale is a finite number or one for each row; got {given!a:.60}")
    if scale.dim() == 0 and not scale.requires_grad:
        return float(given)
    return scale if scale.is_floating_point() else scale.to(torch.float64)


def _orthonormal(directions: Tensor) -> Tensor:
    """An orthonormal basis of the span, float64 [D, k] or [R, D, k]; directions in the span of others are left out."""
    columns = directions.to(torch.float64)
    columns = columns[:, None] if columns.dim() == 1 else columns
    if columns.shape[-1] > columns.shape[-2]:
        raise UsageError(
            f"directions are the columns of [D, k], at most D of them; got {list(directions.shape)}: transpose it"
        )
    if columns.shape[-1] == 1 and columns.any(-2).all():
        return columns / columns.norm(dim=-2, keepdim=True)
    left, values, _ = torch.linalg.svd(columns, full_matrices=False)
    ranks = (values > RANK_TOLERANCE * values[..., :1]).sum(-1)
    if not bool((values[..., 0] > 0).all()):
        raise UsageError("directions are all 0; give one that is not")
    if ranks.numel() > 1 and bool((ranks != ranks.flatten()[0]).any()):
        raise UsageError("the directions of each row must span equally many dimensions; leave out dependent ones")
    return left[..., : int(ranks.flatten()[0])]

"""Interchange: part of a text's activations is taken from its counterpart (Geiger et al. 2021, 2023).

The part is the coordinate along one direction, those in a subspace, or the whole vector. If the model uses the part,
its answer moves to the counterpart's.

Axes: N texts, V edited runs, L position, D width of the place, k dimensions of a subspace.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from probekit.causal.behaviour.measure import Behaviour, CustomBehaviour, headline
from probekit.causal.branches.run import Branches, Trunk, run_branches
from probekit.causal.curve.statistics import ROUNDING
from probekit.errors import DataError, UsageError
from probekit.interventions import Edit, Replace, Swap
from probekit.models.base import LanguageModel
from probekit.points import Place


@dataclass(frozen=True, eq=False)
class Interchange:
    """Texts, what they are asked, and which activations are swapped with which.

    Attributes:
        place: point and layer of the edit.
        trunk: the unedited run of the texts.
        behaviour: what they are asked.
        x_ND: activations at the place, at the token that is edited.
        token_N: index of that token among the text's ids, int64.
        counterpart_N: number of each text's counterpart, int64.
    """

    place: Place
    trunk: Trunk
    behaviour: Behaviour | CustomBehaviour
    x_ND: Tensor
    token_N: Tensor
    counterpart_N: Tensor

    def __post_init__(self) -> None:
        n = len(self.trunk.texts)
        sizes = [len(x) for x in (self.x_ND, self.token_N, self.counterpart_N)]
        if sizes != [n] * 3:
            raise UsageError(
                f"expected activations, tokens and counterparts of {n} texts, got {sizes}; give one for each text"
            )


def interchange_edit(source_VD: Tensor, basis_Dk: Tensor | None = None) -> Edit:
    """The edit that takes the coordinates in a subspace from other activations.

    Args:
        source_VD: the activations to take from: one row for each row of the edit, or [D].
        basis_Dk: orthonormal basis [D, k], or one for each row [V, D, k]; [D] is a direction of length 1. None takes
            the whole vector.
    """
    if basis_Dk is None:
        return Replace(source_VD)
    basis = basis_Dk[:, None] if basis_Dk.dim() == 1 else basis_Dk
    source = source_VD.to(basis)
    along = source @ basis if basis.dim() == 2 else torch.einsum("vd,vdk->vk", source, basis)
    return Swap(basis, along)


def run_interchange(
    model: LanguageModel, swap: Interchange, rows_V: Tensor, basis_Dk: Tensor | None, source_V: Tensor | None = None
) -> Tensor:
    """The behaviour of edited runs, [V]; differentiable in the basis.

    Args:
        model: the model of the trunk.
        swap: the texts.
        rows_V: the text of each run, int64.
        basis_Dk: as in `interchange_edit`.
        source_V: the text that activations are taken from, by default the counterpart.
    """
    source_V = swap.counterpart_N[rows_V] if source_V is None else source_V
    longest = max(map(len, swap.trunk.texts))
    at_VL = torch.arange(longest) == swap.token_N[rows_V][:, None]
    point, layer = swap.place
    edit = interchange_edit(swap.x_ND[source_V], basis_Dk)
    branches = Branches(layer or 0, rows_V, at_VL, {(point, layer): edit})
    learns = torch.is_grad_enabled() and basis_Dk is not None and basis_Dk.requires_grad
    with torch.set_grad_enabled(learns):  # otherwise the weights would ask for a graph
        return headline(model, swap.behaviour, run_branches(model, swap.trunk, branches), rows_V)


@torch.no_grad()
def unedited(model: LanguageModel, swap: Interchange, rows_V: Tensor) -> tuple[Tensor, Tensor]:
    """The behaviour of texts and that of their counterparts, both by the text's own answers, [V] each."""
    hidden_ND = swap.trunk.hidden_ND
    counterparts_V = swap.counterpart_N[rows_V]
    return (
        headline(model, swap.behaviour, hidden_ND[rows_V], rows_V),
        headline(model, swap.behaviour, hidden_ND[counterparts_V], rows_V),
    )


@torch.no_grad()
def interchange_effect(model: LanguageModel, swap: Interchange, rows_V: Tensor, basis_Dk: Tensor | None) -> float:
    """How far the edit moves the mean behaviour, as a share of the way to the counterparts'; not clipped.

    Args:
        model: the model of the trunk.
        swap: the texts.
        rows_V: the texts that are averaged, int64.
        basis_Dk: as in `interchange_edit`.

    Raises:
        DataError: texts and counterparts behave alike, so that there is no way to go.
    """
    own_V, counterpart_V = unedited(model, swap, rows_V)
    way = float((own_V - counterpart_V).double().mean())
    largest = float(torch.cat([own_V, counterpart_V]).abs().max())
    if not np.isfinite(way) or abs(way) <= ROUNDING * largest:
        raise DataError("texts and their counterparts behave alike, so that an interchange has no effect to measure")
    edited_V = run_interchange(model, swap, rows_V, basis_Dk)
    return float((own_V - edited_V).double().mean()) / way

"""Distributed alignment search in one dimension (Geiger et al. 2023, arXiv 2303.02536).

The direction is learned, by Adam, whose interchange brings each text's behaviour closest to its counterpart's. It is
the ceiling that a direction can reach, not evidence by itself: a learned direction may join a part that the model reads
with one that it does not (Makelov et al. 2023). So the effect is measured on rows that the search has not seen, several
restarts are compared, and a control search is done with sources that hold nothing of the counterpart's class.

The loss is the squared distance to the counterpart's behaviour, not the cross entropy of its answer, which rewards an
overshoot. On a linear model the squared distance finds the direction that the model reads, exactly; cross entropy finds
one between it and the direction along which texts and counterparts differ. (Measured on the planted model of the tests,
where these are 63 degrees apart: 0.4 degrees off after 100 steps, and 31 degrees off with an effect of 1.59.)

Axes: N texts, F fits, B texts of a batch, D width of the place.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from probekit.causal.directions.directions import Direction
from probekit.causal.interchange.interchange import Interchange, interchange_effect, run_interchange, unedited
from probekit.errors import DataError
from probekit.models.base import LanguageModel
from probekit.options.check import check_whole

RATE = 0.3  # the first steps turn the direction by about this angle in radians, whatever D
MEAN, SQUARE = 0.9, 0.999  # Adam's, as its authors set them
NEGLIGIBLE = 1e-6  # of the largest singular value of the differences: rounding of float32, not a difference
EVALUATED = 512  # runs at once where no gradient is needed


@dataclass(frozen=True)
class Search:
    """Settings of the search.

    Attributes:
        steps: of Adam; the rate falls to 0 as a cosine.
        batch: texts of a step.
        restarts: fits from random directions; the one with the smallest loss on validation is taken.
        seed: of starts and batches.
    """

    steps: int = 200
    batch: int = 32
    restarts: int = 3
    seed: int = 0


@dataclass(frozen=True, eq=False)
class LearnedDirection(Direction):
    """The direction that a search found.

    Attributes:
        loss: on validation, as a share of the loss without an edit: 0 is the counterparts' behaviour exactly.
        train_loss: on the rows of the search.
        recovery: effect of the interchange on validation (`interchange_effect`).
        control_recovery: the same for a search whose sources are other texts of the row's own class: what
            optimisation gets out of sources that hold nothing of the counterpart's.
        cosines: of the other restarts' directions to this one, absolute; far from 1 means that no one direction
            stands out.
    """

    loss: float
    train_loss: float
    recovery: float
    control_recovery: float
    cosines: list[float]


def find_das(
    model: LanguageModel,
    swap: Interchange,
    labels: np.ndarray,
    train: np.ndarray,
    validation: np.ndarray,
    search: Search | None = None,
) -> LearnedDirection:
    """Search for the direction whose interchange brings texts closest to their counterparts' behaviour.

    Args:
        model: of the trunk.
        swap: the texts of both splits, with counterparts of the same split.
        labels: class of each text, int64 [N]; for the control.
        train: numbers of the texts to fit.
        validation: numbers of the texts that choose the restart and measure it.
        search: settings.

    Raises:
        DataError: no texts in a split, or texts that behave as their counterparts do.
    """
    search = Search() if search is None else search
    for name in ("steps", "batch", "restarts"):
        check_whole(name, getattr(search, name))
    rows, held_out = (torch.from_numpy(np.asarray(x, dtype=np.int64)) for x in (train, validation))
    if not len(rows) or not len(held_out):
        raise DataError(f"the search needs texts to fit and to validate; got {len(rows)} and {len(held_out)}")
    rng = np.random.default_rng(search.seed)
    same_N = torch.from_numpy(_same_class(np.asarray(labels), [rows.numpy(), held_out.numpy()], rng))
    source_FN = torch.stack([*[swap.counterpart_N] * search.restarts, same_N])
    found_FD = _descend(model, swap, rows, source_FN, search, rng)
    losses = [_loss(model, swap, held_out, v, source_N) for v, source_N in zip(found_FD, source_FN, strict=True)]
    best = int(np.argmin(losses[:-1]))
    vector = found_FD[best]
    others = [i for i in range(search.restarts) if i != best]
    spread = swap.x_ND[rows].double().cpu() @ vector
    return LearnedDirection(
        "das",
        vector,
        float(spread.std(correction=0)),
        loss=losses[best],
        train_loss=_loss(model, swap, rows, vector, swap.counterpart_N),
        recovery=_effect(model, swap, held_out, vector, swap.counterpart_N),
        control_recovery=_effect(model, swap, held_out, found_FD[-1], same_N),
        cosines=[float((found_FD[i] @ vector).abs()) for i in others],
    )


def _same_class(labels: np.ndarray, splits: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """Another text of the same class and split for each text; the text itself where there is none."""
    same = np.arange(len(labels))
    for rows in splits:
        for label in np.unique(labels[rows]):
            own = rows[labels[rows] == label]
            if len(own) > 1:
                same[own] = own[(np.arange(len(own)) + rng.integers(1, len(own), len(own))) % len(own)]
    return same


def _descend(
    model: LanguageModel, swap: Interchange, rows: Tensor, source_FN: Tensor, search: Search, rng: np.random.Generator
) -> Tensor:
    """The direction of each fit, float64 [F, D]; all fits run side by side on the same batches."""
    F, size = len(source_FN), min(search.batch, len(rows))
    before_N, target_N = torch.zeros(2, len(swap.x_ND)).unbind()
    before_N[rows], target_N[rows] = (x.float().cpu() for x in unedited(model, swap, rows))
    scale = float((before_N - target_N)[rows].square().mean())
    if not scale > 0:
        raise DataError("all texts behave as their counterparts do, so that there is nothing to search for")
    basis_DR = _where_swaps_differ(swap, rows).to(swap.x_ND.device)
    starts = torch.from_numpy(rng.standard_normal((F, basis_DR.shape[1]))).to(basis_DR)
    w_FR, mean_FR, square_FR = _unit(starts), torch.zeros_like(starts), torch.zeros_like(starts)
    for step, batch_B in zip(range(1, search.steps + 1), _batches(swap, rows, size, rng), strict=False):
        w_FR.requires_grad_()
        basis_FD = _unit(w_FR) @ basis_DR.T
        edited = run_interchange(
            model,
            swap,
            batch_B.repeat(F),
            basis_FD.repeat_interleave(size, dim=0)[:, :, None],
            source_FN[:, batch_B].flatten(),
        )
        missing = edited.float().view(F, size) - target_N[batch_B].to(edited.device)
        # not backward(): it would also fill the gradients of the model's weights
        gradient_FR = torch.autograd.grad(missing.square().mean(dim=1).sum() / scale, w_FR)[0]
        # Adam (Kingma and Ba 2015) by hand: torch.optim imports torch's compiler, which takes 2 s of CPU
        mean_FR.lerp_(gradient_FR, 1 - MEAN)
        square_FR.lerp_(gradient_FR.square(), 1 - SQUARE)
        turn_FR = mean_FR / (1 - MEAN**step) / ((square_FR / (1 - SQUARE**step)).sqrt() + 1e-8)
        rate = RATE * (1 + math.cos(math.pi * (step - 1) / search.steps)) / 2
        # of length 1 again: Adam lengthens a vector whose length does not matter, and so slows its turning
        w_FR = _unit(w_FR.detach() - rate / basis_DR.shape[1] ** 0.5 * turn_FR)
    return _unit((w_FR @ basis_DR.T).double().cpu())


def _batches(swap: Interchange, rows: Tensor, size: int, rng: np.random.Generator) -> Iterator[Tensor]:
    """Batches of rows [B] without end; those of one batch are run together by the trunk wherever possible.

    A search on `agreement` takes 0.56 of the CPU time that batches drawn from all rows take, and finds the same.
    """
    group_N = np.zeros(len(swap.x_ND), dtype=np.int64)
    for number, group in enumerate(swap.trunk.groups):
        group_N[group.texts] = number
    while True:
        shuffled = rng.permutation(rows.numpy())
        ordered = shuffled[np.argsort(group_N[shuffled], kind="stable")]
        first = rng.integers(0, len(rows) % size + 1)  # what does not fill a batch is another part each time
        for begin in rng.permutation(np.arange(first, len(rows) - size + 1, size)):
            yield torch.from_numpy(ordered[begin : begin + size])


def _where_swaps_differ(swap: Interchange, rows: Tensor) -> Tensor:
    """An orthonormal basis [D, R] of the differences that a swap makes.

    The search turns in it. A direction's part outside of it swaps nothing, and only adds what no text has; starts drawn
    from all D dimensions have most of their length there if there are fewer rows than D, and lose it slowly.
    """
    differences_ND = (swap.x_ND[swap.counterpart_N[rows]] - swap.x_ND[rows]).double().cpu()
    _, values, Vt = torch.linalg.svd(differences_ND, full_matrices=False)
    if not float(values.max()) > 0:
        raise DataError("texts and counterparts have equal activations, so that no swap changes anything at this place")
    return Vt[values > NEGLIGIBLE * values.max()].T.float()


def _unit(x_FD: Tensor) -> Tensor:
    return x_FD / x_FD.norm(dim=1, keepdim=True)


@torch.no_grad()
def _loss(model: LanguageModel, swap: Interchange, rows: Tensor, vector: Tensor, source_N: Tensor) -> float:
    own, target = (x.double() for x in unedited(model, swap, rows))
    edited = _edited(model, swap, rows, vector, source_N)
    return float((edited - target).square().mean() / (own - target).square().mean())


@torch.no_grad()
def _edited(model: LanguageModel, swap: Interchange, rows: Tensor, vector: Tensor, source_N: Tensor) -> Tensor:
    parts = rows.split(EVALUATED)
    return torch.cat([run_interchange(model, swap, part, vector, source_N[part]).double() for part in parts])


def _effect(model: LanguageModel, swap: Interchange, rows: Tensor, vector: Tensor, source_N: Tensor) -> float:
    return interchange_effect(model, swap, rows, vector, source_N[rows])

"""Distributed alignment search in one dimension (Geiger et al. 2023, arXiv 2303.02536).

The direction is learned, by Adam, whose interchange brings each text's behaviour closest to its counterpart's. It is
the ceiling that a direction can reach, not evidence by itself: a learned direction may join a part that the model reads
with one that it does not (Makelov et al. 2023). So the effect is measured on rows that the search has not seen, several
restarts are compared, and a control task is searched, too: the same swaps, with an arbitrary token in place of each
answer (Arora et al. 2024, CausalGym, after Hewitt and Liang 2019). What a search attains there is what it can make of
any direction that holds the class, and not what the model does with it.

The loss is the squared distance to the counterpart's behaviour, not the cross entropy of its answer, which rewards an
overshoot. On a linear model the squared distance finds the direction that the model reads, exactly; cross entropy finds
one between it and the direction along which texts and counterparts differ. (Measured on the planted model of the tests,
where these are 63 degrees apart: 0.4 degrees off after 100 steps, and 31 degrees off with an effect of 1.59.)

Axes: N texts, F fits, B texts of a batch, D width of the place.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from probekit.causal.behaviour.measure import Behaviour
from probekit.causal.behaviour.unembedding import logits_of
from probekit.causal.directions.directions import Direction
from probekit.causal.interchange.interchange import Interchange, interchange_effect, run_interchange, unedited
from probekit.errors import DataError
from probekit.models.base import LanguageModel
from probekit.options.check import check_whole

RATE = 0.3  # the first steps turn the direction by about this angle in radians, whatever D
MEAN, SQUARE = 0.9, 0.999  # Adam's, as its authors set them
DRAWN = 64  # tokens among which the control task finds its answers
NEGLIGIBLE = 1e-6  # of the largest singular value of the differences: rounding of float32, not a difference


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
        control_recovery: the same for a search on the control task, in the same units: 1 is as far between arbitrary
            tokens as the counterpart's text is between the answers. None for a behaviour without answers.
        cosines: of the other restarts' directions to this one, absolute; far from 1 means that several
            directions do equally well.
    """

    loss: float
    train_loss: float
    recovery: float
    control_recovery: float | None
    cosines: list[float]


def find_das(
    model: LanguageModel, swap: Interchange, train: np.ndarray, validation: np.ndarray, search: Search | None = None
) -> LearnedDirection:
    """Search for the direction whose interchange brings texts closest to their counterparts' behaviour.

    Args:
        model: of the trunk.
        swap: the texts of both splits, with counterparts of the same split.
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
    own_N, target_N = (x.double().cpu() for x in unedited(model, swap, torch.arange(len(swap.x_ND))))
    found_FD = _descend(model, swap, rows, target_N, search, rng)
    losses = [_loss(model, swap, held_out, vector_D, own_N, target_N) for vector_D in found_FD]
    best = int(np.argmin(losses))
    vector_D = found_FD[best]
    control, way = _control(model, swap, rows, rng), float((own_N - target_N)[held_out].mean())
    spread = swap.x_ND[rows].double().cpu() @ vector_D
    return LearnedDirection(
        "das",
        vector_D,
        float(spread.std(correction=0)),
        loss=losses[best],
        train_loss=_loss(model, swap, rows, vector_D, own_N, target_N),
        recovery=interchange_effect(model, swap, held_out, vector_D),
        control_recovery=None if control is None else _reached(model, control, rows, held_out, target_N, search) / way,
        cosines=[float((other_D @ vector_D).abs()) for i, other_D in enumerate(found_FD) if i != best],
    )


def _control(model: LanguageModel, swap: Interchange, rows: Tensor, rng: np.random.Generator) -> Interchange | None:
    """The same texts and swaps with an arbitrary token for each answer; None if the behaviour has no answers.

    Of some random tokens, those whose logits differ most alike between the answers' texts: what the model itself says
    of the class by them would count as the search's.
    """
    asked = swap.behaviour
    if not isinstance(asked, Behaviour):
        return None
    answers, numbers = torch.stack([asked.own_N, asked.other_N]).cpu().unique(return_inverse=True)
    free = np.setdiff1d(np.arange(model.cfg.d_vocab), answers.numpy())
    if len(free) < len(answers):
        return None
    drawn = torch.from_numpy(rng.permutation(free)[:DRAWN])
    hidden_ND, class_N = swap.trunk.hidden_ND[rows], numbers[0][rows]
    means_AD = torch.stack([hidden_ND[(class_N == a).to(hidden_ND.device)].mean(dim=0) for a in class_N.unique()])
    with torch.no_grad():
        logits_AT = logits_of(model, means_AD).cpu()[:, drawn]
    logits_AT = logits_AT - logits_AT.mean(dim=0)
    alike = drawn[(logits_AT - logits_AT[:, :1]).norm(dim=0).argsort(stable=True)[: len(answers)]]
    own_N, other_N = alike[numbers].to(asked.own_N.device)
    return replace(swap, behaviour=Behaviour(own_N, other_N, asked.answer_N))


def _reached(
    model: LanguageModel, control: Interchange, rows: Tensor, held_out: Tensor, target_N: Tensor, search: Search
) -> float:
    """How far a search moves the control's mean behaviour towards the counterparts' one on the real task."""
    once = replace(search, restarts=1)
    vector_D = _descend(model, control, rows, target_N, once, np.random.default_rng(search.seed))[0]
    before, _ = unedited(model, control, held_out)
    return float((before - run_interchange(model, control, held_out, vector_D)).double().mean())


def _descend(
    model: LanguageModel, swap: Interchange, rows: Tensor, target_N: Tensor, search: Search, rng: np.random.Generator
) -> Tensor:
    """The direction of each restart, float64 [F, D]; all run side by side on the same batches."""
    F, size = search.restarts, min(search.batch, len(rows))
    before_N = unedited(model, swap, rows)[0].double().cpu()
    scale = float((before_N - target_N[rows]).square().mean())
    if not scale > 0:
        raise DataError("all texts behave as their counterparts do, so that there is nothing to search for")
    basis_DR = _where_swaps_differ(swap, rows).to(swap.x_ND.device)
    starts = torch.from_numpy(rng.standard_normal((F, basis_DR.shape[1]))).to(basis_DR)
    w_FR, mean_FR, square_FR = _unit(starts), torch.zeros_like(starts), torch.zeros_like(starts)
    for step, batch_B in zip(range(1, search.steps + 1), _batches(swap, rows, size, rng), strict=False):
        w_FR.requires_grad_()
        basis_FD = _unit(w_FR) @ basis_DR.T
        each_FD1 = basis_FD.repeat_interleave(size, dim=0)[:, :, None]
        edited = run_interchange(model, swap, batch_B.repeat(F), each_FD1)
        missing = edited.float().view(F, size) - target_N[batch_B].to(edited.device, torch.float32)
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
    """Batches of rows [B] without end; those of one batch are run together by the trunk wherever possible."""
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
def _loss(
    model: LanguageModel, swap: Interchange, rows: Tensor, vector_D: Tensor, own_N: Tensor, target_N: Tensor
) -> float:
    """The squared distance to the counterparts' behaviour, as a share of what it is without the edit."""
    edited = run_interchange(model, swap, rows, vector_D).double().cpu()
    return float((edited - target_N[rows]).square().mean() / (own_N - target_N)[rows].square().mean())

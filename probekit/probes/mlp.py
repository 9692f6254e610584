"""A multilayer perceptron with one hidden layer: the nonlinear reference for linear probes.

Adam with decoupled weight decay (Loshchilov and Hutter 2019, arXiv 1711.05101), stopped early on held-out rows.

Axes: N examples, D features, H hidden units, C classes.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear, relu

from probekit.errors import UsageError
from probekit.machine.threads import one_thread
from probekit.options.check import check_positive, check_whole
from probekit.probes.base import ClassifierProbe, WithProbabilities, standardise, unstandardise

TOLERANCE = 1e-4  # nats: a loss that changes by less has neither fallen nor risen; rounding changes it by some 1e-7

Layers = tuple[Tensor, Tensor, Tensor, Tensor]  # weights [H, D], biases [H], weights [C, H], biases [C]


class MLPProbe(WithProbabilities, ClassifierProbe):
    """Standardised features, one hidden layer of ReLUs, a softmax. Fitted on the CPU.

    A share of each class is held out. The fit ends when the held-out loss has not fallen for `patience` epochs, and
    keeps the best weights. If nothing is held out, the training loss takes its place. The same `random_state` on the
    same machine gives the same probe, bit for bit.

    Args:
        hidden: H.
        weight_decay: AdamW's, for the weights but not the biases.
        learning_rate: AdamW's.
        batch_size: rows in one step.
        max_epochs: epochs at most; a fit that this limit cuts short has `converged_` False.
        patience: epochs without a lower loss after which the fit ends.
        validation_fraction: share of each class to hold out, rounded down; 0 holds out nothing.
        random_state: seeds the initial weights, the held-out rows and the order of the rows.

    Attributes:
        hidden_coef_: float64 [H, D]; applies to raw features.
        hidden_intercept_: float64 [H].
        output_coef_: float64 [1, H] for two classes, [C, H] for more.
        output_intercept_: float64 [1] or [C].
        loss_: the lowest mean log loss of the fit, on the held-out rows if there are any; in nats.
        n_iter_: epochs.
    """

    fits_in_threads = True
    ARRAYS = ("hidden_coef_", "hidden_intercept_", "output_coef_", "output_intercept_")
    FACTS = ("loss_",)
    hidden_coef_: np.ndarray
    hidden_intercept_: np.ndarray
    output_coef_: np.ndarray
    output_intercept_: np.ndarray
    loss_: float | None = None

    def __init__(
        self,
        hidden: int = 64,
        weight_decay: float = 0.01,
        learning_rate: float = 1e-3,
        batch_size: int = 128,
        max_epochs: int = 500,
        patience: int = 10,
        validation_fraction: float = 0.1,
        random_state: Any = 0,
    ):
        self.hidden = hidden
        self.weight_decay = weight_decay
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.max_epochs = max_epochs
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.random_state = random_state

    def _fit(self, X: np.ndarray, labels: np.ndarray) -> None:
        from sklearn.utils import check_random_state  # see `probes.scikit_learn`

        self._check_parameters()
        generator = torch.Generator("cpu").manual_seed(int(check_random_state(self.random_state).randint(2**31)))
        Z, mean, scale = standardise(X)
        held_out = _held_out(torch.from_numpy(labels), self.validation_fraction, generator)
        with torch.inference_mode(mode=False), torch.enable_grad(), one_thread():
            layers = self._train(torch.from_numpy(Z).float(), torch.from_numpy(labels), held_out, generator)
        W, b, U, c = (layer.detach().double().numpy() for layer in layers)
        self.hidden_coef_, self.hidden_intercept_ = unstandardise(W, b, mean, scale)
        two = len(self.classes_) == 2
        self.output_coef_, self.output_intercept_ = (U[1:] - U[:1], c[1:] - c[:1]) if two else (U, c)

    def _check_parameters(self) -> None:
        for name in ("hidden", "batch_size", "max_epochs", "patience"):
            check_whole(name, getattr(self, name))
        check_positive("learning_rate", self.learning_rate)
        if self.weight_decay != 0:
            check_positive("weight_decay", self.weight_decay)
        if not 0 <= self.validation_fraction < 1:
            raise UsageError(f"validation_fraction must be 0 or more and less than 1; got {self.validation_fraction!a}")

    def _train(self, Z: Tensor, labels: Tensor, held_out: Tensor, generator: torch.Generator) -> Layers:
        """The layers with the lowest loss on `held_out` [N], a mask; sets `loss_`, `n_iter_` and `converged_`."""
        fitted = (~held_out).nonzero()[:, 0]
        validation = held_out if held_out.any() else ~held_out
        Z_validation, labels_validation = Z[validation], labels[validation]
        layers = _initial(Z.shape[1], self.hidden, len(self.classes_), generator)
        W, b, U, c = layers
        groups = [{"params": [W, U], "weight_decay": self.weight_decay}, {"params": [b, c], "weight_decay": 0.0}]
        optimiser = torch.optim.AdamW(groups, lr=self.learning_rate)
        best, first = _copied(layers), self._loss(layers, Z_validation, labels_validation)
        self.loss_ = loss = first
        waited = self.n_iter_ = 0
        while waited < self.patience and self.n_iter_ < self.max_epochs:
            order = fitted[torch.randperm(len(fitted), generator=generator, device="cpu")]
            for rows in order.split(self.batch_size):
                optimiser.zero_grad()
                cross_entropy(_logits(layers, Z[rows]), labels[rows]).backward()
                optimiser.step()
            loss = self._loss(layers, Z_validation, labels_validation)
            self.n_iter_ += 1
            waited = 0 if loss < self.loss_ - TOLERANCE else waited + 1
            if loss < self.loss_:
                best, self.loss_ = _copied(layers), loss
        only_rose = self.loss_ >= first and not loss <= first + TOLERANCE  # or is NaN
        self.converged_ = waited == self.patience and not only_rose
        return best

    @staticmethod
    @torch.no_grad()
    def _loss(layers: Layers, Z: Tensor, labels: Tensor) -> float:
        return float(cross_entropy(_logits(layers, Z), labels))

    def _decide(self, X: np.ndarray) -> np.ndarray:
        hidden = np.maximum(X @ self.hidden_coef_.T + self.hidden_intercept_, 0)
        return hidden @ self.output_coef_.T + self.output_intercept_

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        K, (H, D) = self._n_outputs, self.hidden_coef_.shape
        return dict(zip(self.ARRAYS, [(H, D), (H,), (K, H), (K,)], strict=True))


def _copied(layers: Layers) -> Layers:
    W, b, U, c = (layer.detach().clone() for layer in layers)
    return W, b, U, c


def _held_out(labels: Tensor, fraction: float, generator: torch.Generator) -> Tensor:
    """A mask [N] of a random `fraction` of each class, rounded down."""
    mask = torch.zeros(len(labels), dtype=torch.bool, device="cpu")
    for label in labels.unique():
        rows = (labels == label).nonzero()[:, 0]
        order = torch.randperm(len(rows), generator=generator, device="cpu")
        mask[rows[order[: int(fraction * len(rows))]]] = True
    return mask


def _initial(D: int, H: int, C: int, generator: torch.Generator) -> Layers:
    """Weights uniform within 1/sqrt(inputs), as in `torch.nn.Linear`, but drawn from `generator`."""

    def uniform(*shape: int, inputs: int) -> Tensor:
        drawn = torch.rand(shape, generator=generator, dtype=torch.float32, device="cpu")
        return ((2 * drawn - 1) / inputs**0.5).requires_grad_()

    return uniform(H, D, inputs=D), uniform(H, inputs=D), uniform(C, H, inputs=H), uniform(C, inputs=H)


def _logits(layers: Layers, Z: Tensor) -> Tensor:
    W, b, U, c = layers
    return linear(relu(linear(Z, W, b)), U, c)

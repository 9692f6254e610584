"""Mixtures of experts that families share: their MLPs, and how a router chooses a few of them for each token.

Axes: B batch, L position, D d_model, E experts, N tokens of all texts, C groups of experts, S experts of a group.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from probekit.hooks import HookPoint
from probekit.models.layers import Linear, linear

LEAST = 1e-20  # added to the sum that weights are divided by, in DeepSeek's code


class Expert(nn.Module):
    """A gated MLP without points: an expert, which computes some tokens only, or a shared expert."""

    def __init__(self, d_model: int, d_mlp: int, activation: str):
        super().__init__()
        self.activation = activation
        self.gate = Linear(d_model, d_mlp, bias=False)
        self.up = Linear(d_model, d_mlp, bias=False)
        self.down = Linear(d_mlp, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.gate.activated(x, self.activation) * self.up(x))


class Mixture(nn.Module):
    """A layer with a router, which chooses a few experts for each token (Shazeer et al. 2017).

    A subclass says by `weights` which experts, and what multiplies the output of each. Router and sum are in float32,
    whatever the type of the weights: logits rounded to bfloat16 are often equal. `hook_expert_weights` is what
    multiplies each expert's output, 0 for those not chosen. The experts compute what this point says: a hook that sets
    a weight to 0 leaves the expert out, and one that sets others calls other experts.
    """

    def add_experts(self, router: Linear, experts: Iterable[nn.Module]) -> None:
        """The parts and points of a mixture."""
        self.router = router
        self.experts = nn.ModuleList(experts)
        self.hook_router_logits = HookPoint("B L E")
        self.hook_expert_weights = HookPoint("B L E")

    def routed(self, x_BLD: Tensor) -> Tensor:
        """What multiplies each expert's output for tokens that the router sees so, [B, L, E]."""
        wide = torch.promote_types(x_BLD.dtype, torch.float32)
        weight, bias = self.router.weight.to(wide), None if self.router.bias is None else self.router.bias.to(wide)
        return self.hook_expert_weights(self.weights(self.hook_router_logits(linear(x_BLD.to(wide), weight, bias))))

    def weights(self, logits_BLE: Tensor) -> Tensor:
        """What multiplies each expert's output, 0 for those not chosen, [B, L, E]."""
        raise NotImplementedError

    def ranking(self, logits: Tensor) -> Tensor:
        """The numbers [..., E] whose largest decide which experts are chosen; -inf for those that cannot be."""
        return logits

    def group_margin(self, logits: Tensor) -> Tensor:
        """How far the last group to be chosen is before the next, [...]; inf where no groups are chosen."""
        return torch.full_like(logits[..., 0], torch.inf)

    def mixed(self, x_BLD: Tensor, weights_BLE: Tensor) -> Tensor:
        """The sum over experts of weight times output, [B, L, D]; each expert computes its own tokens at once."""
        x_ND, weights_NE = x_BLD.flatten(0, 1), weights_BLE.flatten(0, 1)
        mixed_ND = torch.zeros_like(x_ND, dtype=weights_NE.dtype)
        of_expert, tokens = weights_NE.T.nonzero(as_tuple=True)  # expert by expert
        counts = of_expert.bincount(minlength=len(self.experts)).tolist()
        for i, (expert, mine) in enumerate(zip(self.experts, tokens.split(counts), strict=True)):
            if len(mine):
                mixed_ND.index_add_(0, mine, weights_NE[mine, i, None] * expert(x_ND[mine]))
        return mixed_ND.to(x_ND.dtype).view_as(x_BLD)


class SparseMLP(Mixture):
    """The weighted sum of the few experts that the router chooses for each token."""

    def __init__(self, router: Linear, experts: Iterable[nn.Module]):
        super().__init__()
        self.add_experts(router, experts)

    def forward(self, x_BLD: Tensor) -> Tensor:
        return self.mixed(x_BLD, self.routed(x_BLD))


def experts_of(cfg: Any) -> tuple[Linear, list[Expert]]:
    """A router without a bias, and the experts of a config."""
    experts = [Expert(cfg.d_model, cfg.d_mlp, cfg.activation) for _ in range(cfg.n_experts)]
    return Linear(cfg.d_model, cfg.n_experts, bias=False), experts


class SparseAndShared(SparseMLP):
    """The chosen experts' weighted sum, and an expert that computes every token (Dai et al. 2024, "DeepSeekMoE")."""

    def __init__(self, cfg: Any):
        super().__init__(*experts_of(cfg))
        self.shared = Expert(cfg.d_model, cfg.d_shared_mlp, cfg.activation)

    def forward(self, x_BLD: Tensor) -> Tensor:
        return super().forward(x_BLD) + self.shared(x_BLD)


class GroupedSparse(SparseAndShared):
    """Experts are chosen in the best groups of neighbours alone; a subclass says what decides."""

    def __init__(self, cfg: Any):
        super().__init__(cfg)
        self.n_active, self.factor = cfg.n_active_experts, cfg.routed_factor
        self.n_groups, self.n_active_groups = cfg.n_groups, cfg.n_active_groups

    def deciding(self, logits: Tensor) -> Tensor:
        """The scores [..., E] that decide."""
        raise NotImplementedError

    def of_groups(self, scores_CS: Tensor) -> Tensor:
        """A group's score, [..., C]."""
        raise NotImplementedError

    def chosen(self, logits: Tensor) -> Tensor:
        """The experts of each token, [..., n_active]."""
        return self.ranking(logits).topk(self.n_active, -1, sorted=False).indices

    def ranking(self, logits: Tensor) -> Tensor:
        scores_CS = self.deciding(logits).unflatten(-1, (self.n_groups, -1))
        groups_C = self.of_groups(scores_CS)
        best = groups_C.topk(self.n_active_groups, -1, sorted=False).indices
        allowed_C = torch.zeros_like(groups_C, dtype=torch.bool).scatter(-1, best, True)
        return scores_CS.masked_fill(~allowed_C[..., None], -torch.inf).flatten(-2)

    def group_margin(self, logits: Tensor) -> Tensor:
        groups_C = self.of_groups(self.deciding(logits).unflatten(-1, (self.n_groups, -1)))
        if self.n_active_groups == self.n_groups:
            return super().group_margin(logits)
        last, following = groups_C.topk(self.n_active_groups + 1, -1).values[..., -2:].unbind(-1)
        return last - following


class SigmoidSparse(GroupedSparse):
    """Scores are sigmoids, and a correction of each expert's decides who is chosen (DeepSeek-AI 2024, "V3", 2.1.2).

    The best groups of experts by the sum of their two best corrected scores, and in these the best experts; what
    multiplies their outputs are the scores without correction, divided by their sum if the config says so, times a
    factor. The correction, which the training moves against overload and no gradient reaches, is float32 under a model
    in bfloat16 too.
    """

    def __init__(self, cfg: Any):
        super().__init__(cfg)
        self.norm_top_k = cfg.norm_top_k
        self.correction_bias: Tensor
        self.register_buffer("correction_bias", torch.zeros(cfg.n_experts))

    def weights(self, logits_BLE: Tensor) -> Tensor:
        scores_BLE, chosen = logits_BLE.sigmoid(), self.chosen(logits_BLE)
        largest = scores_BLE.gather(-1, chosen)
        if self.norm_top_k:
            largest = largest / (largest.sum(-1, keepdim=True) + LEAST)
        return torch.zeros_like(scores_BLE).scatter(-1, chosen, largest * self.factor)

    def deciding(self, logits: Tensor) -> Tensor:
        return logits.sigmoid() + self.correction_bias.to(logits.device)

    def of_groups(self, scores_CS: Tensor) -> Tensor:
        return scores_CS.topk(2, -1).values.sum(-1)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> "SigmoidSparse":
        kept = self.correction_bias
        super()._apply(fn, recurse)
        if self.correction_bias.dtype.itemsize < kept.dtype.itemsize:
            self.correction_bias = kept.to(self.correction_bias.device)
        return self

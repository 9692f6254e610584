"""What a self-test compares, and the errors it finds.

In mixtures of experts rounding decides, for some tokens, between experts that are about as likely: near ties. Two right
runs of a text may choose other experts for such a token. From there on its activations differ, and in later layers
those of the tokens that attend to it, so the text is compared up to this token only. A run that chooses by its own
logits chooses otherwise than another only where some logits differ by at least half their distance. So the logits,
which are compared with their own bound, say whether rounding explains a choice; one that they do not explain is
compared, and fails. Where a router corrects its scores, or chooses groups first, what it ranks takes the place of the
logits; it is computed from the logits of either run, and is -inf outside of the groups.

Axes: L tokens of one text, E experts.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from probekit.models.base import LanguageModel
from probekit.models.family import LOGITS
from probekit.points import Place, base_name
from probekit.verification.references import MASKED

TextActivations = Mapping[str, Tensor]  # full name of a point -> one text's activations there
ROUTED = ("router_logits", "expert_weights")
ROUNDING = 1e-6  # of a softmax in float32, in units of its logits


@dataclass(frozen=True)
class LeftOut:
    """What a check could not compare.

    Attributes:
        tokens: how many tokens of the texts.
        layer: the first layer where an expert was chosen by rounding.
    """

    tokens: int
    layer: int


def chosen_by_rounding(
    logits_LE: Tensor,
    weights_LE: Tensor,
    wanted_logits_LE: Tensor,
    wanted_weights_LE: Tensor,
    n_active: int,
    margin_L: Tensor | None = None,
) -> Tensor:
    """The tokens whose experts two runs choose otherwise because their router's logits differ slightly, bool [L].

    Of the experts that one run alone chooses, each must be as near to the choice as the logits' differences allow; or
    groups of them must be, whose margin in the wanted run is given. The logits may be what the router ranks instead
    (`SparseMLP.ranking`).
    """
    logits_LE, wanted_LE = logits_LE.cpu().double(), wanted_logits_LE.cpu().double()
    chosen_LE = wanted_weights_LE.cpu() > 0
    differs_LE = (weights_LE.cpu() > 0) != chosen_LE
    if n_active == wanted_LE.shape[-1]:
        return torch.zeros_like(differs_LE[:, 0])
    apart_LE = torch.where(logits_LE == wanted_LE, 0, (logits_LE - wanted_LE).abs())  # infinite in another group
    slack_L1 = 2 * apart_LE.amax(-1, keepdim=True) + ROUNDING
    last_L1, next_L1 = wanted_LE.topk(n_active + 1).values[:, -2:].split(1, -1)
    near_LE = torch.where(chosen_LE, wanted_LE - next_L1 <= slack_L1, last_L1 - wanted_LE <= slack_L1)
    near_L = (near_LE | ~differs_LE).all(-1)
    if margin_L is not None:
        near_L |= margin_L <= 2 * slack_L1[:, 0]  # a group's score may be the sum of two
    return differs_LE.any(-1) & near_L


class Errors:
    """For every check and point, the largest difference and the largest reference value over all texts.

    Attributes:
        largest_score: of attention in any layer, for models that have no point for scores.
    """

    def __init__(self) -> None:
        self.largest_score = 0.0
        self._difference: dict[tuple[str, str], float] = defaultdict(float)
        self._size: dict[tuple[str, str], float] = defaultdict(float)
        self._skipped: set[tuple[str, str]] = set()

    def add(self, check: str, name: str, got: Tensor, wanted: Tensor) -> None:
        """Add one text's values; equal infinities (masked scores) count as equal, NaN as infinitely different."""
        dtype = torch.promote_types(got.dtype, wanted.dtype)
        got, wanted = got.to(wanted.device, dtype), wanted.to(dtype)
        difference = torch.where(got == wanted, 0, (got - wanted).abs()).nan_to_num(nan=torch.inf).max().item()
        size = wanted.abs().masked_fill(~wanted.isfinite(), 0).max().item()
        self._difference[check, name] = max(self._difference[check, name], difference)
        self._size[check, name] = max(self._size[check, name], size)

    def fail(self, check: str, name: str) -> None:
        """Record a check that could not be computed."""
        self._difference[check, name] = torch.inf

    def skip(self, check: str, name: str) -> None:
        """Record that a check compared no token of some text at a point."""
        self._skipped.add((check, name))

    def is_unchecked(self, check: str, name: str) -> bool:
        """Whether a check compared no token of any text at a point that it reaches."""
        return (check, name) in self._skipped and (check, name) not in self._difference

    def has(self, name: str) -> bool:
        """Whether a point was compared with its reference."""
        return ("reference", name) in self._size

    def size(self, name: str) -> float:
        """The largest reference value of a point."""
        return self._size["reference", name]

    def relative(self, check: str, name: str) -> float | None:
        """The relative error; None if the check does not cover the point."""
        if (check, name) not in self._difference:
            return None
        difference, size = self._difference[check, name], self._size[check, name]
        return difference and (difference / size if size else torch.inf)


class ComparedRuns:
    """Runs of one kind compared with others, each text in the order of the forward.

    A model without experts has no near ties. All that have experts are causal.

    Args:
        check: one of `CHECKS`.
        model: the one under test.
        errors: takes the figures.
    """

    def __init__(self, check: str, model: LanguageModel, errors: Errors) -> None:
        self.check, self.errors = check, errors
        self._model = model
        self._n_active: int = getattr(model.cfg, "n_active_experts", 0)
        self._order = {name: i for i, name in enumerate([*model.points, LOGITS])}
        self._logits: dict[int, Tensor] = {}  # text -> the router's logits in the layer that runs
        self._first: dict[int, dict[str, int]] = {}  # text -> its points expert_weights -> first token by rounding

    def add(self, text: int, name: str, got: Tensor, wanted: TextActivations, last: bool = False) -> None:
        """Compare one text at one point, up to the token from which rounding chose other experts.

        Args:
            text: which.
            name: full name of the point.
            got: [L, D], or [H, L, M] for scores and patterns; [D] with `last`.
            wanted: the other run's activations of all tokens, by point.
            last: whether `got` is of the last token alone.
        """
        length, point = wanted[name].shape[-2], name if name == LOGITS else Place.of(name)[0]
        first, got = (length - 1, got.reshape(1, -1)) if last else (0, got)
        if point == ROUTED[0]:
            self._logits[text] = got
        elif point == ROUTED[1]:
            logits, weights = (wanted[other][first:] for other in (name.replace(ROUTED[1], ROUTED[0]), name))
            router: Any = self._model.get_submodule(name.rpartition(".")[0])
            mine, theirs = self._logits.pop(text).cpu().double(), logits.cpu().double()
            ranked, margin = (router.ranking(mine), router.ranking(theirs)), router.group_margin(theirs)
            found = chosen_by_rounding(ranked[0], got, ranked[1], weights, self._n_active, margin).nonzero()
            if len(found):
                tokens = self._first.setdefault(text, {})
                tokens[name] = min(first + int(found[0]), tokens.get(name, length))
        n = self.comparable(text, name, length) - first
        if n > 0:
            got, other = got.narrow(-2, 0, n), wanted[name].narrow(-2, first, n)
            if base_name(point) == "attn_scores" and not self._model.is_ours:
                got, other = _without_masked(got, other)
            self.errors.add(self.check, name, got, other)
        else:
            self.errors.skip(self.check, name)

    def comparable(self, text: int, name: str, length: int) -> int:
        """How many of a text's first tokens can be compared at a point."""
        at = self._order[name]
        tokens = [token for router, token in self._first.get(text, {}).items() if self._order[router] <= at]
        return min(tokens, default=length)

    def include(self, other: "ComparedRuns") -> None:
        """Add the near ties that runs of another kind found."""
        for text, tokens in other._first.items():
            mine = self._first.setdefault(text, {})
            mine |= {name: min(token, mine.get(name, token)) for name, token in tokens.items()}

    def first_layer(self) -> int | None:
        """The first layer where rounding chose an expert; None if it chose none."""
        layers = [Place.of(name)[1] for tokens in self._first.values() for name in tokens]
        return min((layer for layer in layers if layer is not None), default=None)


def _without_masked(got: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Scores with -inf at the pairs that both runs mask, for which a module may have another large number."""
    masked = (got.to(wanted.device) < -MASKED) & (wanted < -MASKED)
    return got.to(wanted.device).masked_fill(masked, -torch.inf), wanted.masked_fill(masked, -torch.inf)

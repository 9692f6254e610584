"""Activation patching: which activations of a clean text, put into the run of a corrupted one, bring its answer back.

A cell is a layer and a position, or a layer and an attention head (at all positions). Its effect is the change of the
logit difference when the corrupted run takes the clean run's activation there (Meng et al. 2022; Zhang and Nanda 2023).
Attribution patching approximates all cells by one backward pass, (clean - corrupted) · gradient (Nanda 2023; Syed et
al. 2023). A placebo takes the activation from the corrupted text of another pair. A grid has
recovery, its interval, and the band of the placebos.

Axes: N pairs, T tokens, D width of the point, H heads, K d_head, L layers, C columns, V branches,
S placebos or resamples, U groups.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probekit.causal.behaviour.measure import logit_differences
from probekit.causal.behaviour.pairs import MinimalPairs
from probekit.causal.branches.run import Branches, Trunk, no_weight_gradients, run_branches, run_trunk
from probekit.causal.data import PatchGrid
from probekit.errors import DataError, UsageError
from probekit.hooks import HookPoint
from probekit.interventions import Edit, Replace
from probekit.models.base import LanguageModel

RESAMPLES = 1000


@dataclass(frozen=True, eq=False)
class PatchEffects:
    """Changes of the logit difference by a patch, in float64; NaN where a pair has no such cell, or was not patched.

    Attributes:
        exact_NLC: by the run with the patch.
        attribution_NLC: by the gradient.
        placebo_SNLC: of placebos.
        difference_N2: logit differences of the clean and of the corrupted run.
    """

    exact_NLC: np.ndarray
    attribution_NLC: np.ndarray
    placebo_SNLC: np.ndarray
    difference_N2: np.ndarray

    @classmethod
    def empty(cls, n: int, n_layers: int, n_columns: int, placebos: int) -> "PatchEffects":
        """All unknown."""
        shape = n, n_layers, n_columns
        return cls(
            np.full(shape, np.nan), np.full(shape, np.nan), np.full((placebos, *shape), np.nan), np.full((n, 2), np.nan)
        )


def grid_of(
    model: LanguageModel,
    pairs: MinimalPairs,
    point: str,
    layers: list[int],
    effects: PatchEffects,
) -> PatchGrid:
    """The grid: ratios of means over pairs.

    Raises:
        DataError: the clean and the corrupted runs have the same mean logit difference.
    """
    gap_N = effects.difference_N2[:, 0] - effects.difference_N2[:, 1]
    if not abs(gap_N.sum()) > 0:
        raise DataError(
            "the clean and the corrupted runs have the same mean logit difference, so there is nothing to recover; "
            "check the answers of the pairs"
        )
    patched_N = np.any(~np.isnan(effects.exact_NLC), axis=(1, 2))
    attribution = recovery(effects.attribution_NLC, gap_N)
    of_pairs = effects.exact_NLC if patched_N.all() else effects.attribution_NLC
    found = recovery(of_pairs, gap_N)
    placebos = np.array([recovery(each, gap_N) for each in effects.placebo_SNLC])
    placebos = placebos[~np.isnan(placebos).all((1, 2))] if len(placebos) else placebos
    by_position = point != "z"
    return PatchGrid(
        point=point,
        layers=layers,
        columns=_columns(model, pairs) if by_position else [str(head) for head in range(found.shape[1])],
        by="position" if by_position else "head",
        recovery=found,
        interval=intervals(of_pairs, gap_N, np.arange(len(gap_N)) if pairs.groups is None else pairs.groups),
        attribution=attribution,
        within_placebo=_within(found, placebos) if len(placebos) else None,
        logit_differences=(float(effects.difference_N2[:, 0].mean()), float(effects.difference_N2[:, 1].mean())),
        n=len(gap_N),
        n_exact=int(patched_N.sum()),
        correlation=_correlation(effects, gap_N, patched_N),
    )


def _within(found_LC: np.ndarray, placebos_SLC: np.ndarray) -> np.ndarray:
    """Whether each recovery is no larger than a placebo's; true where no pair has a placebo."""
    return ~(np.abs(found_LC) > np.nan_to_num(np.abs(placebos_SLC).max(0), nan=np.inf))


def recovery(effects_NLC: np.ndarray, gap_N: np.ndarray) -> np.ndarray:
    """Mean effect over the mean gap between clean and corrupted, of the pairs that have the cell: [L, C]."""
    has_NLC = ~np.isnan(effects_NLC)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.nan_to_num(effects_NLC).sum(0) / np.einsum("nlc,n->lc", has_NLC, gap_N)


def intervals(effects_NLC: np.ndarray, gap_N: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """95% interval of `recovery`, [L, C, 2]: bootstrap percentiles over groups, the same resamples in all cells."""
    group_N = np.unique(groups, return_inverse=True)[1]
    n_groups = int(group_N.max()) + 1
    effect_UX, gap_UX = (np.zeros((n_groups, effects_NLC[0].size)) for _ in range(2))
    np.add.at(effect_UX, group_N, np.nan_to_num(effects_NLC).reshape(len(group_N), -1))
    np.add.at(gap_UX, group_N, (~np.isnan(effects_NLC) * gap_N[:, None, None]).reshape(len(group_N), -1))
    draws = np.random.default_rng(0).multinomial(n_groups, np.full(n_groups, 1 / n_groups), RESAMPLES).astype(float)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios_SX = (draws @ effect_UX) / (draws @ gap_UX)
    low, high = np.nanpercentile(np.where(np.isfinite(ratios_SX), ratios_SX, np.nan), [2.5, 97.5], axis=0)
    return np.stack([low, high], -1).reshape(*effects_NLC.shape[1:], 2)


def _correlation(effects: PatchEffects, gap_N: np.ndarray, patched_N: np.ndarray) -> float | None:
    """Pearson's, over cells, of the two ways on the pairs that were patched; None if one of them does not vary."""
    if not patched_N.any():
        return None
    exact, approximate = (
        recovery(x[patched_N], gap_N[patched_N]).ravel() for x in (effects.exact_NLC, effects.attribution_NLC)
    )
    both = np.isfinite(exact) & np.isfinite(approximate)
    exact, approximate = exact[both], approximate[both]
    varies = len(exact) > 1 and exact.std() > 0 and approximate.std() > 0
    return float(np.corrcoef(exact, approximate)[0, 1]) if varies else None


def _columns(model: LanguageModel, pairs: MinimalPairs) -> list[str]:
    """The tokens of the first pair, "clean/corrupted" where they differ; places from the end where lengths differ.

    Where only the answer tokens align, these.
    """
    longest = max(map(len, pairs.corrupted))
    if pairs.align == "last":
        return ["answer token"]
    if len(set(map(len, pairs.corrupted))) > 1:
        return [str(i) for i in range(-longest, 0)]
    if model.tokenizer is None:
        return [str(i) for i in range(longest)]
    clean, corrupted = (model.tokenizer.tokens(texts[0]) for texts in (pairs.clean, pairs.corrupted))
    return [x if x == y else f"{x}/{y.strip()}" for x, y in zip(clean, corrupted, strict=True)]


POINTS = ("resid_pre", "attn_out", "mlp_out", "z")
KEPT_BYTES = 1 << 28  # of activations and gradients at the patched point, all layers
GRAPH_BYTES = 1 << 30  # of what a backward pass needs: about 20 D numbers for a token and block


def patchable(model: LanguageModel) -> tuple[str, ...]:
    """The points of POINTS that the model has; blocks that are attention alone have no mlp_out."""
    return tuple(point for point in POINTS if model.layers_of(point))


def patch_grid(
    model: LanguageModel,
    pairs: MinimalPairs,
    point: str = "resid_pre",
    layers: Sequence[int] | None = None,
    exact: int | None = None,
    placebos: int = 5,
    on_layer: Callable[[int, int], None] | None = None,
) -> PatchGrid:
    """Patch every layer and position (resid_pre, attn_out, mlp_out), or every layer and head (z).

    Where the pairs' texts differ in length, positions count back from the last token. With `align="last"` of the pairs
    the answer token alone is patched, which is then the only position.

    Args:
        model: a model with a head; not an encoder-decoder.
        pairs: clean and corrupted texts, with the answers of the clean ones.
        point: what is patched.
        layers: which; None for all.
        exact: how many pairs to patch cell by cell; None for all. If fewer than there are, recovery is that of
            attribution patching, and these pairs give its correlation with the exact one.
        placebos: how often each pair is patched from the corrupted text of another pair of its length; one with the
            same answers where there is one.
        on_layer: called with (done, total) after each layer of each batch of pairs.

    Raises:
        UsageError: a point or layers that cannot be patched.
        DataError: a pair's texts are the same, or clean and corrupted runs have the same logit difference.
    """
    chosen = _layers(model, point, layers)
    _check(pairs)
    order = np.random.default_rng(0).permutation(len(pairs))
    n_exact = len(pairs) if exact is None else min(max(exact, 0), len(pairs))
    chunks = list(_chunks(model, pairs, len(chosen), order))
    samples = [np.isin(chunk, order[:n_exact]) for chunk in chunks]
    n_columns = max(map(len, pairs.corrupted)) if pairs.align == "tokens" else 1
    n_columns = model.cfg.n_heads if point == "z" else n_columns
    effects = PatchEffects.empty(len(pairs), len(chosen), n_columns, placebos)
    done, total = 0, len(chosen) * sum(bool(sample.any()) for sample in samples)
    for chunk, sample in zip(chunks, samples, strict=True):
        runs = _unpatched(model, pairs, point, chosen, chunk)
        sources = _sources(model, pairs, runs, placebos)
        _attribute(effects, pairs, point, runs, sources, with_placebos=n_exact < len(pairs))
        for i, layer in enumerate(chosen) if sample.any() else ():
            for source in sources if n_exact == len(pairs) else sources[:1]:
                change_NC = _exact_effects(model, (point, layer), runs, source, source.values[i], sample)
                change_NC = _columns_of(pairs, point, runs, change_NC)
                source.exact_of(effects)[chunk[sample], i, -change_NC.shape[1] :] = change_NC[sample]
            done += 1
            if on_layer is not None:
                on_layer(done, total)
    return grid_of(model, pairs, point, chosen, effects)


@dataclass(frozen=True, eq=False)
class UnpatchedRuns:
    """Pairs of equal lengths, run without patches.

    Attributes:
        pairs: their indices, [N].
        trunk: the corrupted runs.
        own_N: answers of the clean texts.
        other_N: answers of the corrupted texts.
        clean: activations of the clean runs in each layer, [N, T, ...], at the corrupted texts' tokens.
        corrupted: those of the corrupted runs.
        gradient: of the corrupted runs' logit differences.
        difference_N2: logit differences of the clean and of the corrupted runs, float64.
    """

    pairs: np.ndarray
    trunk: Trunk
    own_N: Tensor
    other_N: Tensor
    clean: list[Tensor]
    corrupted: list[Tensor]
    gradient: list[Tensor]
    difference_N2: np.ndarray


@dataclass(frozen=True, eq=False)
class PatchSource:
    """Where patched activations come from.

    Attributes:
        values: of each layer, [N, T, ...].
        at_NT: the tokens at which a patch may change something, bool.
        placebo: which one; None for the clean texts.
    """

    values: list[Tensor]
    at_NT: Tensor
    placebo: int | None

    def exact_of(self, effects: PatchEffects) -> np.ndarray:
        """Where its exact effects belong, [N, L, C]."""
        return effects.exact_NLC if self.placebo is None else effects.placebo_SNLC[self.placebo]


@dataclass(frozen=True, eq=False)
class HeadPatch(Edit):
    """One head's coordinates become those of `values` [N T, H, K]: in row h N T + t, head h takes those of t."""

    values: Tensor

    def changed(self, x_TD: Tensor, rows_T: Tensor | None) -> Tensor:
        """The activations with one head's coordinates replaced."""
        assert rows_T is not None
        n, n_heads, _ = self.values.shape
        head_T, token_T = rows_T // n, rows_T % n
        new = x_TD.clone().view(len(x_TD), n_heads, -1)
        new[torch.arange(len(new), device=new.device), head_T] = self.values[token_T, head_T].to(x_TD)
        return new.view(x_TD.shape)


def _layers(model: LanguageModel, point: str, layers: Sequence[int] | None) -> list[int]:
    if point not in POINTS:
        raise UsageError(f"patching is done at {', '.join(POINTS)}; got {point!a}")
    if not (there := model.layers_of(point)):
        model.resolve(point)  # raises, and says why
    if wrong := [layer for layer in layers or () if layer not in there]:
        raise UsageError(f"{point} is in the layers {there[0]}..{there[-1]}; got {wrong[0]}")
    return there if layers is None else sorted(set(layers))


def _check(pairs: MinimalPairs) -> None:
    if not len(pairs):
        raise DataError("there are no pairs to patch; give a file with a clean and a corrupted text in each row")
    for name, clean, corrupted in zip(pairs.names, pairs.clean, pairs.corrupted, strict=True):
        if clean == corrupted:
            raise DataError(
                f"{name}: the clean and the corrupted text are the same, so there is nothing to patch; give texts that "
                "differ before the answer"
            )


def _chunks(model: LanguageModel, pairs: MinimalPairs, n_layers: int, order: np.ndarray) -> Iterator[np.ndarray]:
    """Pairs of equal lengths, as many as memory holds."""
    lengths = np.array([[len(x), len(y)] for x, y in zip(pairs.clean, pairs.corrupted, strict=True)])[order]
    for which in np.unique(lengths, axis=0):
        same = order[(lengths == which).all(1)]
        most = max(2, KEPT_BYTES // (3 * n_layers * model.cfg.d_model * 4 * int(which.max())))
        yield from np.array_split(same, -(-len(same) // most))


def _unpatched(
    model: LanguageModel, pairs: MinimalPairs, point: str, layers: list[int], chunk: np.ndarray
) -> UnpatchedRuns:
    at, points = torch.from_numpy(chunk), [(point, layer) for layer in layers]
    own_N, other_N = pairs.own_N[at], pairs.other_N[at]
    clean, corrupted = ([texts[i] for i in chunk] for texts in (pairs.clean, pairs.corrupted))
    trunk = run_trunk(model, corrupted, pairs.corrupted_answer_N[at])
    with torch.no_grad():
        hidden_ND, values = _run(model, clean, pairs.clean_answer_N[at], points)
        differences = [logit_differences(model, x_ND, own_N, other_N) for x_ND in (hidden_ND, trunk.hidden_ND)]
    most = max(1, GRAPH_BYTES // (80 * model.cfg.d_model * model.n_layers * len(corrupted[0])))
    parts = []
    for rows in torch.arange(len(chunk)).split(most):
        with torch.enable_grad(), no_weight_gradients(model):
            hidden_ND, kept = _run(model, [corrupted[i] for i in rows], trunk.answer_N[rows], points)
            gradients = torch.autograd.grad(logit_differences(model, hidden_ND, own_N[rows], other_N[rows]).sum(), kept)
        parts.append(([x.detach() for x in kept], gradients))
    of_corrupted, gradients = ([torch.cat(x) for x in zip(*(part[i] for part in parts), strict=True)] for i in (0, 1))
    values = values if pairs.align == "tokens" else _at_answers(values, pairs, chunk)
    difference_N2 = torch.stack(differences, 1).double().cpu().numpy()
    return UnpatchedRuns(chunk, trunk, own_N, other_N, values, of_corrupted, gradients, difference_N2)


def _at_answers(values: list[Tensor], pairs: MinimalPairs, chunk: np.ndarray) -> list[Tensor]:
    """The clean activations at the clean answer tokens, where the corrupted answer tokens are; 0 elsewhere."""
    at, rows = torch.from_numpy(chunk), torch.arange(len(chunk))
    aligned = [x.new_zeros(len(x), len(pairs.corrupted[chunk[0]]), *x.shape[2:]) for x in values]
    for new, x in zip(aligned, values, strict=True):
        new[rows, pairs.corrupted_answer_N[at]] = x[rows, pairs.clean_answer_N[at]]
    return aligned


def _run(model: Any, texts: list[list[int]], answer_N: Tensor, points: list[Any]) -> tuple[Tensor, list[Tensor]]:
    """The final norm's output at the answer tokens of texts of one length, and the activations at the points."""
    kept: dict[str, Tensor] = {}

    def keep(x: Tensor, hook: HookPoint) -> Tensor:
        if torch.is_grad_enabled() and not x.requires_grad:  # the first point; the others follow from it
            x = x.detach().requires_grad_()
        kept[hook.name] = x
        return x

    with model.hooks([(points, keep)]):
        hidden_NTD = model(torch.tensor(texts), return_logits=False)
    return hidden_NTD[torch.arange(len(texts)), answer_N], [kept[name] for name in model.resolve(points)]


def _sources(model: LanguageModel, pairs: MinimalPairs, runs: UnpatchedRuns, placebos: int) -> list[PatchSource]:
    """The clean texts, then the placebos: the corrupted texts of other pairs."""
    clean = [pairs.clean[i] for i in runs.pairs]
    sources = [PatchSource(runs.clean, _may_change(model, pairs, runs, clean), None)]
    for i in range(placebos if len(runs.pairs) > 1 else 0):
        donor_N = _donors(pairs, runs, np.random.default_rng(i))
        at_NT = _may_change(model, pairs, runs, [runs.trunk.texts[j] for j in donor_N])
        sources.append(PatchSource([x[torch.from_numpy(donor_N)] for x in runs.corrupted], at_NT, i))
    return sources


def _donors(pairs: MinimalPairs, runs: UnpatchedRuns, generator: np.random.Generator) -> np.ndarray:
    """For each pair another one here, with another text and the same answers if possible."""
    answers, texts = torch.stack([runs.own_N, runs.other_N], 1).numpy(), runs.trunk.texts
    donors = np.zeros(len(texts), int)
    for i, text in enumerate(texts):
        other = np.arange(len(texts)) != i
        differs = other & np.array([each != text for each in texts])
        alike = differs & (answers == answers[i]).all(1)
        donors[i] = generator.choice(np.flatnonzero(next(x for x in (alike, differs, other) if x.any())))
    return donors


def _may_change(model: LanguageModel, pairs: MinimalPairs, runs: UnpatchedRuns, sources: list[list[int]]) -> Tensor:
    """The tokens at which a patch can change the answer, bool [N, T].

    In a causal model from the first token that differs to the answer token; where only the answer tokens align, these.
    """
    tokens_NT, answer_N1 = torch.tensor(runs.trunk.texts), runs.trunk.answer_N[:, None]
    place_T = torch.arange(tokens_NT.shape[1])
    if pairs.align == "last":
        return place_T == answer_N1
    if not model.causal:
        return torch.ones_like(tokens_NT, dtype=torch.bool)
    return ((tokens_NT != torch.tensor(sources)).cumsum(1) > 0) & (place_T <= answer_N1)


def _attribute(
    effects: PatchEffects,
    pairs: MinimalPairs,
    point: str,
    runs: UnpatchedRuns,
    sources: list[PatchSource],
    with_placebos: bool,
) -> None:
    """Fill in the logit differences, and the approximate effects in every layer."""
    effects.difference_N2[runs.pairs] = runs.difference_N2
    sums_to = "nthk,nt->nh" if point == "z" else "ntd,nt->nt"
    for source in sources if with_placebos else sources[:1]:
        into = effects.attribution_NLC if source.placebo is None else effects.placebo_SNLC[source.placebo]
        for i, values in enumerate(source.values):
            slope = ((values - runs.corrupted[i]) * runs.gradient[i]).double().cpu()
            change_NC = torch.einsum(sums_to, slope, source.at_NT.double()).numpy()
            change_NC = _columns_of(pairs, point, runs, change_NC)
            into[runs.pairs, i, -change_NC.shape[1] :] = change_NC


def _columns_of(pairs: MinimalPairs, point: str, runs: UnpatchedRuns, change_NC: np.ndarray) -> np.ndarray:
    """The columns of the grid: the answer tokens alone where no others align."""
    if point == "z" or pairs.align == "tokens":
        return change_NC
    return np.take_along_axis(change_NC, runs.trunk.answer_N.numpy()[:, None], 1)


@torch.no_grad()
def _exact_effects(
    model: LanguageModel,
    at: tuple[str, int],
    runs: UnpatchedRuns,
    source: PatchSource,
    values: Tensor,
    sample: np.ndarray,
) -> np.ndarray:
    """The change of the logit difference by each patch at a layer, float64 [N, C]; 0 for pairs outside the sample."""
    at_NT = source.at_NT & torch.from_numpy(sample)[:, None]
    if at[0] == "z":
        branches, column_V = _head_branches(at, at_NT, values)
    else:
        text_V, column_V = at_NT.nonzero(as_tuple=True)
        at_VL = torch.arange(at_NT.shape[1]) == column_V[:, None]
        value_VD = values[text_V.to(values.device), column_V.to(values.device)]
        branches = Branches(at[1], text_V, at_VL, {at: Replace(value_VD)})
    change_NC = np.zeros((len(at_NT), values.shape[2] if at[0] == "z" else at_NT.shape[1]))
    if len(text_V := branches.text_V):
        hidden_VD = run_branches(model, runs.trunk, branches)
        patched_V = logit_differences(model, hidden_VD, runs.own_N[text_V], runs.other_N[text_V]).double().cpu().numpy()
        row_V = text_V.cpu().numpy()  # numpy takes a tensor of one number for a whole number
        change_NC[row_V, column_V.cpu().numpy()] = patched_V - runs.difference_N2[row_V, 1]
    return change_NC


def _head_branches(at: tuple[str, int], at_NT: Tensor, values_NTHK: Tensor) -> tuple[Branches, Tensor]:
    """A branch for each text and head, and the heads."""
    text_V, head_V = torch.ones(len(at_NT), values_NTHK.shape[2]).nonzero(as_tuple=True)
    token_NT = torch.arange(at_NT.numel()).view(at_NT.shape)
    row_VT = head_V[:, None] * at_NT.numel() + token_NT[text_V]
    return Branches(at[1], text_V, at_NT[text_V], {at: HeadPatch(values_NTHK.flatten(0, 1))}, row_VT), head_V

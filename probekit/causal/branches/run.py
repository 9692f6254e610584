"""Run a model from a layer on, for many edits of the same texts.

A *trunk* is the unedited run of some texts; a *branch* is one edited run of one of them. A branch starts from the
trunk's residual stream at the layer of its edits. In a causal model it computes the tokens from its first edited one to
the answer token, in one row with other branches of its text, and attends to the trunk's keys and values before them.
The last block computes the answer token alone. The result is that of a full forward with the edits, up to rounding.

Axes: N texts, V branches, B rows, L position, R branch of a row, G key/value heads, K d_head, D d_model.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from probekit.causal.branches.rows import BranchRows, branch_rows
from probekit.errors import UsageError
from probekit.hooks import HookPoint
from probekit.interventions import Edit, Edits, editing
from probekit.models.base import LanguageModel
from probekit.models.cache import KeyValueCache, SharedPrefix
from probekit.points import Place

TOKENS = {"cpu": 2048}  # in one forward, as in extraction; not measured here
TOKENS_ELSEWHERE = 16_384  # not measured
KEPT_BYTES = 1 << 30  # of the trunk's residuals, keys and values; those of further texts are computed again when needed


@dataclass(frozen=True, eq=False)
class Unedited:
    """What branches need of the unedited run of some texts, padded on the right.

    Attributes:
        resid: the input of each block, [N, L, D].
        keys: of each block, [N, L, G, K]; () in a bidirectional model.
        values: the same.
    """

    resid: list[Tensor]
    keys: list[Tensor]
    values: list[Tensor]


@dataclass(frozen=True, eq=False)
class TextGroup:
    """Texts of similar length, run together.

    Attributes:
        texts: their indices.
        kept: their unedited run; None to compute it again when needed.
    """

    texts: list[int]
    kept: Unedited | None


@dataclass(frozen=True, eq=False)
class Trunk:
    """The unedited run of some texts.

    Attributes:
        texts: token ids of each text, context tokens included.
        answer_N: the token of each text after which the model's answer is read, by default the last; int64 [N].
        hidden_ND: the final norm's output there.
        groups: the texts in groups; () where branches are whole forwards.
    """

    texts: list[list[int]]
    answer_N: Tensor
    hidden_ND: Tensor
    groups: Sequence[TextGroup] = ()


@dataclass(frozen=True, eq=False)
class Branches:
    """Edited runs.

    Attributes:
        layer: the layer of all edited points; points of later layers may be edited as well.
        text_V: the text of each branch, int64 [V].
        at_VL: the tokens that are edited, bool [V, L], L the longest text's length.
        edits: point -> edit; row v of an edit's tensors belongs to branch v.
        row_VL: the row of an edit's tensors that belongs to each token, int64 [V, L], where it is not v.
    """

    layer: int
    text_V: Tensor
    at_VL: Tensor
    edits: Edits
    row_VL: Tensor | None = field(default=None)


@torch.no_grad()
def run_trunk(
    model: LanguageModel, texts: Sequence[Sequence[int]], answer_N: Tensor | None = None, keep: int = KEPT_BYTES
) -> Trunk:
    """Run the texts without edits.

    Args:
        model: a decoder, a masked language model, or a model of `transformers`.
        texts: token ids of each.
        answer_N: the token after which the answer is read; None for the last.
        keep: how many bytes of the run to keep for branches; what is not kept is computed again by each call.

    Raises:
        UsageError: an encoder-decoder, an empty text, or an answer token outside of its text.
    """
    rows = [list(text) for text in texts]
    answers = torch.tensor([len(row) - 1 for row in rows]) if answer_N is None else answer_N.long().cpu()
    _check(model, rows, answers)
    if not (model.starts and model.forks):
        return Trunk(rows, answers, _whole(model, rows, answers, torch.arange(len(rows)), None))
    groups, hidden, order = [], [], []
    for group in _groups(model, [len(row) for row in rows]):
        unedited, hidden_ND = _run_group(model, [rows[i] for i in group], answers[group])
        keep -= sum(x.nbytes for part in fields(unedited) for x in getattr(unedited, part.name))
        groups.append(TextGroup(group, unedited if keep >= 0 else None))
        hidden.append(hidden_ND)
        order += group
    return Trunk(rows, answers, torch.cat(hidden)[torch.tensor(order).argsort()], groups)


def run_branches(model: LanguageModel, trunk: Trunk, branches: Branches) -> Tensor:
    """The final norm's output at the answer token of each branch, [V, D]; gradients flow to the edits' tensors.

    Gradients flow to no weights. Without a tensor that requires them the run computes none.

    Raises:
        UsageError: a layer that the model does not have, or sizes that do not match.
    """
    _check_branches(model, trunk, branches)
    with _gradients_of(model, branches.edits):
        if not trunk.groups:
            return _whole(model, trunk.texts, trunk.answer_N, branches.text_V.cpu(), branches)
        parts = list(_run(model, trunk, branches))
    unedited_V, hidden = _untouched(model, trunk, branches)
    branch = torch.cat([unedited_V, *(branch_V for branch_V, _ in parts)])
    return torch.cat([hidden, *(hidden_VD for _, hidden_VD in parts)])[branch.argsort().to(hidden.device)]


def _check(model: LanguageModel, texts: list[list[int]], answer_N: Tensor) -> None:
    if hasattr(model, "decode"):
        raise UsageError(
            f"{model.name} is an encoder-decoder, and edits are followed in one stack alone; take a decoder or an "
            "encoder"
        )
    if not texts or not all(texts):
        raise UsageError("a text without tokens has no answer token; leave it out")
    for i, (text, answer) in enumerate(zip(texts, answer_N.tolist(), strict=True)):
        if not 0 <= answer < len(text):
            raise UsageError(f"the answer token of text {i} is one of its {len(text)} tokens; got {answer}")


def _check_branches(model: LanguageModel, trunk: Trunk, branches: Branches) -> None:
    if not 0 <= branches.layer < model.n_layers:
        raise UsageError(f"branches start at a layer, 0..{model.n_layers - 1}; got {branches.layer}")
    longest = max(map(len, trunk.texts))
    if branches.at_VL.shape != (len(branches.text_V), longest):
        raise UsageError(
            f"at_VL is {[len(branches.text_V), longest]}: branches, and tokens of the longest text; "
            f"got {list(branches.at_VL.shape)}"
        )


@contextmanager
def _gradients_of(model: LanguageModel, edits: Edits) -> Iterator[None]:
    """Gradients for the edits' tensors, if one requires them, and for no weight."""
    each = [edit for some in edits.values() for edit in ([some] if isinstance(some, Edit) else some)]
    tensors = [x for edit in each for x in vars(edit).values() if isinstance(x, Tensor)]
    if not (torch.is_grad_enabled() and any(x.requires_grad for x in tensors)):
        with torch.no_grad():
            yield
        return
    with no_weight_gradients(model):
        yield


@contextmanager
def no_weight_gradients(model: LanguageModel) -> Iterator[None]:
    """Within the context no weight requires gradients, so that graphs hold no activations for their sake."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    try:
        for weight in weights:
            weight.requires_grad_(False)
        yield
    finally:
        for weight in weights:
            weight.requires_grad_(True)


def _tokens_at_once(model: LanguageModel) -> int:
    return TOKENS.get(model.device.type, TOKENS_ELSEWHERE)


def _groups(model: LanguageModel, lengths: list[int]) -> Iterator[list[int]]:
    """Indices of texts of similar length; of one length where the model needs it."""
    group: list[int] = []
    for i in sorted(range(len(lengths)), key=lengths.__getitem__):
        full = bool(group) and lengths[i] * (len(group) + 1) > _tokens_at_once(model)
        if full or (group and model.batching == "one length" and lengths[i] != lengths[group[0]]):
            yield group
            group = []
        group.append(i)
    if group:
        yield group


def _padded(texts: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Texts padded on the right, and which tokens are real: [V, L] each."""
    width = max(map(len, texts))
    tokens = torch.tensor([text + [0] * (width - len(text)) for text in texts])
    return tokens, torch.arange(width) < torch.tensor([len(text) for text in texts])[:, None]


def _whole(
    model: LanguageModel, texts: list[list[int]], answer_N: Tensor, text_V: Tensor, branches: Branches | None
) -> Tensor:
    """The final norm's output at the answer tokens, by forwards from the embedding; where no prefix can be shared."""
    order, hidden = [], []
    for group in _groups(model, [len(texts[i]) for i in text_V.tolist()]):
        tokens, mask = _padded([texts[i] for i in text_V[group].tolist()])
        with ExitStack() as stack:
            if branches is not None:
                at_VL, row_VL = branches.at_VL[group, : mask.shape[1]], _rows_of(branches)[group, : mask.shape[1]]
                stack.enter_context(editing(model, branches.edits, at_VL, row_VL))
            hidden_VLD: Tensor = model(tokens, attention_mask=mask, return_logits=False)
        order += group
        hidden.append(hidden_VLD[torch.arange(len(group)), answer_N[text_V[group]].to(hidden_VLD.device)])
    return torch.cat(hidden)[torch.tensor(order).argsort()]


def _rows_of(branches: Branches) -> Tensor:
    if branches.row_VL is not None:
        return branches.row_VL
    return torch.arange(len(branches.text_V))[:, None].expand(branches.at_VL.shape)


def _run_group(model: Any, texts: list[list[int]], answer_N: Tensor) -> tuple[Unedited, Tensor]:
    """The unedited run of texts of similar length, and the final norm's output at their answer tokens."""
    tokens, is_real = _padded(texts)
    resid: list[Tensor] = []

    def keep(x: Tensor, _: HookPoint) -> None:
        resid.append(x)

    n, length = tokens.shape
    mask = is_real[:, None, :] | torch.eye(length, dtype=torch.bool)
    inputs: dict[str, Any] = {"attention_mask": mask & torch.ones_like(mask).tril() if model.causal else mask}
    inputs |= {"position_ids": torch.arange(length).expand(n, -1)}
    cache = model.empty_cache() if model.causal else None
    inputs |= {} if cache is None else {"cache": cache}
    # the last block's residual and keys are those of all tokens; only what follows is left out
    with model.hooks([("resid_pre", keep)]), model.reading(answer_N[:, None]):
        hidden_ND = model(tokens, return_logits=False, **inputs)[:, 0]
    keys, values = ([cast(Tensor, getattr(layer, name)) for layer in cache or ()] for name in ("keys", "values"))
    return Unedited(resid, keys, values), hidden_ND


def _first_edited(model: LanguageModel, trunk: Trunk, branches: Branches) -> np.ndarray:
    """The first token that each branch computes; that after the answer token if no edit can reach it, [V]."""
    if not model.causal:
        return np.zeros(len(branches.text_V), int)
    at_VL = branches.at_VL.cpu()
    first_V = torch.where(at_VL.any(1), at_VL.int().argmax(1), at_VL.shape[1])
    return torch.minimum(first_V, trunk.answer_N[branches.text_V.cpu()] + 1).numpy()


def _untouched(model: LanguageModel, trunk: Trunk, branches: Branches) -> tuple[Tensor, Tensor]:
    """The branches whose edits come after their answer token, and their output: the trunk's."""
    text_V = branches.text_V.cpu()
    which = torch.from_numpy(_first_edited(model, trunk, branches)) > trunk.answer_N[text_V]
    branch = which.nonzero()[:, 0]
    return branch, trunk.hidden_ND[text_V[branch].to(trunk.hidden_ND.device)]


def _run(model: LanguageModel, trunk: Trunk, branches: Branches) -> Iterator[tuple[Tensor, Tensor]]:
    """The branches of each batch of rows and their output."""
    text_V, answer_N = branches.text_V.cpu().numpy(), trunk.answer_N.numpy()
    first_V, answer_V = _first_edited(model, trunk, branches), answer_N[text_V]
    last_V = answer_V if model.causal else np.array([len(trunk.texts[i]) - 1 for i in text_V], int)
    for group in trunk.groups:
        mine = np.flatnonzero(np.isin(text_V, group.texts) & (first_V <= answer_V))
        if not len(mine):
            continue
        unedited = group.kept
        if unedited is None:
            unedited = _run_group(model, [trunk.texts[i] for i in group.texts], trunk.answer_N[group.texts])[0]
        place = {text: i for i, text in enumerate(group.texts)}
        parts = np.array([place[text] for text in text_V[mine]]), first_V[mine], last_V[mine], answer_V[mine]
        for rows in branch_rows(*parts, tokens=_tokens_at_once(model)):
            hidden_BRD = _forward(model, trunk, group, unedited, branches, torch.from_numpy(mine), rows)
            yield torch.from_numpy(mine)[rows.branch_BR[rows.branch_BR >= 0]], hidden_BRD[rows.branch_BR >= 0]


def _forward(
    model: Any,
    trunk: Trunk,
    group: TextGroup,
    unedited: Unedited,
    branches: Branches,
    mine: Tensor,
    rows: BranchRows,
) -> Tensor:
    """The final norm's output at the answer tokens of a batch, [B, R, D]."""
    is_real, branch_BL = rows.branch_BL >= 0, mine[rows.branch_BL]
    tokens, _ = _padded([trunk.texts[i] for i in group.texts])
    inputs: dict[str, Any] = {"position_ids": rows.place_BL, "attention_mask": rows.mask(model.causal)}
    if n := rows.n_prefix:
        layers = [SharedPrefix(k, v, rows.text_B, n) for k, v in zip(unedited.keys, unedited.values, strict=True)]
        positions = torch.arange(n, device=model.device).expand(len(rows.text_B), -1)
        inputs["cache"] = KeyValueCache(layers, positions)
    at_BL = branches.at_VL.cpu()[branch_BL, rows.place_BL] & is_real
    row_BL = branch_BL if branches.row_VL is None else branches.row_VL.cpu()[branch_BL, rows.place_BL]
    reads = not _edits_after_reading(model, branches)
    with ExitStack() as stack:
        stack.enter_context(editing(model, branches.edits, at_BL, row_BL))
        stack.enter_context(model.reading(rows.read_BR if reads else None))
        if branches.layer:
            resid_NLD = unedited.resid[branches.layer]
            text_B1, place_BL = (x.to(resid_NLD.device) for x in (rows.text_B[:, None], rows.place_BL))
            stack.enter_context(model.starting(branches.layer, resid_NLD[text_B1, place_BL]))
        hidden = model(tokens[rows.text_B[:, None], rows.place_BL], return_logits=False, **inputs)
    return hidden if reads else hidden[torch.arange(len(hidden))[:, None], rows.read_BR]


def _edits_after_reading(model: LanguageModel, branches: Branches) -> bool:
    """Whether a point is edited where the last block has left out all tokens but the answer tokens."""
    names = [Place.of(name) for name in model.resolve(list(branches.edits))]
    return any(short != "resid_pre" and layer in (None, model.n_layers - 1) for short, layer in names)

"""The gated delta rule (Yang et al. 2024, "Gated Delta Networks"): a head's memory S [K, V], rewritten token by token.

    S <- a S,  then  S <- S + k (b (v - S^T k))^T,  and the token reads S^T q

where a in (0, 1] is how much of the memory is kept, and b in (0, 1) how much of what it holds under the key k is
replaced by v. `delta_rule` computes CHUNK tokens at once: what they write depends on what the earlier ones of the chunk
wrote, a triangular system whose inverse all chunks compute together (Yang et al. 2024, "Parallelizing Linear
Transformers with the Delta Rule over Sequence Length"); then chunk after chunk reads the memory and rewrites it.

Several texts may lie side by side in a row. A text's first token has the log of a equal to `FORGOTTEN`, of which exp is
0: it finds an empty memory, and the products across it are 0. Sums of logs that contain it are far below the smallest
exponent, those within a text never contain it, so texts share no rounding either.

Axes: B batch, L position, T chunk, C token of a chunk, J key heads, N value heads (a multiple of J), K width of a key,
V width of a value.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 64
FORGOTTEN = -1e4


def delta_rule(
    q_BLJK: Tensor, k_BLJK: Tensor, v_BLNV: Tensor, keep_BLN: Tensor, replace_BLN: Tensor, memory_BNKV: Tensor | None
) -> tuple[Tensor, Tensor]:
    """What every token reads, [B, L, N, V], and the memory after the last, [B, N, K, V].

    Args:
        q_BLJK: queries; key head j serves N / J neighbouring value heads.
        k_BLJK: keys, of length 1.
        v_BLNV: values.
        keep_BLN: the log of a; FORGOTTEN at the first token of a text.
        replace_BLN: b.
        memory_BNKV: before the first token; None for an empty one.
    """
    (B, L, J, K), (N, V) = k_BLJK.shape, v_BLNV.shape[2:]
    memory = v_BLNV.new_zeros(B, N, K, V) if memory_BNKV is None else memory_BNKV
    if L == 1:
        q, k = (x.repeat_interleave(N // J, 2).transpose(1, 2) for x in (q_BLJK, k_BLJK))  # [B, N, 1, K]
        kept = memory * keep_BLN.exp().view(B, N, 1, 1)
        new = (v_BLNV.transpose(1, 2) - k @ kept) * replace_BLN.view(B, N, 1, 1)
        memory = kept + k.transpose(2, 3) * new
        return (q @ memory).transpose(1, 2), memory
    C = min(CHUNK, L)
    q, k, v, keep, replace = (_chunks(x, C) for x in (q_BLJK, k_BLJK, v_BLNV, keep_BLN, replace_BLN))
    heads = lambda x: x.repeat_interleave(N // J, 1)  # noqa: E731
    earlier, identity = torch.ones_like(keep[0, 0, 0]).expand(C, C).tril(-1), torch.eye(C).to(keep)
    # log of what token i finds of what token j wrote: the sum of what lies between, without differences of long sums
    since = (keep[..., None] * earlier).cumsum(-2).exp().tril()
    from_start, to_end = keep.cumsum(-1).exp()[..., None], since[..., -1, :, None]
    system = heads(k @ k.mT) * since * replace[..., None]
    solved = torch.linalg.solve_triangular(system, identity, upper=False, unitriangular=True)  # reads no diagonal
    del system
    seen = heads(q @ k.mT) * since
    q, k, read = heads(q), heads(k), []
    for t in range(q.shape[2]):
        found = k[:, :, t] @ memory * from_start[:, :, t]
        new = solved[:, :, t] @ ((v[:, :, t] - found) * replace[:, :, t, :, None])
        read.append(q[:, :, t] @ memory * from_start[:, :, t] + seen[:, :, t] @ new)
        memory = memory * from_start[:, :, t, -1:] + k[:, :, t].mT @ (new * to_end[:, :, t])
    return torch.cat(read, 2)[:, :, :L].transpose(1, 2), memory


def _chunks(x_BLH: Tensor, C: int) -> Tensor:
    """[B, L, heads, ...] as [B, heads, T, C, ...]; the last chunk is filled up with 0, which changes no memory."""
    x_BHL = x_BLH.transpose(1, 2)
    x_BHL = F.pad(x_BHL, (0, 0) * (x_BHL.dim() - 3) + (0, -x_BHL.shape[2] % C))
    return x_BHL.unflatten(2, (-1, C))

"""Programs for transformers: a residual stream with named axes, heads that select and move, units that compute.

A program is what RASP (Weiss et al. 2021) writes with `select`, `aggregate` and element-wise maps, spelled out by axis:
which axes a word or a position sets, which axes of two tokens a head compares and which it moves, which axes a unit of
an MLP reads and writes. `compile_program` (after Lindner et al. 2023) turns it into the weights of a transformer that
computes exactly that, up to float32's rounding and to attention of 1e-13 on tokens that are not selected.

Axes are names, such as "letter:a". In the weights no axis is a coordinate: the stream is rotated by a random orthogonal
matrix. It lies in the complement of the vector of ones. So where a program has layer norms, centring changes nothing;
an epsilon far above the stream's variance makes the norm a division by a constant, and the gains undo it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Weights = Mapping[str, float]  # axis -> weight

SHARP = 30.0  # score of what is selected over what is not: e^-30 is 1e-13
D_MODEL = 64
EPS = 1e8  # of the norms, with gains of its root: relative error (variance of the stream) / 2e8


@dataclass(frozen=True)
class Compare:
    """A term of a head's scores: weight x (query's token along an axis) x (key's token along an axis).

    Attributes:
        query: axis of the token that attends; None for the constant 1.
        key: axis of the token that is attended to.
        weight: of their product.
    """

    query: str | None
    key: str
    weight: float = SHARP


@dataclass(frozen=True)
class Head:
    """An attention head. Where all scores are equal, as without terms, it takes the mean over all tokens that it sees.

    Attributes:
        moves: axis of the attended token -> axis that it is added to.
        scores: terms of the scores.
    """

    moves: Mapping[str, str]
    scores: Sequence[Compare] = ()


@dataclass(frozen=True)
class Unit:
    """A unit of an MLP: relu(reads . x + bias), added to the axes of `writes`."""

    reads: Weights
    writes: Weights
    bias: float = 0.0


@dataclass(frozen=True)
class Block:
    """Heads, which all read the input of the block, then units, which read the stream after the heads."""

    heads: Sequence[Head] = ()
    units: Sequence[Unit] = ()


@dataclass(frozen=True)
class Program:
    """A transformer, by the axes of its stream.

    Attributes:
        name: of the model.
        words: word -> the axes that it sets.
        blocks: in order.
        answers: word -> (the axes that its logit reads, its bias); other words have logit 0.
        positions: the axes that each position sets, from the first; none where a program asks for none.
        n_ctx: tokens of the longest text.
        causal: whether a token sees only itself and those before it.
        norm: whether the blocks have layer norms (that change nothing).
        seed: of the rotation.
    """

    name: str
    words: Mapping[str, Weights]
    blocks: Sequence[Block]
    answers: Mapping[str, tuple[Weights, float]]
    n_ctx: int
    positions: Sequence[Weights] = ()
    causal: bool = True
    norm: bool = False
    seed: int = 0

    @property
    def axes(self) -> list[str]:
        """Every axis that something sets or reads, in order of appearance."""
        found: dict[str, None] = {}
        for weights in (*self.words.values(), *self.positions):
            found.update(dict.fromkeys(weights))
        for block in self.blocks:
            for head in block.heads:
                found.update(dict.fromkeys(x for c in head.scores for x in (c.query, c.key) if x is not None))
                found.update(dict.fromkeys([*head.moves, *head.moves.values()]))
            for unit in block.units:
                found.update(dict.fromkeys([*unit.reads, *unit.writes]))
        for weights, _ in self.answers.values():
            found.update(dict.fromkeys(weights))
        return list(found)


def one_hot(part: str, values: Iterable[Any]) -> list[str]:
    """The axes of a part of the stream that holds one of some values."""
    return [f"{part}:{value}" for value in values]


def selects(
    query: str, queries: Iterable[Any], key: str, keys: Iterable[Any], where: Callable[[Any, Any], bool]
) -> list[Compare]:
    """Scores that select the tokens for which `where(query's value, key's value)` holds; RASP's `select`."""
    keys = list(keys)
    return [Compare(f"{query}:{q}", f"{key}:{k}") for q in queries for k in keys if where(q, k)]


def move(source: str, target: str, values: Iterable[Any]) -> dict[str, str]:
    """What copies a part of the stream into another."""
    return {f"{source}:{value}": f"{target}:{value}" for value in values}


def step(reads: Weights, threshold: float, writes: Weights, width: float = 0.1) -> list[Unit]:
    """Two units: 0 below threshold - width, 1 above threshold + width, linear in between; times `writes`."""
    steep = {axis: weight / (2 * width) for axis, weight in reads.items()}
    start = (threshold - width) / (2 * width)
    negative = {axis: -weight for axis, weight in writes.items()}
    return [Unit(steep, writes, -start), Unit(steep, negative, -start - 1)]


def compile_program(program: Program) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The config and the weights of a program, as a folder of a `hooked_transformer` holds them.

    Returns:
        The fields of config.json, and float32 arrays by name.
    """
    axes, vocabulary = program.axes, list(program.words)
    basis = _basis(len(axes), program.seed)  # [axis, D]
    row = {axis: basis[i] for i, axis in enumerate(axes)}
    n_heads = max(1, *(len(block.heads) for block in program.blocks))
    d_head = max(1, *(_width(head) for block in program.blocks for head in block.heads))
    d_mlp = max(1, *(len(block.units) for block in program.blocks))
    config = {
        "model_type": "hooked_transformer",
        "n_layers": len(program.blocks),
        "d_model": D_MODEL,
        "n_ctx": program.n_ctx,
        "d_head": d_head,
        "n_heads": n_heads,
        "d_mlp": d_mlp,
        "d_vocab": len(vocabulary),
        "act_fn": "relu",
        "attention_dir": "causal" if program.causal else "bidirectional",
        "normalization_type": "LN" if program.norm else None,
        "eps": EPS,
        "use_attn_scale": False,
    }
    positions = list(program.positions) + [{}] * (program.n_ctx - len(program.positions))
    weights = {
        "embed.W_E": np.stack([_write(words, row) for words in program.words.values()]),
        "pos_embed.W_pos": np.stack([_write(each, row) for each in positions]),
        "unembed.W_U": np.stack([_write(program.answers.get(word, ({}, 0))[0], row) for word in vocabulary], axis=1),
        "unembed.b_U": np.array([program.answers.get(word, ({}, 0.0))[1] for word in vocabulary]),
    }
    for i, block in enumerate(program.blocks):
        names = "W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V"
        heads = [_head(head, row, d_head) for head in block.heads]
        heads += [_head(Head({}), row, d_head)] * (n_heads - len(heads))
        weights |= {
            f"blocks.{i}.attn.{name}": np.stack(each)
            for name, each in zip(names, zip(*heads, strict=True), strict=True)
        }
        weights[f"blocks.{i}.attn.b_O"] = np.zeros(D_MODEL)
        units = [*block.units, *[Unit({}, {})] * (d_mlp - len(block.units))]
        weights[f"blocks.{i}.mlp.W_in"] = np.stack([_write(unit.reads, row) for unit in units], axis=1)
        weights[f"blocks.{i}.mlp.b_in"] = np.array([unit.bias for unit in units])
        weights[f"blocks.{i}.mlp.W_out"] = np.stack([_write(unit.writes, row) for unit in units])
        weights[f"blocks.{i}.mlp.b_out"] = np.zeros(D_MODEL)
    if program.norm:
        for norm in ("ln_final", *(f"blocks.{i}.{ln}" for i in range(len(program.blocks)) for ln in ("ln1", "ln2"))):
            weights |= {f"{norm}.w": np.full(D_MODEL, EPS**0.5), f"{norm}.b": np.zeros(D_MODEL)}
    return config, {name: np.ascontiguousarray(value, dtype=np.float32) for name, value in weights.items()}


def _basis(n_axes: int, seed: int) -> np.ndarray:
    """Orthonormal vectors in general position, orthogonal to the vector of ones: [n_axes, D]."""
    assert n_axes < D_MODEL, f"{n_axes} axes do not fit into {D_MODEL} dimensions"
    drawn = np.random.default_rng(seed).normal(size=(D_MODEL, n_axes))
    return np.linalg.qr(drawn - drawn.mean(axis=0))[0].T


def _write(weights: Weights, row: Mapping[str, np.ndarray]) -> np.ndarray:
    """The vector of the stream with these weights along its axes, [D]."""
    return sum((weight * row[axis] for axis, weight in weights.items()), np.zeros(D_MODEL))


def _width(head: Head) -> int:
    """The dimensions that a head needs: one for each axis of the key, one for each axis that is moved."""
    return max(len({each.key for each in head.scores}), len(head.moves))


def _head(head: Head, row: Mapping[str, np.ndarray], d_head: int) -> tuple[np.ndarray, ...]:
    """W_Q, W_K, W_V [D, K], W_O [K, D], and the biases of queries, keys and values [K]."""
    W_Q, W_K, W_V, W_O = (np.zeros((D_MODEL, d_head)) for _ in range(4))
    b_Q = np.zeros(d_head)
    at = {key: i for i, key in enumerate(dict.fromkeys(each.key for each in head.scores))}
    for key, i in at.items():
        W_K[:, i] = row[key]
    for each in head.scores:
        if each.query is None:
            b_Q[at[each.key]] += each.weight
        else:
            W_Q[:, at[each.key]] += each.weight * row[each.query]
    for i, (source, target) in enumerate(head.moves.items()):
        W_V[:, i], W_O[:, i] = row[source], row[target]
    return W_Q, W_K, W_V, W_O.T, b_Q, np.zeros(d_head), np.zeros(d_head)

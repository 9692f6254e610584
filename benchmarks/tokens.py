"""A published protocol in one call against the same by hand: python benchmarks/tokens.py [TEXTS]

Least squares from every token of a small GPT-2 to five label sets of each token, at embed, resid_pre, resid_mid and
resid_post of four layers, and ln_final: 14 places x 5 sets = 70 values of R2. By hand: the forward in plain torch, all
label sets in one `numpy.linalg.lstsq` for each place. The two run in turn.

On the same activations every number must agree to 1e-6. On those of two forwards they differ more at ln_final: its rows
sum to zero up to rounding, and least squares fits the rounding errors.
"""

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import probekit as pk
from probekit.models.families.gpt2 import GPT2, GPT2Config

LENGTH, VOCAB, D, LAYERS, HEADS, BOARD, RUNS = 60, 64, 128, 4, 4, 8, 3
CLOCKS = ("wall", "processor")
POINTS = ("embed", "resid_pre", "resid_mid", "resid_post", "ln_final")


Values = dict[tuple[str, str], float]


def make_model() -> GPT2:
    sizes: dict[str, Any] = {
        "d_model": D,
        "n_heads": HEADS,
        "d_mlp": 4 * D,
        "n_layers": LAYERS,
        "n_ctx": LENGTH,
        "d_vocab": VOCAB,
    }
    return GPT2(GPT2Config(**sizes, init_std=0.1)).init_weights(0)


def make_task(n: int) -> pk.Task:
    """Moves on a ring of `BOARD` squares, as token ids, with the state after each move."""
    ids = np.random.default_rng(0).integers(VOCAB, size=(n, LENGTH))
    before = np.concatenate([np.zeros((n, 1), dtype=int), ids[:, :-1]], axis=1)
    square = np.cumsum(ids, axis=1) % BOARD
    visits = np.cumsum(square[:, :, None] == np.arange(BOARD), axis=1)
    labels = {
        "square": square,
        "step": ids % BOARD,
        "before": before,
        "mean": np.cumsum(ids, axis=1) / np.arange(1, LENGTH + 1),
        "visited": visits > 0,
    }
    return pk.Task(
        name="ring",
        inputs=ids.tolist(),
        labels={},
        label_names={name: [] for name in labels},
        splits=np.array(["train"] * (n - n // 5) + ["test"] * (n // 5)),
        target="square",
        token_labels={name: values.astype(np.float64) for name, values in labels.items()},
    )


def in_one_call(model: GPT2, task: pk.Task) -> tuple[Any, Values]:
    acts = pk.extract(model, task, points=POINTS, position="all", progress=False)
    results = pk.train_probes(
        acts,
        points=POINTS,
        labels=list(task.token_labels),
        position="all",
        probe="ridge",
        C=float("inf"),
        controls=0,
        baselines=False,
        intervals=False,
    )
    frame = results.to_frame()
    frame = frame[(frame.split == "test") & (frame.metric == "r2")]
    places = zip(frame.place, frame.label, strict=True)
    return acts, dict(zip(places, frame.value.tolist(), strict=True))


@torch.inference_mode()
def by_hand(model: GPT2, task: pk.Task) -> Values:
    kept = states(dict(model.state_dict()), torch.tensor(task.inputs))
    return least_squares({place: torch.cat(parts) for place, parts in kept.items()}, task)


def least_squares(kept: Mapping[str, torch.Tensor], task: pk.Task) -> Values:
    """R2 of each place and label set, by `numpy.linalg.lstsq` with an intercept."""
    train = np.repeat(task.splits == "train", LENGTH)
    labels = {name: np.concatenate(values).reshape(len(train), -1) for name, values in task.token_labels.items()}
    Y, values = np.concatenate([*labels.values()], axis=1), {}
    for place, x in kept.items():
        X = x.double().numpy()
        X = np.concatenate([X, np.ones((len(X), 1))], axis=1)
        weights = np.linalg.lstsq(X[train], Y[train], rcond=None)[0]
        truth = Y[~train]
        errors = ((truth - X[~train] @ weights) ** 2).sum(axis=0)
        r2 = 1 - errors / ((truth - truth.mean(axis=0)) ** 2).sum(axis=0)
        ends = np.cumsum([one.shape[1] for one in labels.values()])[:-1]
        values |= {(place, name): float(one.mean()) for name, one in zip(labels, np.split(r2, ends), strict=True)}
    return values


def states(w: dict[str, torch.Tensor], tokens: torch.Tensor) -> dict[str, list[torch.Tensor]]:
    """The tensors of every place, in parts [B * L, D]."""
    kept: dict[str, list[torch.Tensor]] = {}

    def keep(name: str, x: torch.Tensor) -> None:
        kept.setdefault(name, []).append(x.reshape(-1, D))

    for batch in tokens.split(64):
        B, L = batch.shape
        keep("embed", w["embed.weight"][batch])
        x = w["embed.weight"][batch] + w["pos_embed.weight"][:L]
        for i in range(LAYERS):
            keep(f"resid_pre.{i}", x)
            block = f"blocks.{i}."
            normed = F.layer_norm(x, (D,), w[block + "ln1.weight"], w[block + "ln1.bias"])
            qkv = F.linear(normed, w[block + "attn.qkv.weight"], w[block + "attn.qkv.bias"])
            q, k, v = (one.view(B, L, HEADS, -1).transpose(1, 2) for one in qkv.split(D, dim=-1))
            z = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, L, D)
            x = x + F.linear(z, w[block + "attn.out.weight"], w[block + "attn.out.bias"])
            keep(f"resid_mid.{i}", x)
            normed = F.layer_norm(x, (D,), w[block + "ln2.weight"], w[block + "ln2.bias"])
            up = F.linear(normed, w[block + "mlp.up.weight"], w[block + "mlp.up.bias"])
            x = x + F.linear(F.gelu(up, approximate="tanh"), w[block + "mlp.down.weight"], w[block + "mlp.down.bias"])
            keep(f"resid_post.{i}", x)
        keep("ln_final", F.layer_norm(x, (D,), w["ln_final.weight"], w["ln_final.bias"]))
    return kept


def timed(run: Callable[..., Any], *given: Any) -> tuple[tuple[float, float], Any]:
    """Seconds of the clock and of the processor, and the result."""
    start = time.perf_counter(), time.process_time()
    result = run(*given)
    return (time.perf_counter() - start[0], time.process_time() - start[1]), result


def main() -> None:
    model, task = make_model(), make_task(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)
    in_one_call(model, make_task(20))  # imports
    print(f"{len(task):,} texts of {LENGTH} tokens, {torch.get_num_threads()} threads")
    for _ in range(RUNS):
        hand, there = timed(by_hand, model, task)
        ours, (acts, found) = timed(in_one_call, model, task)
        same = least_squares({str(place): x for place, x in acts.items()}, task)
        apart, forwards = (max(abs(found[key] - other[key]) for key in other) for other in (same, there))
        assert found.keys() == there.keys()
        assert apart < 1e-6
        times = "; ".join(
            f"{name}: by hand {a:.1f} s, in one call {b:.1f} s" for name, a, b in zip(CLOCKS, hand, ours, strict=True)
        )
        print(f"{len(found)} numbers, {apart:.0e} apart ({forwards:.0e} between two forwards); {times}")


if __name__ == "__main__":
    main()

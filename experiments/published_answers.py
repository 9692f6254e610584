"""Three published answers, measured again: the figures of docs/how-to/belief-states.md and its neighbours.

    python experiments/published_answers.py belief [--picture simplex.png]     two minutes on one core
    python experiments/published_answers.py pairs MODEL FILE.jsonl...          ten seconds a file, with a small model
    python experiments/published_answers.py palindrome OUT [--seed 0]          one minute on one core

`belief`: linear belief states (Shai et al. 2024, arXiv 2405.15943). A transformer learns the tokens of a hidden Markov
process, and the exact Bayesian belief about the hidden state is regressed from its stream. `pairs`: BLiMP's minimal
pairs (Warstadt et al. 2020, arXiv 1912.00582), probed by layer (He et al. 2024, arXiv 2403.17299). `palindrome`: which
heads tell a palindrome (ARENA's monthly problem of July 2023).

The models of `belief` and `palindrome` are trained here; the data of `pairs` are the reader's. Seeds are fixed.

Axes: N sequences, L tokens, V symbols, S hidden states.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import typer

import probekit as pk
from probekit.models.base import LanguageModel
from probekit.models.examples import Example
from probekit.models.families.gpt2 import GPT2, GPT2Config
from probekit.models.training import train
from probekit.options import TrainingSettings
from probekit.worlds.definition import World, gpt2_config, next_word_example
from probekit.worlds.grammar import Seed
from probekit.worlds.train import train_world

app = typer.Typer(add_completion=False, help=__doc__)

LENGTH = 10  # tokens of a sequence, as in the authors' settings
LEAST_SQUARES = {"probe": "ridge", "C": float("inf"), "controls": 0, "baselines": False, "intervals": False}


def mess3(stay: float = 0.9, own: float = 0.85) -> np.ndarray:
    """Mess3: three states that each prefer a symbol of their own; P(symbol, next state | state), [V, S, S].

    A state stays with probability `stay`; the state that is entered says its symbol with probability `own`.
    """
    move = np.where(np.eye(3), stay, (1 - stay) / 2)
    say = np.where(np.eye(3), own, (1 - own) / 2)  # [to, symbol]
    return move * say.T[:, None, :]


def rrxor() -> np.ndarray:
    """Random-Random-XOR: two fair bits, then their exclusive or, again and again; [2, 5, 5].

    States: 0 before the first bit; 1 and 2 after a 0 and a 1; 3 and 4 before an exclusive or of 0 and of 1.
    """
    process = np.zeros((2, 5, 5))
    for symbol, state, following in [(0, 0, 1), (1, 0, 2), (0, 1, 3), (1, 1, 4), (0, 2, 4), (1, 2, 3)]:
        process[symbol, state, following] = 0.5
    process[0, 3, 0] = process[1, 4, 0] = 1
    return process


PROCESSES = {"mess3": mess3(), "rrxor": rrxor()}


def at_rest(process: np.ndarray) -> np.ndarray:
    """The distribution of the hidden state that a step leaves as it is, [S]."""
    n_states = process.shape[1]
    unmoved = process.sum(0).T - np.eye(n_states)
    return np.linalg.lstsq(np.vstack([unmoved, np.ones(n_states)]), np.append(np.zeros(n_states), 1), rcond=None)[0]


def draw(process: np.ndarray, n: int, length: int, seed: Seed) -> tuple[np.ndarray, np.ndarray]:
    """`n` sequences of symbols, [N, L], and the belief after each symbol, P(hidden state | symbols so far), [N, L, S].

    The next symbol is drawn with its probability given all before it, so that no hidden state needs to be drawn.
    """
    rng, belief = np.random.default_rng(seed), np.tile(at_rest(process), (n, 1))
    symbols, beliefs = [], []
    for _ in range(length):
        up_to = next_symbols(process, belief).cumsum(1)
        symbols.append((rng.random((n, 1)) * up_to[:, -1:] >= up_to).sum(1))
        belief = np.einsum("ns,nst->nt", belief, process[symbols[-1]])
        belief /= belief.sum(1, keepdims=True)  # Bayes' rule
        beliefs.append(belief)
    return np.stack(symbols, 1), np.stack(beliefs, 1)


def next_symbols(process: np.ndarray, belief: np.ndarray) -> np.ndarray:
    """The probabilities of the next symbol that a belief gives, [..., V]."""
    return belief @ process.sum(2).T


def belief_model(n_symbols: int, seed: int) -> GPT2:
    """A GPT-2 of four layers with random weights, for sequences of `LENGTH` symbols."""
    sizes: dict[str, Any] = {"d_model": 64, "n_heads": 1, "d_mlp": 256, "n_layers": 4, "activation": "relu"}
    cfg = GPT2Config(**sizes, n_ctx=LENGTH, d_vocab=n_symbols, bos_token_id=None, tie_embeddings=False)
    return GPT2(cfg).init_weights(seed)


def learned(process: np.ndarray, steps: int, seed: int = 0) -> GPT2:
    """A model that learned to predict the next symbol."""
    model = belief_model(len(process), seed)

    def batch(step: int) -> list[Example]:
        return [Example(row[:-1], row[1:]) for row in draw(process, 128, LENGTH + 1, [seed, step])[0].tolist()]

    train(model, batch, TrainingSettings(steps=steps, batch_size=128, learning_rate=1e-3, warm_up_steps=steps // 15))
    return model.eval()


def belief_task(process: np.ndarray, n: int, seed: int = 1) -> pk.Task:
    """Sequences that no training saw, with the belief after each symbol, and these dealt out anew to all tokens."""
    symbols, belief = draw(process, n, LENGTH, seed)
    flat = belief.reshape(-1, belief.shape[-1])
    shuffled = np.random.default_rng(seed).permutation(flat).reshape(belief.shape)
    splits = np.where(np.arange(n) < 0.8 * n, "train", "test")
    labels = {"belief": belief, "shuffled": shuffled}
    return pk.Task("beliefs", symbols.tolist(), splits=splits, token_labels=labels, target="belief")


def r2_by_place(model: GPT2, task: pk.Task, concatenate: bool = False) -> pd.DataFrame:
    """R2 on test of least squares, mean over the states: a line for each place, a column for each label set."""
    points = ["resid_pre"] if concatenate else ["resid_pre", "ln_final"]
    acts = pk.extract(model, task, points=points, position="all", progress=False)
    how: dict[str, Any] = {"labels": ["belief", "shuffled"], "position": "all", "concatenate": concatenate}
    curves = pk.train_probes(acts, points=points, progress=False, **how, **LEAST_SQUARES)
    frame = curves.to_frame().query("split == 'test' and metric == 'r2'")
    return frame.pivot(index="place", columns="label", values="value")


def r2_of(features: np.ndarray, task: pk.Task) -> float:
    """R2 on test of least squares from other features of each token, [N, L, D], to the beliefs."""
    is_test = np.repeat(task.splits == "test", LENGTH)
    x = np.concatenate([features.reshape(len(is_test), -1), np.ones((len(is_test), 1))], 1)
    y = np.concatenate([*task.token_labels["belief"]])
    weights = np.linalg.lstsq(x[~is_test], y[~is_test], rcond=None)[0]
    errors = ((y - x @ weights)[is_test] ** 2).sum(0)
    return float((1 - errors / ((y[is_test] - y[is_test].mean(0)) ** 2).sum(0)).mean())


def draw_simplex(model: GPT2, task: pk.Task, file: Path) -> None:
    """The exact beliefs of test tokens in the triangle of the three states, and those decoded from the last layer."""
    import matplotlib.pyplot as plt

    acts = pk.extract(model, task, points="resid_post", layers=model.n_layers - 1, position="all", progress=False)
    probe = pk.train_probes(acts, position="all", progress=False, **LEAST_SQUARES).layers[0].probe
    test = np.repeat(task.splits == "test", LENGTH)
    exact = np.concatenate([*task.token_labels["belief"]])[test]
    decoded = probe.predict(acts["resid_post", model.n_layers - 1][torch.from_numpy(test)])
    corners = np.array([[0, 0], [1, 0], [0.5, 3**0.5 / 2]])
    figure, axes = plt.subplots(1, 2, figsize=(7, 3.2))
    for ax, points, name in zip(axes, (exact, decoded), ("exact beliefs", "decoded from the stream"), strict=True):
        ax.scatter(*(points @ corners).T, c=exact.clip(0, 1), s=2, linewidths=0)
        ax.set(title=name, aspect="equal", xlim=(-0.05, 1.05), ylim=(-0.05, 0.92))
        ax.axis("off")
    figure.savefig(file, dpi=100, bbox_inches="tight")
    plt.close(figure)


@app.command()
def belief(steps: int = 1500, n: int = 2000, picture: Path | None = None) -> None:
    """R2 of the belief by layer, of shuffled beliefs, of random weights, and of the next symbol's probabilities."""
    for name, process in PROCESSES.items():
        model, task = learned(process, steps), belief_task(process, n)
        random = belief_model(len(process), seed=1)
        exact = np.stack([*task.token_labels["belief"]])
        best = next_symbols(process, exact)
        with torch.no_grad():
            said = model(torch.tensor(task.inputs)).double().log_softmax(-1).numpy()
        entropy = -(best * np.log(best.clip(1e-300))).sum(-1).mean()
        print(f"\n{name}: loss {-(best * said).sum(-1).mean():.4f} nats, least possible {entropy:.4f}; {steps} steps")
        for title, one in (("trained", model), ("random weights", random)):
            table = pd.concat([r2_by_place(one, task), r2_by_place(one, task, concatenate=True)])
            print(title, table.to_string(float_format=lambda x: f"{x:.3f}"), sep="\n")
        print(f"from the exact probabilities of the next symbol: {r2_of(best, task):.3f}")
        print(f"from those that the model gives: {r2_of(np.exp(said), task):.3f}")
        if picture is not None and name == "mess3":
            draw_simplex(model, task, picture)


def pair_rows(file: Path) -> pd.DataFrame:
    """A row for each sentence: columns pairID, label, text; all good sentences come first, then all bad ones."""
    return pd.read_json(file, lines=True).melt("pairID", ["sentence_good", "sentence_bad"], "label", "text")


@app.command()
def pairs(model: str, files: list[Path]) -> None:
    """By file: the probe by sentence, its lead over words, the probe by pair at the output, the model's own choice."""
    loaded = pk.load_model(model)
    print("| file | layers, first to output | nested | minus the best baseline | probe, by pair | model, by pair |")
    print("|---|---|---|---|---|---|")
    for file in files:
        task = pk.load_task(pair_rows(file), group_column="pairID", name=file.stem)
        acts = pk.extract(loaded, task, points="resid_pre", bos=True, progress=False)
        results = pk.train_probes(acts, folds=5, controls=0, codelength=False, progress=False)
        assert isinstance(results, pk.ProbeResults)
        assert results.rows is not None
        curve = [layer.metrics["test"]["accuracy"] for layer in results.layers]
        lead = results.meta["lead"]
        at_output = dict(zip(results.rows.ids, results.rows.scores[results.layers[-1].place], strict=True))
        scores = np.array([at_output[row] for row in acts.ids])
        ids = loaded.need_tokenizer().encode_batch([str(text) for text in task.inputs], bos=True)
        nats = np.array([float(losses.sum()) for losses in pk.token_losses(loaded, ids)])
        by_pair = [f"{share:.2f}" for share in (preferred(scores), preferred(-nats))]
        cells = [file.stem, " ".join(f"{x:.2f}" for x in curve), in_brackets(*results.estimate[:2])]
        cells += [f"{in_brackets(lead['over'], lead['interval'], '+')} ({lead['baseline']})", *by_pair]
        print("| " + " | ".join(cells) + " |", flush=True)


def in_brackets(value: float, interval: Sequence[float] | None, sign: str = "") -> str:
    """A value with its interval."""
    assert interval is not None
    low, high = interval
    return f"{value:{sign}.3f} [{low:{sign}.3f}, {high:{sign}.3f}]"


def preferred(scores: np.ndarray) -> float:
    """The share of pairs whose good sentence has the higher score; a tie is half."""
    good, bad = scores.reshape(2, -1)
    return float(((good > bad) + 0.5 * (good == bad)).mean())


HALF, DIGITS = 4, 10
VOCABULARY = ["<eos>", *map(str, range(DIGITS)), "?", "no", "yes"]


def palindrome_words(rng: np.random.Generator) -> np.ndarray:
    """`2 * HALF` digits: a palindrome; or one with a digit of the second half changed, or with several."""
    first = rng.integers(DIGITS, size=HALF)
    second = first[::-1].copy()
    if rng.random() < 0.5:
        places = rng.choice(HALF, rng.integers(1, HALF + 1) if rng.random() < 0.5 else 1, replace=False)
        second[places] = (second[places] + rng.integers(1, DIGITS, size=len(places))) % DIGITS
    return np.concatenate([first, second])


def palindrome_examples(split: str, n: int, seed: Seed) -> list[Example]:
    """`n` sequences with their verdicts, the only target. Half of them are palindromes."""
    rng = np.random.default_rng([*np.atleast_1d(seed), split == "train"])
    made = []
    for _ in range(n):
        digits = palindrome_words(rng)
        verdict = "yes" if (digits == digits[::-1]).all() else "no"
        made.append(next_word_example(VOCABULARY, [*map(str, digits), "?", verdict], 2 * HALF))
    return made


def palindrome_world(steps: int, seed: int) -> World:
    """Digits, "?" and the verdict, for a GPT-2 of two layers with two heads each."""
    return World(
        name="palindrome-gpt",
        task="palindromes",
        vocabulary=VOCABULARY,
        make_config=lambda: gpt2_config(
            VOCABULARY, d_model=64, n_heads=2, n_layers=2, n_ctx=2 * HALF + 2, init_std=0.1
        ),
        settings=TrainingSettings(
            steps=steps, batch_size=128, learning_rate=2e-3, warm_up_steps=steps // 15, seed=seed
        ),
        examples=palindrome_examples,
        prompt="1 2 2 1 ?",
    )


def palindrome_pairs(place: int, n: int, seed: int = 0) -> Iterator[dict[str, str]]:
    """Pairs of a palindrome and the same with another digit at `place`, in the first half."""
    rng = np.random.default_rng([seed, place])
    for _ in range(n):
        first = rng.integers(DIGITS, size=HALF)
        clean = np.concatenate([first, first[::-1]])
        corrupted = clean.copy()
        corrupted[place] = (clean[place] + rng.integers(1, DIGITS)) % DIGITS
        texts = (" ".join([*map(str, digits), "?"]) for digits in (clean, corrupted))
        yield dict(zip(("clean", "corrupted"), texts, strict=True)) | {"clean_answer": "yes", "corrupted_answer": "no"}


@app.command()
def palindrome(out: Path, steps: int = 2500, seed: int = 0, n: int = 100) -> None:
    """For each changed digit: the recovery by head and by token of a patch, and the attention from its mirror image.

    Attention is that on palindromes, then on the changed sequences. OUT gets the model, OUT/model, and the pairs,
    OUT/changed-0.csv and so on.
    """
    trained = train_world(palindrome_world(steps, seed), out / "model")
    model, last = trained.model, 2 * HALF - 1
    print(f"seed {seed}: right on {trained.figures['exact']:.2%} of {trained.figures['n']:.0f} new sequences")
    print("| changed | mirror image | z: 0.0 0.1 1.0 1.1 | attn_out.0 | attn_out.1 | attention 0.0 | attention 0.1 |")
    print("|---|---|---|---|---|---|---|")
    for place in range(HALF):
        table = pd.DataFrame(palindrome_pairs(place, n))
        table.to_csv(out / f"changed-{place}.csv", index=False)
        heads, tokens = pk.patch_pairs(
            model, pk.load_pairs(out / f"changed-{place}.csv", model), points=["z", "attn_out"]
        ).grids
        by_head = " ".join(f"{x:.2f}" for x in heads.recovery.flatten())
        best = [f"{row.max():.2f} at {row.argmax()}" for row in tokens.recovery]
        weights = [attention_to(model, list(table[text]), last - place, place) for text in ("clean", "corrupted")]
        attention = [f"{clean:.2f}, {corrupted:.2f}" for clean, corrupted in zip(*weights, strict=True)]
        print("| " + " | ".join([str(place), str(last - place), by_head, *best, *attention]) + " |")


def attention_to(model: LanguageModel, texts: list[str], query: int, key: int) -> list[float]:
    """The mean attention of each head of layer 0 from one token to another."""
    acts = pk.extract(model, texts, points="attn_pattern", layers=0, progress=False)
    return torch.stack([*acts.per_text(("attn_pattern", 0))])[:, :, query, key].mean(0).tolist()


if __name__ == "__main__":
    app()

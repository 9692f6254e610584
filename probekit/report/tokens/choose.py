"""Choose the texts that are shown: mistakes, the least and the most confident predictions, and others at random.

Axes: N rows, C classes.
"""

import numpy as np

SHARES = (("mistake", 0.3), ("least confident", 0.2), ("most confident", 0.2))  # of the texts; the rest are random


def choose_texts(
    n: int, seed: int, candidates: np.ndarray, confidence: np.ndarray | None, mistaken: np.ndarray | None
) -> tuple[np.ndarray, list[str]]:
    """Rows and why each was chosen, mistakes first; each row once.

    Among mistakes the most confident come first. Where there are fewer of a kind, random rows take their places.

    Args:
        n: how many, at most.
        seed: of the random ones.
        candidates: rows to choose from, int64.
        confidence: of the prediction of each candidate, larger is more confident; None chooses all at random.
        mistaken: whether each candidate's prediction is wrong; None: unknown.
    """
    left = np.ones(len(candidates), dtype=bool)
    chosen: list[int] = []
    why: list[str] = []

    def take(order: np.ndarray, most: int, reason: str) -> None:
        found = [int(i) for i in order if left[i]][: min(most, n - len(chosen))]
        left[found] = False
        chosen.extend(found)
        why.extend([reason] * len(found))

    if confidence is not None:
        rising = np.argsort(confidence, kind="stable")
        orders = {"least confident": rising, "most confident": rising[::-1]}
        if mistaken is not None:
            orders["mistake"] = rising[::-1][mistaken[rising[::-1]]]
        for reason, share in SHARES:
            take(orders.get(reason, rising[:0]), round(n * share), reason)
    take(np.random.default_rng(seed).permutation(len(candidates)), n, "random")
    return candidates[np.array(chosen, dtype=np.int64)], why


def confidence_of(scores: np.ndarray, centre: float = 0.0) -> np.ndarray:
    """How far each prediction is from the threshold, [N], or the largest score above the second, of [N, C]."""
    if scores.ndim == 1:
        return np.abs(scores - centre)
    top = np.sort(scores, axis=1)
    return top[:, -1] - top[:, -2]

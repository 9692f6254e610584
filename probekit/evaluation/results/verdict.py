"""Whether a quoted score says anything: above chance, and better than what needs no probe. Decided from intervals."""

from collections.abc import Sequence
from typing import Literal

from probekit.evaluation.results.data import EMBEDDING, ProbeData
from probekit.evaluation.results.wording import metric_name, number_text
from probekit.evaluation.scores.bootstrap import too_few_groups

Standing = Literal["not above chance", "worse", "no better", "ahead"]
Ends = Sequence[float] | None

_CHANCE = {"auroc": 0.5, "r2": 0.0, "spearman": 0.0}
MAJORITY = ("majority", "mean")  # the baselines that know nothing of the text
_NAMES = {
    "majority": "the most frequent class",
    "mean": "the mean",
    "bag-of-words": "a bag of words",
    "bag-of-bigrams": "a bag of words and bigrams",
    "length": "the length of the text",
    "word-type": "a table of words",
    "embedding": "the embedding",
    "nuisance": "the nuisances alone",
    "random init": "untrained weights",
}


def standing(score: Ends, chance: float | None, baseline: str | None, lead: Ends) -> Standing | None:
    """What a score is worth.

    Args:
        score: the interval of the score; None without one.
        chance: what a guess scores; None where that is not known.
        baseline: the best baseline.
        lead: the paired interval of the score minus that baseline's, which decides where the baseline is a guess.

    Returns:
        None where no interval decides.
    """
    if baseline in MAJORITY and lead is not None:
        return "not above chance" if lead[0] <= 0 else "ahead"
    if score is not None and chance is not None and score[0] <= chance:
        return "not above chance"
    if lead is None:
        return None
    return "ahead" if lead[0] > 0 else "worse" if lead[1] < 0 else "no better"


def standing_of(data: ProbeData) -> Standing | None:
    """The standing of the score to quote; None also where no layer was selected."""
    if data.quoted is None:
        return None
    lead = data.meta.get("lead") or {}
    return standing(data.quoted.interval, chance_of(data), lead.get("baseline"), lead.get("interval"))


def chance_level(metric: str, guess: float | None) -> float | None:
    """What a guess scores by a metric; `guess` is what the majority class scores, which most metrics depend on."""
    return _CHANCE.get(metric, guess)


def chance_of(data: ProbeData) -> float | None:
    """What a guess scores on test; None where no baseline says it.

    The majority class of train may be the rarer one of test, by chance. So an accuracy has the better of two guesses:
    always that class, or each class as often as train has it.
    """
    guesses = [one.metrics["test"].get(data.headline) for one in data.baselines if one.name in MAJORITY]
    guess = next((value for value in guesses if value is not None), None)
    counts = data.meta.get("counts", {})
    if data.headline == "accuracy" and guess is not None and {"train", "test"} <= counts.keys():
        of_train, of_test = (sum(counts[split].values()) for split in ("train", "test"))
        both = sum(n * counts["test"].get(name, 0) for name, n in counts["train"].items())
        guess = max(guess, both / max(1, of_train * of_test))
    return chance_level(data.headline, guess)


def verdict(data: ProbeData) -> str:
    """The result in one sentence where there is none to speak of; empty for a score that is ahead, or undecided.

    With too few groups for an interval, a score that is not above the best baseline's is still said to be so.
    """
    found = standing_of(data)
    if found == "not above chance":
        return not_above_chance(data.headline, chance_of(data))
    lead, few = data.meta.get("lead"), too_few_groups(data.meta.get("test_groups"))
    quoted = data.quoted
    is_behind = found is None and few and lead is not None and lead["over"] <= 0
    if lead is None or quoted is None or not (is_behind or found in ("worse", "no better")):
        return ""
    what = f"{_NAMES.get(lead['baseline'], lead['baseline'])} ({metric_name(data.headline)} "
    what += f"{number_text(quoted.value - lead['over'])})"
    if is_behind:
        return f"Not ahead of {what}; too few groups for an interval."
    return f"{'Worse' if found == 'worse' else 'No better'} than {what}."


def of_embedding(data: ProbeData) -> str:
    """That the lead is not over the embedding, where the quoted place is the embedding; else empty."""
    quoted = data.quoted
    if quoted is None or quoted.layer is not data.layers[0] or EMBEDDING not in {one.name for one in data.baselines}:
        return ""
    return "the best place is the embedding itself, so the embedding is not one of these baselines"


def not_above_chance(metric: str, chance: float | None) -> str:
    """The verdict on a score that a guess, which scores `chance`, may have too."""
    level = "" if chance is None else f" (chance level: {metric_name(metric)} {number_text(chance)})"
    return f"Not above chance{level}."

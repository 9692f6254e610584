"""Whether counts may come from stated probabilities."""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

from scipy.stats import chi2_contingency, chisquare


def fits(counts: Sequence[int], probabilities: Sequence[float]) -> bool:
    """Whether the counts may come from the probabilities (the seed is fixed, so no test fails by chance)."""
    total = sum(counts)
    return chisquare(counts, [p * total for p in probabilities]).pvalue > 1e-3


def uniform(drawn: Iterable[Hashable], among: Iterable[Hashable]) -> bool:
    """Whether what was drawn may be uniform over `among`, and is nothing else."""
    counts, among = Counter(drawn), list(among)
    return set(counts) <= set(among) and fits([counts[one] for one in among], [1 / len(among)] * len(among))


def independent(a: Iterable[Hashable], b: Iterable[Hashable]) -> bool:
    """Whether two drawings side by side may be independent of each other."""
    counts = Counter(zip(a, b, strict=True))
    rows, columns = {one for one, _ in counts}, {other for _, other in counts}
    table = [[counts[row, column] for column in columns] for row in rows]
    return chi2_contingency(table).pvalue > 1e-3  # pyright: ignore[reportAttributeAccessIssue]

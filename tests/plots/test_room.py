"""Nothing is cut off in silence: comparisons beyond the axis, long titles, small axes."""

import re

import pytest
from drawn_curves import draw, make, texts

from probekit.evaluation import LayerResult, ProbeResults

CONTROL = [1.0, 0.96, 0.90, 0.88, 0.69, 0.68]


def compared(values: list[float], control: list[float], **how) -> ProbeResults:
    results = make(6, wanted=range(6), values=values, **how)
    layers = [LayerResult(**{**vars(x), "control": y}) for x, y in zip(results.layers, control, strict=True)]
    return ProbeResults(layers, results.baselines, results.meta, results.random_init)


@pytest.mark.parametrize(
    ("level", "control", "notes"),
    [
        (0.55, CONTROL, []),  # includes them: that takes less than half of the height
        (0.3, CONTROL, ["↑ control task up to 1.00"]),
        (0.3, CONTROL[::-1], ["↑ control task up to 1.00"]),
        (0.9, [0.1, 0.8, 0.8, 0.85, 0.8, 0.8], ["↓ control task down to 0.10"]),
        (0.5, [0.01, 0.5, 0.5, 0.5, 0.5, 0.99], ["↓ control task down to 0.01"]),  # no room for both ends
        (0.1, [0.9, 1.0, 0.9, 0.9, 0.9, 0.95], ["↑ control task 0.90 to 1.00"]),
    ],
)
@pytest.mark.parametrize("n", [1, 2])
def test_every_value_of_a_comparison_is_inside_the_axes_or_announced(level, control, notes, n):
    values = [level - 0.01, level, level, level + 0.02, level, level]
    several = [compared(values, control, baselines={}, model=f"model{i}") for i in range(n)]
    ax = draw(*several)
    assert sorted(re.findall(r"[↑↓].*", texts(ax))) == sorted(notes)
    heights = ax.transData.transform([(0, value) for value in control])[:, 1]
    for value, height in zip(control, heights, strict=True):
        announced = any(text[0] == "↑" and value <= float(text.split()[-1]) for text in notes if height > ax.bbox.y1)
        announced |= any(text[0] == "↓" and value >= float(text.split()[-1]) for text in notes if height < ax.bbox.y0)
        assert announced or ax.bbox.y0 <= height <= ax.bbox.y1
    assert all(ax.bbox.y0 < y < ax.bbox.y1 for y in ax.transData.transform([(0, value) for value in values])[:, 1])

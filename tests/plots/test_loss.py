"""The picture of a training run's loss."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from probekit.models.training import TrainingResult
from probekit.plots import plot_loss, save_loss_plot
from probekit.plots.loss import SPAN, running_mean

LOSSES = [3.0 * 0.99**step + 0.1 * (step % 3) for step in range(130)]


def test_both_lines_hold_what_they_say():
    each, mean = plot_loss(LOSSES, "tiny", Figure().subplots()).lines
    assert np.array_equal(np.asarray(each.get_xdata()), np.arange(1, 131))
    assert np.array_equal(np.asarray(each.get_ydata()), LOSSES)
    assert np.allclose(np.asarray(mean.get_ydata()), [mean_around(i) for i in range(130)])


def test_the_heading_is_the_mean_of_the_last_hundred_as_everywhere():
    ax = plot_loss(LOSSES, "tiny", Figure().subplots())
    assert f"{TrainingResult(LOSSES).mean_loss():.4f} nats over the last 100 steps" in ax.texts[0].get_text()


@pytest.mark.parametrize(("losses", "least"), [([4.0, 2.0, 1.5, 1.4], 2), ([4.0 * 0.9**i for i in range(90)], 4)])
def test_the_scale_has_numbers_that_people_read(losses, least):
    figure = Figure()
    ax = plot_loss(losses, "tiny", figure.subplots())
    figure.draw_without_rendering()
    low, high = ax.get_ylim()
    shown = [label.get_text() for label in ax.get_yticklabels() if low <= float(label.get_text()) <= high]
    assert least <= len(shown) <= 14
    assert not any("e" in text or "$" in text for text in shown)


def mean_around(i: int) -> float:
    window = LOSSES[max(i - 130 // SPAN, 0) : i + 130 // SPAN + 1]
    return sum(window) / len(window)


def test_the_mean_of_one_step_is_its_loss():
    assert running_mean([2.5]).tolist() == [2.5]


def test_the_same_losses_give_the_same_bytes(tmp_path):
    one, two = (save_loss_plot(LOSSES, "$x$\x1b[31m<&>", tmp_path / name) for name in ("a", "b"))
    assert one.read_bytes() == two.read_bytes()
    assert one.with_suffix(".svg").read_bytes() == two.with_suffix(".svg").read_bytes()
    assert "\x1b" not in one.with_suffix(".svg").read_text()

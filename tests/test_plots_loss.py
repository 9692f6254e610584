"""The picture of a training run's loss."""

import numpy as np
from matplotlib.figure import Figure

from probekit.plots import plot_loss, save_loss_plot
from probekit.plots.loss import AROUND, running_mean

LOSSES = [3.0 * 0.99**step + 0.1 * (step % 3) for step in range(130)]


def test_both_lines_hold_what_they_say():
    each, mean = plot_loss(LOSSES, "tiny", Figure().subplots()).lines
    assert np.array_equal(np.asarray(each.get_xdata()), np.arange(1, 131))
    assert np.array_equal(np.asarray(each.get_ydata()), LOSSES)
    assert np.allclose(np.asarray(mean.get_ydata()), [mean_around(i) for i in range(130)])


def mean_around(i: int) -> float:
    reach = min(AROUND, i, 129 - i)
    return sum(LOSSES[i - reach : i + reach + 1]) / (2 * reach + 1)


def test_the_mean_of_one_step_is_its_loss():
    assert running_mean([2.5]).tolist() == [2.5]


def test_the_same_losses_give_the_same_bytes(tmp_path):
    one, two = (save_loss_plot(LOSSES, "$x$\x1b[31m<&>", tmp_path / name) for name in ("a", "b"))
    assert one.read_bytes() == two.read_bytes()
    assert one.with_suffix(".svg").read_bytes() == two.with_suffix(".svg").read_bytes()
    assert "\x1b" not in one.with_suffix(".svg").read_text()

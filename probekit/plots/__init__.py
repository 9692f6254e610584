"""Pictures of results. Text from data is drawn literally: no mathtext, no control characters."""

from probekit.plots.cascade import plot_cascade, save_cascade_plot
from probekit.plots.curve import plot_accuracy_by_layer, save_plot
from probekit.plots.grids import (
    plot_grids,
    plot_positions,
    plot_transfer,
    save_grids_plot,
    save_positions_plot,
    save_transfer_plot,
)
from probekit.plots.loss import plot_loss, save_loss_plot
from probekit.plots.panels import plot_curves, save_curves_plot
from probekit.plots.params import plot_flop_shares, save_flop_shares
from probekit.plots.projection import plot_projection, save_projection_plot
from probekit.plots.reading import plot_reading, save_reading_plot
from probekit.plots.scores import plot_scores, save_scores_plot
from probekit.plots.side_by_side import plot_comparison, save_comparison_plot
from probekit.plots.sweep import plot_sweep, save_sweep_plot

__all__ = [
    "plot_accuracy_by_layer",
    "plot_cascade",
    "plot_comparison",
    "plot_curves",
    "plot_flop_shares",
    "plot_grids",
    "plot_loss",
    "plot_positions",
    "plot_projection",
    "plot_reading",
    "plot_scores",
    "plot_sweep",
    "plot_transfer",
    "save_cascade_plot",
    "save_comparison_plot",
    "save_curves_plot",
    "save_flop_shares",
    "save_grids_plot",
    "save_loss_plot",
    "save_plot",
    "save_positions_plot",
    "save_projection_plot",
    "save_reading_plot",
    "save_scores_plot",
    "save_sweep_plot",
    "save_transfer_plot",
]

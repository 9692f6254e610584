"""The functions of upper rooms that are methods of results: `results.plot()`, `.score()`, `.export()` and their like.

Importing this file enters them in `probekit.registries` and imports none of the rooms.
"""

import importlib
from typing import Any

from probekit import registries

_HOMES = {
    "encode_activations": "activations.latents",
    "export_results": "export.export",
    "plot_accuracy_by_layer": "plots.curve",
    "plot_cascade": "plots.cascade",
    "plot_causal": "plots.causal",
    "plot_comparison": "plots.side_by_side",
    "plot_curves": "plots.panels",
    "plot_grids": "plots.grids",
    "plot_patching": "plots.grids",
    "plot_positions": "plots.grids",
    "plot_projection": "plots.projection",
    "plot_sweep": "plots.sweep",
    "plot_transfer": "plots.grids",
    "plot_watched": "plots.monitor",
    "score_texts": "scoring.score",
    "token_view": "report.tokens.notebook",
}


def _later(home: str, name: str) -> Any:
    def call(*args: Any, **options: Any) -> Any:
        return getattr(importlib.import_module(f"probekit.{home}"), name)(*args, **options)

    return call


registries.METHODS.update({name: _later(home, name) for name, home in _HOMES.items()})

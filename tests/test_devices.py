"""Devices without float64, shown by a stand-in: Apple's MPS is no part of a CI machine."""

from typing import Any

import torch

from probekit.evaluation.fits.layer import features_of
from probekit.machine.devices import has_float64, where_float64
from probekit.points import Place
from probekit.probes.ridge import ridge_path

X = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
Y = X[:, :1].double()


class OnMps:
    """As much of a tensor on MPS as is read before it moves; everything else would fail."""

    device = torch.device("mps")

    def cpu(self) -> torch.Tensor:
        return X

    def detach(self) -> "OnMps":
        return self


class Activations(dict[Any, Any]):
    """Places and their tensors, with the names of the examples."""

    ids = ("0",) * 30


def test_only_mps_has_no_float64() -> None:
    assert not has_float64(torch.device("mps"))
    assert has_float64(torch.device("cpu"))
    assert has_float64(torch.device("cuda:1"))
    assert where_float64(X) is X


def test_features_move_before_anything_is_computed() -> None:
    acts: Any = Activations({("resid_pre", 0): OnMps()})
    assert features_of(acts, Place("resid_pre", 0)) is X
    rows: Any = OnMps()
    moved, here = ridge_path(rows, Y).weights(1.0), ridge_path(X, Y).weights(1.0)
    assert all((one == other).all() for one, other in zip(moved, here, strict=True))

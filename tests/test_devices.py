"""Devices without float64, shown by a stand-in for Apple's MPS; and free memory, within the limits that hold here."""

from pathlib import Path
from typing import Any

import torch

from probekit.evaluation.fits.layer import features_of
from probekit.machine.devices import at_most, free_bytes, free_in_groups, has_float64, where_float64
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


def write_groups(folder: Path, own: str, files: dict[str, str]) -> tuple[Path, Path]:
    """Control groups as the kernel shows them."""
    for name, text in files.items():
        (folder / "fs" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "fs" / name).write_text(text)
    (folder / "cgroup").write_text(own)
    return folder / "cgroup", folder / "fs"


def test_free_memory_is_what_the_tightest_control_group_leaves(tmp_path):
    files = {
        "slurm/memory.max": "1000\n",
        "slurm/memory.current": "900\n",
        "slurm/memory.stat": "anon 500\ninactive_file 300\nactive_file 50\nfile 400\n",
        "slurm/job/memory.max": "max\n",
        "slurm/job/memory.current": "700\n",
        "slurm/job/step/memory.max": "5000\n",
        "slurm/job/step/memory.current": "10\n",
    }
    assert free_in_groups(*write_groups(tmp_path, "0::/slurm/job/step\n", files)) == 1000 - 900 + 350
    assert free_in_groups(*write_groups(tmp_path, "0::/\n", {})) is None


def test_free_memory_of_control_groups_of_the_first_version(tmp_path):
    files = {
        "memory/job/memory.limit_in_bytes": "800\n",
        "memory/job/memory.usage_in_bytes": "900\n",
        "memory/job/memory.stat": "inactive_file 9\ntotal_inactive_file 150\ntotal_active_file 0\n",
        "memory/memory.limit_in_bytes": f"{1 << 62}\n",
        "memory/memory.usage_in_bytes": "1\n",
    }
    assert free_in_groups(*write_groups(tmp_path, "4:memory:/job\n0::/\n", files)) == 50


def test_a_limit_bounds_free_memory_while_it_lasts():
    cpu = torch.device("cpu")
    before = free_bytes(cpu)
    with at_most(123), at_most(1 << 60):
        assert free_bytes(cpu) == 123
    with at_most(None):
        assert before is None or free_bytes(cpu) != 123

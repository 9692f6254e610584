"""Free memory is bounded by the machine, by control groups, and by what was given."""

from pathlib import Path

import torch

from probekit.machine.devices import at_most, free_bytes, free_in_groups


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

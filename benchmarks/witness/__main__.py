"""A record of what probekit does, and the differences of two records: no capability may change unseen.

    PYTHONPATH=TREE python benchmarks/witness --out before.json
    PYTHONPATH=TREE python benchmarks/witness --only families,parts --out some.json
    python benchmarks/witness compare before.json after.json

PYTHONPATH chooses the tree; nothing here depends on how its modules are laid out. Some minutes on two cores.
"""

import argparse
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))


def main() -> int:
    """Take a record, or compare two."""
    if sys.argv[1:2] == ["compare"]:
        from differences import compare

        return compare(sys.argv[2:])
    parser = argparse.ArgumentParser(prog="witness", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("witness.json"), help="the record; .gz compresses it")
    parser.add_argument("--only", default="", help="scenes with commas between them; errors are the bad inputs")
    parser.add_argument("--jobs", type=int, default=2, help="scenes at once")
    parser.add_argument("--keep", action="store_true", help="keep the working folders")
    parser.add_argument("--list", action="store_true", help="list the scenes")
    asked = parser.parse_args()
    import bad_inputs  # noqa: F401  enters its scenes
    from scenes import SCENES

    if asked.list:
        print("\n".join(SCENES))
        return 0
    chosen = [name for name in SCENES if not asked.only or name in asked.only.split(",")]
    root = Path(tempfile.mkdtemp(prefix="witness-")).resolve()
    prepare(root)
    records = together(chosen, root, asked.jobs)
    from record import write

    write(asked.out.resolve(), {"tree": tree(), "scenes": records})
    print(f"{asked.out}: {sum(len(one) for one in records.values())} steps of {len(records)} scenes")
    if not asked.keep:
        shutil.rmtree(root, ignore_errors=True)
    return 0


def tree() -> str:
    """The commit that is watched."""
    import probekit

    folder = Path(probekit.__file__).parent
    asked = ["git", "-C", str(folder), "describe", "--always", "--dirty"]
    return subprocess.run(asked, capture_output=True, text=True).stdout.strip() or "unknown"


def prepare(root: Path) -> None:
    """Everything that is the same for all scenes: environment, one thread, and warm imports."""
    (root / "home").mkdir()
    os.environ.update(
        WITNESS_ROOT=str(root),
        OMP_NUM_THREADS="1",
        HF_HUB_OFFLINE="1",
        PROBEKIT_CACHE=str(root / "cache"),
        HF_HOME=str(root / "home"),
        MPLBACKEND="agg",
        COLUMNS="120",
        TOKENIZERS_PARALLELISM="false",
        TRANSFORMERS_VERBOSITY="error",
        HF_HUB_DISABLE_PROGRESS_BARS="1",
    )
    import matplotlib as mpl
    import matplotlib.pyplot
    import pandas  # noqa: F401
    import sklearn.linear_model  # noqa: F401
    import torch
    import transformers

    mpl.use("agg")
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    import probekit

    for name in probekit.__all__:
        getattr(probekit, name)
    importlib.import_module("probekit.cli.main")
    import samples

    for config, model, _ in samples.FAMILIES.values():
        getattr(transformers, config)
        getattr(transformers, model)


def together(chosen: list[str], root: Path, jobs: int) -> dict[str, Any]:
    """Run the scenes, each in a process of its own, `jobs` at once."""
    from record import read

    waiting, running, done = list(reversed(chosen)), dict[int, tuple[str, float]](), dict[str, Any]()
    while waiting or running:
        while waiting and len(running) < jobs:
            name = waiting.pop()
            sys.stdout.flush()
            pid = os.fork()
            if pid == 0:
                alone(name, root)
            running[pid] = name, time.monotonic()
        pid, status = os.wait()
        if pid not in running:
            continue
        name, begun = running.pop(pid)
        file = root / f"{name}.json"
        done[name] = read(file) if file.exists() else {"failed": os.waitstatus_to_exitcode(status)}
        print(f"{name}: {time.monotonic() - begun:.1f} s, {len(done[name])} steps", flush=True)
    return {name: done[name] for name in chosen}


def alone(name: str, root: Path) -> None:
    """In a process of its own: one scene, in an empty folder."""
    import traceback

    from record import fresh, write
    from scenes import SCENES, Steps

    steps, code = Steps(), 0
    try:
        os.chdir(fresh(root / name))
        SCENES[name](steps)
    except BaseException:
        steps.records["failed"] = traceback.format_exc().splitlines()[-1]
        traceback.print_exc()
        code = 1
    write(root / f"{name}.json", steps.records)
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())

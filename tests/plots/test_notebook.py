"""A notebook shows every picture once, whatever `.plot()` returns, and progress without being asked."""

from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")

ROOT = Path(__file__).parents[2]
SETUP = f"""
import sys
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests")!r}, {str(ROOT / "tests" / "plots")!r}]
import matplotlib.pyplot as plt
from drawn_curves import make
from tests.made_up_effects import made_up
import made_up_grids, test_projection, test_side_by_side
from probekit.causal.results.results import CausalResults
from probekit.evaluation import ProbeCurves
from probekit.verbs.train_probes import train_probes
from probekit.sweeps.data import SweepRow, SweepRun
from probekit.sweeps.results import SweepResults
from probekit.machine.progress import parts_line, progress_bar
acts = test_projection.world(2)
results = train_probes(acts, **test_projection.HOW)
causal = CausalResults(made_up())
about = ("y", "p", "lda", "accuracy", 2, 40, 20, "p.0", 0, 0.5, 0.1)
row = SweepRow(*about, 0.9, 0.8, 0.95, "majority", 0.5, 0.4, 0.3, 0.5)
sweep = SweepResults([SweepRun("a task", "m", 1.0, (row,))], {{"tasks": ["a task"], "models": ["m"]}})
curves = ProbeCurves([make(2), make(2, point="attn_out")])
"""
KINDS = {
    "results": "results.plot()",
    "projection": "results.plot_projection(acts)",
    "curves": "curves.plot()",
    "comparison": "test_side_by_side.make().plot()",
    "causal": "causal.plot(width=3.25)",
    "patching": "causal.plot_patching()",
    "positions": "made_up_grids.positions().plot()",
    "transfer": "made_up_grids.transfer().plot()",
    "sweep": "sweep.plot()",
}
OWN_AXES = """
fig, axes = plt.subplots(1, 2)
make(2).plot(axes[0])
assert plt.gca() is axes[1]
assert not axes[1].has_data() and axes[1].get_title() == ''
assert plt.get_fignums() == [fig.number]
"""
PROGRESS = """
for show in (None, True, False):
    with progress_bar(f"bar {show}", "texts", total=1, show=show) as bar:
        bar.advance()
    with parts_line(show) as line:
        line.part(f"part {show}")
"""
OTHERS = {  # name -> (cell, pictures)
    "not the last line": ("kept = curves.plot()\nNone", 1),
    "in another cell": ("kept", 1),
    "on own axes": ("fig, axes = plt.subplots(1, 2)\nbefore = plt.gca()\nmake(2).plot(axes[0])", 1),
    "own axes are as they were": (OWN_AXES, 1),
    "after an error": ("try:\n    curves.plot(width='wide')\nexcept Exception as error:\n    print(error)", 0),
    "progress": (PROGRESS, 0),
}


@pytest.fixture(scope="module")
def cells() -> dict[str, list[dict]]:
    """The outputs of each cell, of a kernel's process."""
    code = {"setup": SETUP, **KINDS, **{name: cell for name, (cell, _) in OTHERS.items()}}
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in code.values()])
    spec = {"name": "python3", "display_name": "python3", "language": "python"}
    book.metadata["kernelspec"] = spec
    client = nbclient.NotebookClient(book, kernel_name="python3", timeout=300)
    client.execute(cwd=str(ROOT))
    return dict(zip(code, (cell.outputs for cell in book.cells), strict=True))


def pictures(outputs: list[dict]) -> int:
    return sum("image/png" in output.get("data", {}) for output in outputs)


def test_every_picture_is_shown_once(cells: dict[str, list[dict]]) -> None:
    assert {name: pictures(cells[name]) for name in KINDS} == dict.fromkeys(KINDS, 1)
    assert {name: pictures(cells[name]) for name in OTHERS} == {name: n for name, (_, n) in OTHERS.items()}


def test_progress_is_shown_unless_it_is_refused(cells: dict[str, list[dict]]) -> None:
    shown = "".join(str(output) for output in cells["progress"])
    for what in ("bar", "part"):
        assert [f"{what} {show}" in shown for show in (None, True, False)] == [True, True, False]
    said = "".join(output.get("text", "") for output in cells["setup"] if output.get("name") == "stderr")
    assert "fitting probes" in said  # train_probes, without being asked

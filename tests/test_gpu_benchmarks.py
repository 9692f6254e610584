"""benchmarks/gpu.py runs on a CPU, and the page about large runs has the tables of benchmarks/large_runs.py."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from store_cases import plan_of
from tiny_configs import tiny_model

from probekit import extract
from probekit.activations.store import format as store_format
from probekit.activations.store import writer
from probekit.errors import UsageError
from probekit.files.durable import MAX_JSON_BYTES, seal
from probekit.models.accounting import account
from probekit.verification import speed

REPO = Path(__file__).parents[1]


def benchmark(name: str) -> ModuleType:
    """A file of benchmarks/ as a module."""
    spec = importlib.util.spec_from_file_location(f"benchmarks_{name}", REPO / f"benchmarks/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


@pytest.mark.filterwarnings("ignore")
def test_every_figure_of_a_gpu_is_in_the_table(tmp_path, capsys, monkeypatch) -> None:
    gpu: Any = benchmark("gpu")
    monkeypatch.setattr(gpu, "TINY", dict([*gpu.TINY.items()][1:]))
    monkeypatch.setattr(gpu, "LABELLED", {True: 60})
    monkeypatch.setattr(speed, "SQUARES", {"cpu": (16,)})
    monkeypatch.setattr(speed, "SECONDS_OF_PRODUCTS", 0.001)
    monkeypatch.setattr(speed, "FEWEST", 6)
    out = tmp_path / "gpu.json"
    how = ["--rounds", "2", "--seconds", "1e-6", "--dtype", "fp32", "--scratch", str(tmp_path), "--out", str(out)]
    gpu.main(["--tiny", "--device", "cpu", *how])
    head, rule, row = (line for line in capsys.readouterr().out.splitlines() if line.startswith("|"))
    assert head.count("|") == rule.count("|") == row.count("|") == len(gpu.HEAD) + 1
    assert "WRONG" not in row
    (found,) = json.loads(out.read_text())["shapes"]
    assert found["error"] <= found["bound"] == 5e-6
    assert found["speed"]["difference"] < 1e-5
    assert found["places"]["tokens_per_second"].keys() == {"last", "all", "store, last", "store, all"}
    assert sorted(tmp_path.iterdir()) == [out], "stores are removed"


def test_the_page_has_the_tables_that_the_sizes_give() -> None:
    """`python benchmarks/large_runs.py --page docs/large-runs.md` writes them again."""
    large: Any = benchmark("large_runs")
    given = large.Given()
    page = (REPO / "docs/large-runs.md").read_text(encoding="utf-8")
    assert all(table in page for table in large.tables(given).values())
    assert large.filled(page, given) == page


def test_figures_of_large_runs_follow_from_the_account() -> None:
    large: Any = benchmark("large_runs")
    given = large.Given()
    flops = account("7B", large.shape("7B"), 500).flops
    assert large.flops_per_token("7B", given) == (sum(flops.values()) - flops["head"]) / 500
    assert abs(large.flops_per_token("7B", given) / (2 * (6.74e9 - 2 * 131e6)) - 1) < 0.03, "two for each weight"
    assert large.choices("7B", given)["every token, all layers"] == 4096 * 32
    assert large.rate("7B", given) == 0.4 * 989e12 / large.flops_per_token("7B", given)
    rows = large.rows_that_equal_sums("7B", 2)
    assert rows * 2 * 4096 * 32 == large.sums_bytes("7B")
    assert large.sums_flops("7B") == 2 * 4096**2 * 32
    assert large.sums_share("7B", given) == large.sums_flops("7B") / 67e12 * large.rate("7B", given)
    assert (large.power(1e9), large.power(1.7e10)) == ("1e9", "1.7e10")


def test_a_manifest_can_name_as_many_shards_as_a_store_may_have() -> None:
    few, more = (len(seal({"records": ["a" * 64] * n})[0]) for n in (1000, 2000))
    assert few + (more - few) / 1000 * store_format.MAX_RECORDS < MAX_JSON_BYTES - (1 << 20)


@pytest.mark.parametrize(("limit", "what"), [("MAX_ROWS", "texts"), ("MAX_RECORDS", "shards")])
def test_a_store_that_could_not_be_finished_is_refused_at_once(tmp_path, monkeypatch, limit, what) -> None:
    monkeypatch.setattr("probekit.activations.plan.build.SHARD_BYTES", 100)
    texts = [[3, 4], [5], [6, 7, 8], [9, 10]]
    assert len(plan_of(tiny_model("gpt2"), _task(texts), batch_tokens=2, block_nodes=2).shards) > 2
    monkeypatch.setattr(writer, limit, 2)
    with pytest.raises(UsageError, match=f"4 {what} are more than the [12] of one store; split the task"):
        extract(tiny_model("gpt2"), texts, batch_tokens=2, block_nodes=2, out=tmp_path / "store")
    assert list(tmp_path.iterdir()) == []


def _task(texts: list[list[int]]) -> Any:
    from probekit.tasks.base import Task

    return Task("drawn", texts)

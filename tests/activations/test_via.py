"""A store keeps whose code computed it, and loads the same model again; a stand-in takes the adapter's place."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from store_cases import assert_equal, flip, lasting, run, shard_of

from probekit.activations import Store, repair
from probekit.activations.random_init import random_init_of
from probekit.activations.store.format import read_plan
from probekit.activations.store.writer import check_same
from probekit.errors import ResumeMismatch, UsageError
from probekit.files.durable import unseal
from probekit.models import load_model
from probekit.models.files import read_json
from probekit.models.weights import save_hf
from probekit.tasks.base import Task

ADAPTER = "probekit.models.adapter"


class StandIn:
    """Takes the adapter's arguments, records them, and gives the model of the folder."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def load_adapted(self, folder: Path, hf: Any, **how: Any) -> Any:
        self.asked.append(how)
        assert hf == read_json(folder / "config.json")
        model = load_model(folder, device="cpu", random_init=how["seed"] is not None, seed=how["seed"] or 0)
        return model.to(how["dtype"])


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in, module = StandIn(), ModuleType(f"{ADAPTER}.load")
    module.load_adapted = stand_in.load_adapted  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, ADAPTER, ModuleType(ADAPTER))
    monkeypatch.setitem(sys.modules, f"{ADAPTER}.load", module)
    monkeypatch.setattr("probekit.models.load.check_packages", lambda *_: None)  # as if accelerate were installed
    return stand_in


@pytest.fixture
def folder(model: Any, tmp_path: Path) -> Path:
    model.tokenizer = None
    save_hf(model, tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def ids(letters: Callable[..., Task]) -> Task:
    return letters(texts=False)


def test_the_options_lead_to_the_adapter(adapter: StandIn, folder: Path) -> None:
    model = load_model(folder, via="transformers", quantize="8bit", device_map="auto", dtype="bfloat16")
    where = {"device": torch.device("cpu"), "dtype": torch.bfloat16}
    assert adapter.asked == [{**where, "seed": None, "device_map": "auto", "quantize": "8bit", "outside": ()}]
    source = {"name_or_path": str(folder), "revision": None, "random_init": False, "seed": 0, "dtype": "bfloat16"}
    assert model.source == {**source, "via": "transformers", "device_map": "auto", "quantize": "8bit"}
    assert model.name == "model"
    load_model(folder, via="transformers", random_init=True, seed=4, device="cpu")
    assert adapter.asked[1]["seed"] == 4
    assert load_model(folder, device="cpu").source == {**source, "dtype": "float32"}


def test_a_store_says_whose_code_computed_it_and_another_does_not_resume_it(
    adapter: StandIn, folder: Path, ids: Task, path: Path
) -> None:
    run(load_model(folder, via="transformers", quantize="8bit", device_map="auto"), ids, path)
    manifest, _ = unseal(path / "manifest.json")
    assert [manifest[name] for name in ("via", "quantize", "device_map")] == ["transformers", "8bit", "auto"]
    ours = load_model(folder, device="cpu")
    with pytest.raises(ResumeMismatch, match="via: 'transformers' there, 'probekit' here; quantize: '8bit'"):
        run(ours, ids, path)
    with pytest.raises(ResumeMismatch, match="quantize: '8bit' there, None here"):
        run(load_model(folder, via="transformers", device="cpu"), ids, path)
    run(load_model(folder, via="transformers", quantize="8bit", device="cpu"), ids, path)


def test_a_store_from_before_the_option_is_probekits(adapter: StandIn, folder: Path, ids: Task, path: Path) -> None:
    run(load_model(folder, device="cpu"), ids, path)
    plan = read_plan(path)
    assert not {"via", "device_map", "quantize"} & (plan.identity.keys() | (plan.source or {}).keys())
    with pytest.raises(ResumeMismatch, match="via: 'probekit' there, 'transformers' here"):
        run(load_model(folder, via="transformers", device="cpu"), ids, path)


def test_what_follows_from_another_via_is_not_listed(
    adapter: StandIn, folder: Path, ids: Task, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(load_model(folder, device="cpu"), ids, path)
    other = load_model(folder, via="transformers", device="cpu", dtype="bfloat16")
    monkeypatch.setattr(other, "fingerprint", lambda: "0" * 64)
    with pytest.raises(ResumeMismatch, match=r"\(via: 'probekit' there, 'transformers' here\); name another folder"):
        run(other, ids, path)
    imported = replace(read_plan(path), identity={"kind": "import"})
    wanted = {"identity": {"via": "transformers", "dtype": "float32"}, "model": imported.model, "task": imported.task}
    with pytest.raises(ResumeMismatch, match=r"kind: 'import' there, nothing here.*; dtype: nothing there, 'float32'"):
        check_same(path, imported, wanted)


@pytest.mark.usefixtures("small_shards")
def test_repair_and_the_baseline_load_the_model_in_the_same_way(
    adapter: StandIn, folder: Path, ids: Task, path: Path
) -> None:
    run(load_model(folder, via="transformers", quantize="4bit", device_map="auto"), ids, path)
    before = lasting(path)
    flip(shard_of(path, 1), 300)
    assert repair(path).shards == [1]
    assert lasting(path) == before
    assert adapter.asked[1] == adapter.asked[0]
    found = random_init_of(path, seed=2, progress=False)
    assert adapter.asked[2] == {**adapter.asked[0], "seed": 2, "quantize": None}
    assert isinstance(found, Store)
    assert (found.path / "manifest.json").is_file()
    n = len(adapter.asked)
    assert_equal(random_init_of(path, seed=2, progress=False), found)
    assert len(adapter.asked) == n, "a finished baseline needs no model"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"via": "own"}, "via (--via) is one of probekit, transformers; got 'own'"),
        ({"device_map": {"": 0}}, "device_map (--device-map) is one of auto; got {'': 0}"),
        ({"quantize": 8, "via": "transformers"}, "quantize (--quantize) is one of 8bit, 4bit; got 8"),
        (
            {"device_map": "auto", "device": "cpu"},
            "and device_map='auto' (--device-map) exclude each other",
        ),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as error:
        load_model("agreement-gpt2", **options)
    assert says in str(error.value)

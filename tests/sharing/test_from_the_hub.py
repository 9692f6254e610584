"""`load_activations("hf://...")`: a store on the Hub reads as it does on disk, one place at a time."""

from collections.abc import Callable
from pathlib import Path

import huggingface_hub.constants as constants
import numpy as np
import pytest
import torch
from hub_server import HubServer
from planted_runs import planted, trained

import probekit as pk
from probekit.activations import verify
from probekit.causal.curve.find import find_probes
from probekit.cli.main import run as cli_run
from probekit.errors import DataError, ProbekitError, StorageError, UsageError
from probekit.files import hub
from probekit.files.remote import filesystems
from probekit.probes.in_results import results_folder as results_folder_of
from probekit.scoring.find import find_results, split_name

MakeStore = Callable[..., Path]
pytestmark = pytest.mark.filterwarnings("ignore:Use .content=:DeprecationWarning")  # of the Hub's client


@pytest.fixture(autouse=True)
def new_file_system(own_hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file system keeps the address of the Hub that it was made for."""
    monkeypatch.setattr(filesystems, "_made", {})


def test_a_store_on_the_hub_is_the_store_on_disk(own_hub: HubServer, make_store: MakeStore):
    store = make_store()
    here = pk.load_activations(store)
    pk.push_to_hub(store, "me/acts/deep")
    there = pk.load_activations("hf://me/acts/deep")
    assert [*there] == [*here]
    for place in here:
        assert torch.equal(there[place], here[place])
    assert there.task.fingerprint() == here.task.fingerprint()
    assert torch.equal(there.read(("resid_pre", 1), [5, 2]), here["resid_pre", 1][[5, 2]])
    assert verify("hf://me/acts/deep").is_sound


def test_a_place_is_read_by_ranges(own_hub: HubServer, make_store: MakeStore):
    store = make_store()
    pk.push_to_hub(store, "me/acts")
    loaded = pk.load_activations("hf://me/acts")
    own_hub.sent = 0
    wanted = loaded["resid_pre", 0]
    shards = sum(file.stat().st_size for file in (store / "shards").iterdir())
    assert wanted.nbytes <= own_hub.sent < shards


def test_a_commit_stays_what_it_was(own_hub: HubServer, make_store: MakeStore):
    store = make_store(rows=60)
    first = pk.push_to_hub(store, "me/acts").commit
    ids = pk.load_activations(store).task.ids
    labels = store.parent / "more.csv"
    labels.write_text("\n".join(["id,label", *(f"{one},{'xy'[i // 2 % 2]}" for i, one in enumerate(ids))]))
    pk.label_store(store, labels, name="second")
    pk.push_to_hub(store, "me/acts")
    assert "second" in pk.load_activations("hf://me/acts").labels
    assert "second" not in pk.load_activations(f"hf://me/acts@{first}").labels


def test_damage_and_absence_are_said(own_hub: HubServer, make_store: MakeStore):
    pk.push_to_hub(make_store(), "me/acts")
    files = own_hub.repos["datasets/me/acts"]
    name = next(name for name in files if name.startswith("shards/"))
    files[name] = files[name][:-1] + bytes([files[name][-1] ^ 1])
    store = pk.load_activations("hf://me/acts")
    with pytest.raises(StorageError, match="is damaged"):
        [store[place] for place in store]
    for missing in ("hf://me/nothing", "hf://me/acts/nowhere"):
        with pytest.raises(ProbekitError) as caught:
            pk.load_activations(missing)
        assert "\n" not in str(caught.value)


X = np.random.default_rng(0).normal(size=(9, 6)).astype(np.float32)


def test_a_probe_of_the_hub_is_the_one_that_was_pushed(own_hub: HubServer, results_folder: Path):
    pk.push_to_hub(results_folder, "me/probe")
    results = pk.ProbeResults.load(results_folder)
    for layer in results.layers:
        found = pk.load_probe(f"hf://me/probe:{layer.place}")
        assert np.array_equal(found.decision_function(X), layer.probe.decision_function(X))
        here = pk.load_probe(f"{results_folder}:{layer.place}")
        assert np.array_equal(here.decision_function(X), found.decision_function(X))
    best = pk.load_probe("hf://me/probe").decision_function(X)
    assert np.array_equal(best, results.best.probe.decision_function(X))
    loaded = pk.ProbeResults.load("hf://me/probe")
    assert loaded.to_frame().equals(results.to_frame())


def test_results_are_read_at_a_commit_and_without_the_hub(
    own_hub: HubServer, results_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    first = pk.push_to_hub(results_folder, "me/probe").commit
    before = pk.load_probe("hf://me/probe").decision_function(X)
    pk.push_to_hub(trained(planted(model="tiny", seed=5)).save(tmp_path / "later"), "me/probe")
    assert not np.array_equal(pk.load_probe("hf://me/probe").decision_function(X), before)
    assert np.array_equal(pk.load_probe(f"hf://me/probe@{first}").decision_function(X), before)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert np.array_equal(pk.load_probe(f"hf://me/probe@{first}").decision_function(X), before)
    assert not np.array_equal(pk.load_probe("hf://me/probe").decision_function(X), before)
    with pytest.raises(DataError, match="not in the local cache; give a local folder of results"):
        pk.load_probe("hf://me/other")


def test_a_push_in_the_middle_of_a_download_is_said(
    own_hub: HubServer, results_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Never some files of one commit and some of another."""
    pk.push_to_hub(results_folder, "me/probe")
    download, later = hub._download, trained(planted(model="tiny", seed=5)).save(tmp_path / "later")

    def slow(repo: hub.HubRepo, kind: hub.Kind, name: str, instead: str) -> str:
        path = download(repo, kind, name, instead)
        pk.push_to_hub(later, "me/probe")
        return path

    monkeypatch.setattr(hub, "_download", slow)
    with pytest.raises(DataError, match="was changed while it was downloaded"):
        pk.ProbeResults.load("hf://me/probe")
    monkeypatch.setattr(hub, "_download", download)
    loaded = pk.ProbeResults.load("hf://me/probe")
    assert loaded.to_frame().equals(pk.ProbeResults.load(later).to_frame())


def test_results_of_the_hub_are_compared_reported_and_taken_by_causal(
    own_hub: HubServer, results_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pk.push_to_hub(results_folder, "me/probe")
    there, here = pk.compare(["hf://me/probe", results_folder]).runs
    assert there.places == here.places
    assert (there.path, "hf://me/probe" in there.name) == ("hf://me/probe", True)
    places = pk.compare(["hf://me/probe:resid_pre.0", f"{results_folder}:resid_pre.0"]).runs
    assert places[0].given
    assert places[0].estimate == places[1].estimate
    monkeypatch.chdir(tmp_path)
    assert cli_run(["report", "hf://me/probe", "--quiet"]) == 0
    assert Path("report.html").is_file()
    store = tmp_path / "store"
    store.mkdir()
    for name in ("plan.json", "manifest.json"):
        (store / name).write_text("{}")
    found = find_probes("hf://me/probe", store, None, None)
    assert found == (store, results_folder_of("hf://me/probe"))
    monkeypatch.setattr(filesystems, "_made", {})
    with pytest.raises(DataError, match="name the store they are of with --store"):
        find_probes("hf://me/probe", None, None, None)


def test_several_curves_name_their_place(own_hub: HubServer, tmp_path: Path):
    curves = pk.train_probes(
        planted(model="tiny"), points=["resid_pre", "attn_out"], C=1.0, controls=0, codelength=False, quick=True
    )
    pk.push_to_hub(curves.save(tmp_path / "curves"), "me/curves/deep")
    wanted = curves["kind", "attn_out"].best
    for name in ("kind/attn_out", f"kind/{wanted.place}"):
        found = pk.load_probe(f"hf://me/curves/deep:{name}")
        assert np.array_equal(found.decision_function(X), wanted.probe.decision_function(X))
    results, place = find_results(*split_name("hf://me/curves/deep:kind/attn_out"))
    assert (results.best.place, place) == (wanted.place, None)
    with pytest.raises(UsageError, match="several curves, and no place was given; write RESULTS:LABEL/POINT or"):
        pk.load_probe("hf://me/curves/deep")


def test_damage_and_wrong_names_are_said(own_hub: HubServer, results_folder: Path):
    pk.push_to_hub(results_folder, "me/probe")
    files = own_hub.repos["models/me/probe"]
    name = next(name for name in files if name.startswith("probes/") and name.endswith(".json"))
    place = name.removeprefix("probes/").removesuffix(".json")
    files[name] = files[name].replace(b'"converged": true', b'"converged":false')
    with pytest.raises(DataError, match="is not the one of these results"):
        pk.load_probe(f"hf://me/probe:{place}")
    with pytest.raises(UsageError, match=r"have no place 'resid_pre.77'; known are"):
        pk.load_probe("hf://me/probe:resid_pre.77")
    own_hub.repos["models/me/empty"] = {"README.md": b""}
    with pytest.raises(DataError, match=r"holds no results.json or curves.json"):
        pk.load_probe("hf://me/empty")
    with pytest.raises(UsageError, match="the Hub has no model 'me/nothing'; check the name, and that it is a model"):
        pk.load_probe("hf://me/nothing")
    with pytest.raises(UsageError, match="expected a model"):
        pk.load_probe("hf://datasets/me/probe")

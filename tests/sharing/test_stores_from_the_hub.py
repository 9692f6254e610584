"""`load_activations("hf://...")`: a store on the Hub reads as it does on disk, one place at a time."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hub_server import HubServer

import probekit as pk
from probekit.activations import verify
from probekit.errors import ProbekitError, StorageError
from probekit.files.remote import filesystems

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

"""`push_to_hub`: what arrives, in which order, a second time, after a failure; and each refusal in one line.

The oracle is the files that the loopback Hub holds after each commit.
"""

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub.constants as constants
import pytest
import yaml
from hub_server import READ_TOKEN, HubServer
from planted_runs import planted, trained

import probekit as pk
from probekit.activations import verify
from probekit.cli.main import run as cli_run
from probekit.errors import DataError, ProbekitError, ResumeMismatch, StorageError, UsageError
from probekit.sharing import push
from probekit.sharing.contents import SharedFolder, find_shared

pytestmark = pytest.mark.filterwarnings("ignore:Use .content=:DeprecationWarning")  # of the Hub's client
MakeStore = Callable[..., Path]
ADDED = {".gitattributes", "README.md"}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def without_card(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if name not in ADDED}


def header(files: dict[str, bytes]) -> dict:
    return yaml.safe_load(files["README.md"].decode().split("---\n")[1])


def test_a_store_arrives_byte_for_byte_and_private(own_hub: HubServer, make_store: MakeStore):
    store = make_store()
    done = pk.push_to_hub(store, "me/acts", license="mit")
    arrived = own_hub.repos["datasets/me/acts"]
    assert without_card(arrived) == contents(store)
    assert own_hub.private == {"datasets/me/acts"}
    assert (done.address, done.kind, done.private) == ("hf://me/acts", "dataset", True)
    json.dumps(vars(done))
    assert (done.uploaded, done.present) == (len(contents(store)) + 1, 0)
    assert header(arrived)["license"] == "mit"
    assert header(arrived)["viewer"] is False


def test_a_second_push_sends_nothing_but_questions(own_hub: HubServer, make_store: MakeStore):
    store = make_store()
    first = pk.push_to_hub(store, "me/acts")
    before = len(own_hub.requests)
    again = pk.push_to_hub(store, "me/acts")
    assert (again.uploaded, again.present, again.commit) == (0, len(contents(store)), first.commit)
    assert not [one for one in own_hub.requests[before:] if one.startswith(("PUT", "POST"))]


def test_no_commit_holds_a_manifest_without_all_of_its_files(
    own_hub: HubServer, make_store: MakeStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(push, "COMMIT_FILES", 2)
    monkeypatch.setattr(push, "UPLOAD_BYTES", 1)
    store = make_store()
    pk.push_to_hub(store, "me/acts")
    past = own_hub.history["datasets/me/acts"]
    assert len(past) > 3
    for n, files in enumerate(past):
        if "manifest.json" in files or "plan.json" in files:
            for name, data in without_card(files).items():
                (tmp_path / str(n) / name).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / str(n) / name).write_bytes(data)
            assert verify(tmp_path / str(n)).is_sound
            assert verify(tmp_path / str(n)).finished
    assert [("manifest.json" in files) for files in past] == [False] * (len(past) - 1) + [True]


def test_an_interrupted_push_is_resumed(own_hub: HubServer, make_store: MakeStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    store = make_store()
    own_hub.drop_uploads_after = 1
    with pytest.raises(StorageError, match="run the same command again to resume"):
        pk.push_to_hub(store, "me/acts")
    assert "manifest.json" not in own_hub.repos["datasets/me/acts"]
    assert len(own_hub.large) == 1
    own_hub.drop_uploads_after = None
    before = len(own_hub.requests)
    pk.push_to_hub(store, "me/acts")
    sent = [one for one in own_hub.requests[before:] if one.startswith("PUT")]
    files = [*(store / "shards").iterdir(), *(store / "examples").iterdir()]
    assert len(sent) == len(files) - 1
    assert without_card(own_hub.repos["datasets/me/acts"]) == contents(store)


def test_a_folder_and_a_branch_hold_stores_of_their_own(own_hub: HubServer, make_store: MakeStore):
    one, other = make_store("one"), make_store("other", seed=1)
    pk.push_to_hub(one, "me/acts/one")
    pk.push_to_hub(other, "hf://me/acts/deep/other", revision="second")
    main, second = own_hub.repos["datasets/me/acts"], own_hub.repos["datasets/me/acts@second"]
    assert {name.removeprefix("one/"): data for name, data in main.items() if not name.endswith(tuple(ADDED))} == (
        contents(one)
    )
    assert second["deep/other/manifest.json"] == (other / "manifest.json").read_bytes()
    assert "deep/other/manifest.json" not in main


def test_labels_that_were_joined_later_follow(own_hub: HubServer, make_store: MakeStore, tmp_path: Path):
    store = make_store(rows=90)
    pk.push_to_hub(store, "me/acts")
    ids = pk.load_activations(store).task.ids
    (tmp_path / "more.csv").write_text(
        "\n".join(["id,label", *(f"{one},{'xy'[i // 2 % 2]}" for i, one in enumerate(ids))])
    )
    pk.label_store(store, tmp_path / "more.csv", name="second")
    done = pk.push_to_hub(store, "me/acts")
    assert done.uploaded == 2  # the labels, and the card that counts them
    assert without_card(own_hub.repos["datasets/me/acts"]) == contents(store)


def test_results_arrive_and_later_ones_replace_them(own_hub: HubServer, results_folder: Path, tmp_path: Path):
    pk.push_to_hub(results_folder, "me/probe")
    arrived = own_hub.repos["models/me/probe"]
    assert without_card(arrived) == contents(results_folder)
    assert header(arrived) == {
        "library_name": "probekit",
        "tags": ["probe", "interpretability"],
        "base_model": ["openai-community/gpt2"],
    }
    fewer = trained(planted(model="gpt2"), layers=[1]).save(tmp_path / "fewer")
    done = pk.push_to_hub(fewer, "me/probe")
    assert done.removed > 0
    assert without_card(own_hub.repos["models/me/probe"]) == contents(fewer)


def test_no_commit_mixes_earlier_results_with_later_ones(
    own_hub: HubServer, results_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(push, "COMMIT_FILES", 4)
    pk.push_to_hub(results_folder, "me/probe")
    later = trained(planted(model="gpt2", seed=3)).save(tmp_path / "later")
    pk.push_to_hub(later, "me/probe")
    readable = [without_card(files) for files in own_hub.history["models/me/probe"] if "results.json" in files]
    assert readable == [contents(results_folder), contents(later)]


def test_a_public_repository_is_pushed_to_only_when_asked(own_hub: HubServer, make_store: MakeStore):
    store = make_store()
    done = pk.push_to_hub(store, "me/acts", private=False)
    assert (done.private, own_hub.private) == (False, set())
    before = len(own_hub.history["datasets/me/acts"])
    refused(UsageError, r"everybody could read what is pushed; say --public \(private=False\)", store)
    assert len(own_hub.history["datasets/me/acts"]) == before
    assert pk.push_to_hub(store, "me/acts", private=False).uploaded == 0


def test_what_names_folders_of_this_machine_is_listed(make_store: MakeStore):
    shown = find_shared(make_store()).visible
    assert "their texts, word for word" in shown
    assert any("store-source', from which the activations were imported" in one for one in shown)


def test_a_report_with_texts_is_not_uploaded(own_hub: HubServer, tmp_path: Path):
    folder = trained(planted(model="tiny")).save(tmp_path / "own")
    (folder / "report.html").write_text("texts")
    pk.push_to_hub(folder, "me/probe")
    assert "report.html" not in own_hub.repos["models/me/probe"]


@pytest.mark.parametrize("text", ["# Mine\n", None])
def test_a_card_that_somebody_wrote_or_edited_stays(own_hub: HubServer, make_store: MakeStore, text: str | None):
    store = make_store()
    pk.push_to_hub(store, "me/acts")
    files = own_hub.repos["datasets/me/acts"]
    edited = text.encode() if text else files["README.md"].replace(b"Activations at", b"My activations at")
    files["README.md"] = edited
    done = pk.push_to_hub(store, "me/acts", license="mit")
    assert done.card_kept
    assert own_hub.repos["datasets/me/acts"]["README.md"] == edited


def refused(kind: type[ProbekitError], words: str, source: Path, repo: str = "me/acts", **options: Any) -> None:
    with pytest.raises(kind, match=words) as caught:
        pk.push_to_hub(source, repo, **options)
    assert "\n" not in str(caught.value)
    assert "hf_may" not in str(caught.value)


def test_another_store_and_foreign_files_are_never_overwritten(own_hub: HubServer, make_store: MakeStore):
    one, other = make_store("one"), make_store("other", seed=1)
    pk.push_to_hub(one, "me/acts")
    before = dict(own_hub.repos["datasets/me/acts"])
    refused(ResumeMismatch, "holds another store; name another repository, or a folder", other)
    own_hub.repos["datasets/me/data"] = {"train.csv": b"", "README.md": b""}
    refused(ResumeMismatch, r"holds files that are not of store \('train.csv'\)", one, "me/data", private=False)
    assert own_hub.repos["datasets/me/acts"] == before


def test_refusals_of_the_hub_are_one_line(own_hub: HubServer, make_store: MakeStore, monkeypatch: pytest.MonkeyPatch):
    store = make_store()
    refused(StorageError, "does not let this token write", store, "somebody/acts")
    refused(UsageError, "does not name a repository", store, "me/../acts")
    refused(UsageError, "does not name a repository", store, "acts")
    refused(UsageError, "expected a dataset", store, "hf://models/me/acts")
    refused(UsageError, "the name of a branch", store, revision="a b")
    refused(UsageError, "the name of a branch", store, "me/acts@a b")
    refused(UsageError, "names the branch 'x' and revision .* 'y'; leave one out", store, "me/acts@x", revision="y")
    refused(UsageError, "Hub's list", store, license="My License")
    monkeypatch.setenv("HF_TOKEN", READ_TOKEN)
    refused(StorageError, "does not let this token write", store)
    own_hub.repos["datasets/me/there"] = {}
    refused(StorageError, "does not let this token write", store, "me/there")
    monkeypatch.delenv("HF_TOKEN")
    refused(StorageError, "no token was found; log in with `hf auth login`", store)
    assert not own_hub.history


def test_a_silent_hub_is_said_within_the_deadline(
    own_hub: HubServer, make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
):
    with socket.create_server(("127.0.0.1", 0), backlog=50) as listener:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{listener.getsockname()[1]}")
        monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "1")
        refused(StorageError, "did not answer within 1 s", make_store())


def test_what_is_not_whole_is_not_uploaded(own_hub: HubServer, make_store: MakeStore, tmp_path: Path):
    store = make_store()
    shard = next((store / "shards").iterdir())
    data = shard.read_bytes()
    shard.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    refused(StorageError, "damaged.*was not uploaded", store)
    shard.unlink()
    (tmp_path / "elsewhere").write_bytes(data)
    shard.symlink_to(tmp_path / "elsewhere")
    refused(ProbekitError, "a link", store)
    refused(DataError, "neither a store nor a folder of results", tmp_path)
    refused(UsageError, "no file or folder", tmp_path / "nothing")
    assert not own_hub.repos


def test_somebody_faster_is_noticed(own_hub: HubServer, make_store: MakeStore, monkeypatch: pytest.MonkeyPatch):
    store = make_store()
    check = push.check_bytes
    own_hub.repos["datasets/me/acts"] = {}
    own_hub.private.add("datasets/me/acts")

    def meanwhile(shared: SharedFolder) -> None:
        check(shared)
        own_hub.repos["datasets/me/acts"] = {"README.md": b"faster"}

    monkeypatch.setattr(push, "check_bytes", meanwhile)
    refused(ResumeMismatch, "changed by somebody else meanwhile", store)


def test_hostile_names_are_inert_in_the_card(own_hub: HubServer, results_folder: Path, make_store: MakeStore):
    markdown_it = pytest.importorskip("markdown_it")
    pk.push_to_hub(results_folder, "me/probe")
    pk.push_to_hub(make_store(), "me/acts")
    for key in ("models/me/probe", "datasets/me/acts"):
        text = own_hub.repos[key]["README.md"].decode()
        assert "\x1b" not in text
        page = markdown_it.MarkdownIt("commonmark", {"html": True}).enable("table").render(text.split("---\n", 2)[2])
        assert "<b>" not in page
        assert "<a " not in page


def test_the_command_lists_first_and_prints_the_page(
    own_hub: HubServer, make_store: MakeStore, capsys: pytest.CaptureFixture[str]
):
    store = make_store()
    assert cli_run(["push", str(store), "me/acts/here", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert not own_hub.requests
    assert "dataset repository me/acts, folder here; if it is new, its owners alone can read it" in said
    assert "shards:" in said
    assert "their texts, word for word" in said
    assert cli_run(["push", str(store), "me/acts/here"]) == 0
    out, err = capsys.readouterr()
    assert out == f"{own_hub.url}/datasets/me/acts\n"
    assert "load it: pk.load_activations('hf://me/acts/here')" in err
    assert cli_run(["push", str(store), "me/acts/here", "--json", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert (json.loads(out)["uploaded"], err) == (0, "")
    assert cli_run(["push", str(store), "nobody/acts", "--quiet"]) == 4
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)

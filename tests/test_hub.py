"""The Hub: found, refused, silent, absent; each in a process of its own, as huggingface_hub reads its settings once."""

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_repos import repos
from hub_server import HubServer, commit_of, hub_env

from probekit.errors import DataError, UsageError
from probekit.files import hub
from probekit.files.hub import find_repo

REPOS = {("gpt2", "model"): "models/openai-community/gpt2", ("sst2", "dataset"): "datasets/stanfordnlp/sst2"}


def python(code: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)


def ask(name: str, kind: str, env: dict[str, str], revision: str | None = None) -> dict:
    """What find_repo answers or raises; a process that is still waiting after a minute fails."""
    (answer,) = ask_all([name], kind, env, revision)
    return answer


def ask_all(names: list[str], kind: str, env: dict[str, str], revision: str | None = None) -> list[dict]:
    """The same for several names, one after the other in one process."""
    code = f"""
import json
from probekit.errors import ProbekitError
from probekit.files.hub import find_repo
for name in {names!r}:
    try:
        answer = vars(find_repo(name, {kind!r}, {revision!r}))
    except ProbekitError as error:
        answer = {{"error": type(error).__name__, "says": str(error)}}
    print(json.dumps(answer))
"""
    done = python(code, env)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def server(tmp_path) -> Iterator[HubServer]:
    """A Hub of this test's own, with an empty cache."""
    server = HubServer(dict(repos()), tmp_path / "home")
    yield server
    server.close()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A port that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=50) as listener:
        yield listener


@pytest.fixture
def silent(listener, tmp_path) -> dict[str, str]:
    """A Hub that accepts and stays silent."""
    return hub_env(f"http://127.0.0.1:{listener.getsockname()[1]}", tmp_path / "home")


def connections(listener: socket.socket) -> int:
    """How many connections came since the last call."""
    listener.setblocking(False)
    count = 0
    try:
        while True:
            listener.accept()[0].close()
            count += 1
    except BlockingIOError:
        return count


@pytest.mark.parametrize(("name", "kind"), REPOS)
def test_a_short_name_and_an_id_are_one_repository_at_its_commit(hub, name, kind):
    key = REPOS[name, kind]
    for answer in ask_all([name, key.split("/", 1)[1]], kind, hub.env):
        assert answer["id"] == key.split("/", 1)[1]
        assert answer["revision"] == commit_of(hub.repos[key])
        assert not answer["offline"]
        assert set(answer["files"]) == set(hub.repos[key])


def test_what_the_hub_does_not_have_is_a_usage_error(hub):
    answer = ask("openai-community/gpt3", "model", hub.env)
    assert answer["error"] == "UsageError"
    assert "'openai-community/gpt3'" in answer["says"]
    assert "openai-community/gpt2" in answer["says"]
    assert ask("gpt2", "model", hub.env, revision="v9")["says"].startswith("'gpt2' has no revision 'v9'")


def test_what_is_no_id_is_not_asked_for(hub):
    names = ["no-such", "../../etc/passwd", "a/b/c", "a/..", "/a", "a/\x1b[31mb", ""]
    before = len(hub.requests)
    assert [answer["error"] for answer in ask_all(names, "model", hub.env)] == ["UsageError"] * len(names)
    assert not [request for request in hub.requests[before:] if "harness" not in request]


@pytest.mark.parametrize(("status", "code", "word"), [(401, "GatedRepo", "gated"), (401, "RepoNotFound", "private")])
def test_what_needs_a_token_says_so(server, status, code, word):
    server.refuse["models/openai-community/gpt2"] = (status, code)
    answer = ask("gpt2", "model", server.env)
    assert answer["error"] == "DataError"
    assert word in answer["says"]
    assert "hf auth login" in answer["says"]


@pytest.fixture(scope="session")
def filled(tmp_path_factory) -> Path:
    """A cache that holds a file of gpt2; tests copy it."""
    home = tmp_path_factory.mktemp("filled") / "home"
    server = HubServer(dict(repos()), home)
    done = python("from probekit.files.hub import *; fetch(find_repo('gpt2', 'model'), ['config.json'])", server.env)
    server.close()
    assert done.returncode == 0, done.stderr
    return home


def fill_cache(env: dict[str, str], filled: Path) -> None:
    shutil.copytree(filled, env["HF_HOME"], symlinks=True, dirs_exist_ok=True)


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:1", "http://no-such-host.invalid", "silent", "503", "offline"])
def test_without_a_hub_the_cache_or_a_clear_answer_soon(server, silent, filled, endpoint):
    fill_cache(server.env, filled)
    env = dict(server.env)
    if endpoint == "503":
        server.refuse |= {f"models/{name}": (503, "") for name in ("openai-community/gpt2", "no/such")}
    elif endpoint == "offline":
        env["HF_HUB_OFFLINE"] = "1"
    else:
        env["HF_ENDPOINT"] = silent["HF_ENDPOINT"] if endpoint == "silent" else endpoint
    cached, absent = ask_all(["gpt2", "no/such"], "model", env)
    assert (cached["id"], cached["offline"]) == ("openai-community/gpt2", True)
    assert absent["error"] == "DataError"
    assert absent["says"].endswith("'no/such' is not in the local cache; give a folder: --model PATH")


def test_a_hub_that_was_silent_is_not_asked_again(server, listener, silent, filled):
    fill_cache(server.env, filled)
    env = server.env | {"HF_ENDPOINT": silent["HF_ENDPOINT"]}
    ask("gpt2", "model", env)
    of_one_question = connections(listener)
    code = """
from probekit.errors import DataError
from probekit.files.hub import find_repo
for name, kind in [("sst2", "dataset"), ("distilgpt2", "model"), ("gpt2", "model")]:
    try:
        print(find_repo(name, kind).offline)
    except DataError as error:
        print(error)
"""
    done = python(code, env)
    first, second, cached = done.stdout.splitlines()
    assert connections(listener) == of_one_question > 0
    assert first.startswith("the Hub did not answer within 2 s ")
    assert second == (
        "the Hub timed out less than 60 s ago, so it was not retried, and 'distilgpt2' is not in the local "
        "cache; give a folder: --model PATH"
    )
    assert cached == "True"


def test_offline_the_copy_that_others_cached_under_the_short_name_is_found(server):
    code = "from huggingface_hub import hf_hub_download as get; get('gpt2', 'config.json')"
    done = python(code, server.env)
    assert done.returncode == 0, done.stderr
    answer = ask("gpt2", "model", server.env | {"HF_HUB_OFFLINE": "1"})
    assert (answer["id"], answer["offline"]) == ("gpt2", True)


def test_only_the_files_that_are_wanted_and_there_are_fetched(server):
    code = """
from probekit.files.hub import *
folder = fetch(find_repo("gpt2", "model"), ["config.json", "no-such.json", "vocab.json"])
print(*sorted(path.name for path in folder.iterdir()))
"""
    done = python(code, server.env)
    assert done.stdout.split() == ["config.json", "vocab.json"], done.stderr
    assert not any(".bin" in request or "no-such" in request for request in server.requests)
    server.requests.clear()
    assert python(code, server.env).returncode == 0
    asked = [request for request in server.requests if "/resolve/" in request]
    assert asked == ["HEAD /openai-community/gpt2/resolve/main/config.json"], "a cached commit is not fetched again"


@pytest.mark.parametrize("given", ["abc", "0", "-1", "1.5", ""])
def test_a_timeout_that_the_hubs_client_cannot_read_is_refused(given, monkeypatch):
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", given)
    with pytest.raises(UsageError, match="HF_HUB_ETAG_TIMEOUT must be a whole number of seconds"):
        find_repo("gpt2", "model")


def test_a_timeout_is_forgotten_after_a_minute(monkeypatch):
    now, asked = [0.0], []
    monkeypatch.setattr(hub, "_timeouts", [])
    monkeypatch.setattr(hub.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(hub, "ask_hub", lambda *_: asked.append(now[0]) or TimeoutError())
    for moment in (0.0, 59.0, 61.0, 62.0):
        now[0] = moment
        with pytest.raises(DataError, match="not in the local cache"):
            hub.find_repo("nobody/nothing", "model")
    assert asked == [0.0, 61.0]

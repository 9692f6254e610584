"""Find and download models and datasets of the Hugging Face Hub, with a deadline.

The Hub's own clients retry for half a minute when there is no network, and wait for minutes on a Hub that accepts the
connection and stays silent. So one request is sent, with a short deadline; without an answer the local cache is used,
or a clear error raised. For a minute after a timeout a process sends no more requests, so that a command waits once.
"""

import errno
import os
import re
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from probekit.errors import DataError, ProbekitError, StorageError, UsageError, nearest
from probekit.published import PUBLISHED
from probekit.text import listed

Kind = Literal["model", "dataset"]

ALIASES: dict[str, dict[str, str]] = {
    "model": {name: model.hub_id for name, model in PUBLISHED.items()},
    "dataset": {"sst2": "stanfordnlp/sst2"},
}
REPO_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
DEADLINE = 2.0  # seconds for the one request; HF_HUB_ETAG_TIMEOUT, which the Hub's clients know, replaces it


LATCH = 60.0  # seconds without requests after a timeout
_timeouts: list[tuple[float, Exception]] = []  # the last one of this process, and when it was (monotonic)


@dataclass(frozen=True)
class HubRepo:
    """A repository on the Hub at a fixed commit, or in the local cache.

    Attributes:
        id: such as "owner/name".
        revision: the commit if the Hub answered; offline, the requested one.
        offline: True if the Hub did not answer.
        requested: the revision that was requested; None is the main branch.
        files: names of its files, if the Hub answered.
    """

    id: str
    revision: str | None
    offline: bool
    requested: str | None = None
    files: tuple[str, ...] = ()


def find_repo(name: str, kind: Kind, revision: str | None = None) -> HubRepo:
    """The repository `name` (an id such as "owner/name", or a known short name), with one request to the Hub.

    Raises:
        UsageError: the Hub has no such repository or revision, or the name is no id.
        DataError: it needs a token, or the Hub did not answer and it is not in the cache.
    """
    repo_id = ALIASES[kind].get(name, name)
    if not REPO_ID.fullmatch(repo_id) or ".." in repo_id:
        raise UsageError(
            f"{name!a} is not the name of a {kind} on the Hub (owner/name); {nearest(name, ALIASES[kind])}"
        )
    deadline, earlier = _deadline(), _recent_timeout()
    answer = earlier or _ask(repo_id, kind, revision, deadline)
    if not earlier and _is_timeout(answer):
        _timeouts[:] = [(time.monotonic(), answer)]
    if not isinstance(answer, Exception):
        files = tuple(file.rfilename for file in answer.siblings or ())
        return HubRepo(answer.id, answer.sha, offline=False, requested=revision, files=files)
    if (refusal := _refusal(answer, name, kind, revision)) is not None:
        raise refusal from answer
    for cached_id in dict.fromkeys([repo_id, name]):
        if _is_cached(cached_id, kind, revision):
            return HubRepo(cached_id, revision, offline=True, requested=revision)
    raise DataError(
        f"{_no_answer(answer, deadline, earlier is not None)} and {name!a} is not in the local cache; {_instead(kind)}"
    ) from answer


def fetch(repo: HubRepo, names: Iterable[str]) -> Path:
    """Download those of `names` that a model repository has; the local folder, which is named after the commit.

    Files that the cache has at that commit are not downloaded again.

    Raises:
        DataError: a file could not be downloaded.
        StorageError: the cache cannot be written.
    """
    from huggingface_hub import hf_hub_download

    folder = cached_model(repo.id, repo.requested) if repo.offline else None
    wanted = [] if repo.offline else [name for name in names if name in repo.files]
    for name in wanted:
        # The first by the name of the branch: so the cache records its commit and finds it offline.
        revision = folder.name if folder else repo.requested
        try:
            path = hf_hub_download(repo.id, name, revision=revision)
        except Exception as error:  # httpx, OSError, ValueError, the client's own
            raise _no_download(error, repo.id, name) from error
        folder = folder or Path(path).parent
    if folder is None:
        raise DataError(f"{repo.id!a} has none of the files of a model ({listed([*names])}); name another repository")
    return folder


def _recent_timeout() -> Exception | None:
    return next((error for when, error in _timeouts if time.monotonic() - when < LATCH), None)


def _deadline() -> float:
    given = os.environ.get("HF_HUB_ETAG_TIMEOUT")
    if given is None:
        return DEADLINE
    if not given.isdecimal() or int(given) < 1:  # the Hub's client fails on anything else
        raise UsageError(f"HF_HUB_ETAG_TIMEOUT must be a whole number of seconds; got {given!a}")
    return float(given)


def _ask(repo_id: str, kind: Kind, revision: str | None, deadline: float) -> Any:
    """The Hub's answer, or the exception that came instead, within the deadline.

    Runs in a thread: the client's timeout does not cover the lookup of the host's name, nor its own first requests.
    """
    from huggingface_hub import HfApi

    answers: list[Any] = []

    def ask() -> None:
        api = HfApi()
        try:
            info = api.model_info if kind == "model" else api.dataset_info
            answers.append(info(repo_id, revision=revision, timeout=deadline))
        except Exception as error:
            answers.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(deadline)
    return answers[0] if answers else TimeoutError()


def _refusal(error: Exception, name: str, kind: Kind, revision: str | None) -> ProbekitError | None:
    """The error if the Hub answered with a refusal; None if it did not answer."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, RevisionNotFoundError):
        return UsageError(f"{name!a} has no revision {revision!a} on the Hub; leave it out or name a branch or commit")
    if isinstance(error, GatedRepoError):
        return DataError(f"{name!a} is gated: ask for access on its page, then log in with `hf auth login`")
    if isinstance(error, RepositoryNotFoundError) and status == 404:
        hint = nearest(name, [*ALIASES[kind], *ALIASES[kind].values()])
        return UsageError(f"the Hub has no {kind} {name!a}; {hint}")
    if status in (401, 403):
        return DataError(
            f"the Hub denies access to {name!a}: no such {kind}, or private or gated; for those, log in with "
            f"`hf auth login` (the token in use, if any, was not accepted)"
        )
    return None


def _is_timeout(answer: Any) -> bool:
    """True after our timeout or the client's own; a Hub that refuses at once can be tried again."""
    return isinstance(answer, Exception) and "Timeout" in type(answer).__name__


def _no_answer(error: Exception, deadline: float, timed_out: bool) -> str:
    from huggingface_hub.errors import OfflineModeIsEnabled

    if isinstance(error, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status:
        return f"the Hub answered {status}"
    if timed_out:
        return f"the Hub timed out less than {LATCH:g} s ago, so it was not retried,"
    return f"the Hub did not answer within {deadline:g} s (HF_HUB_ETAG_TIMEOUT sets how long to wait)"


def _instead(kind: Kind) -> str:
    return "give a folder: --model PATH" if kind == "model" else "give a file or folder: --dataset PATH"


def _is_cached(repo_id: str, kind: Kind, revision: str | None) -> bool:
    if kind == "model":
        return cached_model(repo_id, revision) is not None
    from huggingface_hub.constants import HF_HOME, HF_HUB_CACHE

    made = Path(os.environ.get("HF_DATASETS_CACHE", Path(HF_HOME) / "datasets")) / repo_id.replace("/", "___")
    return made.is_dir() or (Path(HF_HUB_CACHE) / f"datasets--{repo_id.replace('/', '--')}" / "snapshots").is_dir()


def cached_model(repo_id: str, revision: str | None) -> Path | None:
    """The cached folder of a model repository at a revision, if its config.json is there."""
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(repo_id, "config.json", revision=revision)
    return Path(config).parent if isinstance(config, str) else None


def _no_download(error: Exception, repo_id: str, name: str) -> ProbekitError:
    from huggingface_hub.errors import GatedRepoError

    if isinstance(error, GatedRepoError):
        return DataError(f"{repo_id!a} is gated: ask for access on its page, then log in with `hf auth login`")
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
        return StorageError(f"{name!a} of {repo_id!a} cannot be stored in the cache: {ascii(str(error))[1:-1]}")
    words = ascii(" ".join(str(error).split())[:300])[1:-1] or type(error).__name__
    return DataError(f"{name!a} of {repo_id!a} could not be downloaded: {words}; try again, or {_instead('model')}")

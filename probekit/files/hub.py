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
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import quote, unquote

from probekit.errors import DataError, ProbekitError, StorageError, UsageError, nearest
from probekit.files.published import PUBLISHED
from probekit.text import listed

Kind = Literal["model", "dataset"]
T = TypeVar("T")

ALIASES: dict[str, dict[str, str]] = {
    "model": {name: model.hub_id for name, model in PUBLISHED.items()},
    "dataset": {"sst2": "stanfordnlp/sst2"},
}
REPO_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
SCHEME = "hf://"
_ADDRESS = re.compile(rf"({REPO_ID.pattern})(?:@([^/@]+))?(?:/(.+))?")
DEADLINE = 2.0  # seconds for the one request; HF_HUB_ETAG_TIMEOUT, which the Hub's clients know, replaces it


LATCH = 60.0  # seconds without requests after a timeout
_timeouts: list[tuple[float, Exception]] = []  # the last one of this process, and when it was (monotonic)


@dataclass(frozen=True)
class HubAddress:
    """A folder of a repository, as hf://owner/name[@revision][/folder] names it; "" is the whole repository."""

    repo: str
    revision: str | None
    folder: str


@dataclass(frozen=True)
class Sought:
    """What is looked for in a repository: the files without which it is not there, and the local way to name it."""

    keys: tuple[str, ...]
    instead: str


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


def is_address(text: object) -> bool:
    """True for a text that names a place on the Hub."""
    return isinstance(text, str) and text.startswith(SCHEME)


def parse_address(text: str, kind: Kind) -> HubAddress:
    """The place that hf://owner/name[@revision][/folder] names; "hf://" may be missing.

    Raises:
        UsageError: another form, or a repository of another kind.
    """
    plain = text.removeprefix(SCHEME).rstrip("/")
    prefix, _, rest = plain.partition("/")
    if prefix in ("datasets", "models") and rest.count("/"):
        if prefix != f"{kind}s":
            raise UsageError(f"{text!a:.200} is one of the {prefix}, expected a {kind}: {SCHEME}{kind}s/owner/name")
        plain = rest
    match = _ADDRESS.fullmatch(plain)
    parts = match[3].split("/") if match and match[3] else []
    if match is None or ".." in match[1] or any(part in ("", ".", "..") for part in parts):
        raise UsageError(
            f"{text!a:.200} does not name a repository of the Hub; write owner/name, or owner/name@revision/folder"
        )
    return HubAddress(match[1], unquote(match[2]) if match[2] else None, "/".join(parts))


def address_text(address: HubAddress) -> str:
    """The address as `parse_address` reads it."""
    revision = f"@{quote(address.revision, safe='')}" if address.revision else ""
    return f"{SCHEME}{address.repo}{revision}{f'/{address.folder}' if address.folder else ''}"


def warn_of_local(name: Any, kind: Kind) -> None:
    """Warn where a short name of the Hub is taken as the file or folder of that name that is here."""
    if isinstance(name, str) and name in ALIASES[kind]:
        warnings.warn(
            f"the {kind} {name!a} is the one in this folder; that of the Hub is {ALIASES[kind][name]}", stacklevel=3
        )


def find_repo(name: str, kind: Kind, revision: str | None = None, sought: Sought | None = None) -> HubRepo:
    """The repository `name` (an id such as "owner/name", or a known short name), with one request to the Hub.

    Args:
        name: its id, or the short name of a model or dataset.
        kind: of repository.
        revision: a branch or commit; None is the main branch.
        sought: what the repository should hold, where that is no model and no dataset.

    Raises:
        UsageError: the Hub has no such repository or revision, or the name is no id.
        DataError: it needs a token, or the Hub did not answer and it is not in the cache.
    """
    repo_id = ALIASES[kind].get(name, name)
    if not REPO_ID.fullmatch(repo_id) or ".." in repo_id:
        raise UsageError(
            f"{name!a} is not the name of a {kind} on the Hub (owner/name); {nearest(name, ALIASES[kind])}"
        )
    deadline, earlier = deadline_of_requests(), recent_timeout()
    answer = earlier or ask_hub(
        lambda api: (api.model_info if kind == "model" else api.dataset_info)(
            repo_id, revision=revision, timeout=deadline
        ),
        deadline,
    )
    # ours or the client's own; a Hub that refuses at once can be tried again
    if not earlier and isinstance(answer, Exception) and "Timeout" in type(answer).__name__:
        _timeouts[:] = [(time.monotonic(), answer)]
    if not isinstance(answer, Exception):
        files = tuple(file.rfilename for file in answer.siblings or ())
        return HubRepo(answer.id, answer.sha, offline=False, requested=revision, files=files)
    known = [*ALIASES[kind], *ALIASES[kind].values()]
    hint = f"check the name, and that it is a {kind} repository" if sought else nearest(name, known)
    if (refusal := refusal_of(answer, name, kind, revision, hint)) is not None:
        raise refusal from None
    for cached_id in dict.fromkeys([repo_id, name]):
        if _is_cached(cached_id, kind, revision, sought):
            return HubRepo(cached_id, revision, offline=True, requested=revision)
    raise DataError(
        f"{no_answer(answer, deadline, earlier is not None)} and {name!a} is not in the local cache; "
        f"{sought.instead if sought else _instead(kind)}"
    ) from None


def fetch_folder(address: HubAddress, kind: Kind, sought: Sought, wanted: Callable[[str], bool]) -> Path:
    """Download the files of a folder on the Hub into the local cache; the local folder.

    Files that the cache has are not downloaded again; of the others, those whose names in the folder are `wanted` are.
    All are of one commit. The files of `sought` come last: where the cache has one of them, it has the others.

    Raises:
        UsageError: no such repository or revision.
        DataError: the folder holds nothing of what is sought; the Hub did not answer, and the cache has no copy; the
            branch was changed meanwhile.
        StorageError: the cache cannot be written.
    """
    start = f"{address.folder}/" if address.folder else ""
    sought = replace(sought, keys=tuple(start + key for key in sought.keys))
    repo = find_repo(address.repo, kind, address.revision, sought)
    if repo.offline:
        return Path(_cached_file(repo.id, kind, repo.revision, sought.keys) or "").parent
    names = [name for name in repo.files if name.startswith(start) and wanted(name.removeprefix(start))]
    if not set(names) & set(sought.keys):
        known = listed([key.removeprefix(start) for key in sought.keys], between=" or ")
        raise DataError(f"{address_text(address)!a} holds no {known}; check the name and the folder")
    *others, last = sorted(names, key=lambda name: name in sought.keys)
    for name in others:
        _download(replace(repo, requested=repo.revision), kind, name, sought.instead)
    # The last by the name of the branch: so the cache records its commit, complete, and finds it offline.
    path = Path(_download(repo, kind, last, sought.instead))
    if repo.revision not in path.parts:
        raise DataError(f"{address_text(address)!a} was changed while it was downloaded; run the same command again")
    return path.parent


def _download(repo: HubRepo, kind: Kind, name: str, instead: str) -> str:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import GatedRepoError

    try:
        return hf_hub_download(repo.id, name, revision=repo.requested, repo_type=kind)
    except GatedRepoError:
        raise DataError(f"{repo.id!a} is gated: ask for access on its page, then log in with `hf auth login`") from None
    except Exception as error:  # httpx, OSError, ValueError, the client's own
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
            raise StorageError(
                f"{name!a} of {repo.id!a} cannot be stored in the cache: {ascii(str(error))[1:-1]}"
            ) from None
        words = ascii(" ".join(str(error).split())[:300])[1:-1] or type(error).__name__
        raise DataError(f"{name!a} of {repo.id!a} could not be downloaded: {words}; try again, or {instead}") from None


def fetch(repo: HubRepo, names: Iterable[str]) -> Path:
    """Download those of `names` that a model repository has; the local folder, which is named after the commit.

    Files that the cache has at that commit are not downloaded again.

    Raises:
        DataError: a file could not be downloaded.
        StorageError: the cache cannot be written.
    """
    folder = cached_model(repo.id, repo.requested) if repo.offline else None
    wanted = [] if repo.offline else [name for name in names if name in repo.files]
    for name in wanted:
        # The first by the name of the branch: so the cache records its commit and finds it offline.
        revision = folder.name if folder else repo.requested
        path = _download(replace(repo, requested=revision), "model", name, _instead("model"))
        folder = folder or Path(path).parent
    if folder is None:
        raise DataError(f"{repo.id!a} has none of the files of a model ({listed([*names])}); name another repository")
    return folder


def recent_timeout() -> Exception | None:
    """The timeout of less than a minute ago, if there was one."""
    return next((error for when, error in _timeouts if time.monotonic() - when < LATCH), None)


def deadline_of_requests() -> float:
    """Seconds for the first request of a command.

    Raises:
        UsageError: HF_HUB_ETAG_TIMEOUT is not a whole number.
    """
    given = os.environ.get("HF_HUB_ETAG_TIMEOUT")
    if given is None:
        return DEADLINE
    if not given.isdecimal() or int(given) < 1:  # the Hub's client fails on anything else
        raise UsageError(f"HF_HUB_ETAG_TIMEOUT must be a whole number of seconds; got {given!a}")
    return float(given)


def ask_hub(request: Callable[[Any], T], deadline: float) -> T | Exception:
    """What a request to the Hub returns, or the exception that came instead, within the deadline.

    Runs in a thread: the client's timeout does not cover the lookup of the host's name, nor its own first requests.
    """
    from huggingface_hub import HfApi

    answers: list[Any] = []

    def ask() -> None:
        api = HfApi()
        try:
            answers.append(request(api))
        except Exception as error:
            answers.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(deadline)
    return answers[0] if answers else TimeoutError()


def refusal_of(error: Exception, name: str, kind: Kind, revision: str | None, hint: str) -> ProbekitError | None:
    """The error if the Hub answered with a refusal; None if it did not answer."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, RevisionNotFoundError):
        return UsageError(f"{name!a} has no revision {revision!a} on the Hub; leave it out or name a branch or commit")
    if isinstance(error, GatedRepoError):
        return DataError(f"{name!a} is gated: ask for access on its page, then log in with `hf auth login`")
    if isinstance(error, RepositoryNotFoundError) and status == 404:
        return UsageError(f"the Hub has no {kind} {name!a}; {hint}")
    if status in (401, 403):
        return DataError(
            f"the Hub denies access to {name!a}: no such {kind}, or private or gated; for those, log in with "
            f"`hf auth login` (the token in use, if any, was not accepted)"
        )
    return None


def no_answer(error: Exception, deadline: float, timed_out: bool) -> str:
    """Why there was no answer, as a clause."""
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


def _is_cached(repo_id: str, kind: Kind, revision: str | None, sought: Sought | None) -> bool:
    if sought is not None:
        return _cached_file(repo_id, kind, revision, sought.keys) is not None
    if kind == "model":
        return cached_model(repo_id, revision) is not None
    from huggingface_hub.constants import HF_HOME, HF_HUB_CACHE

    made = Path(os.environ.get("HF_DATASETS_CACHE", Path(HF_HOME) / "datasets")) / repo_id.replace("/", "___")
    return made.is_dir() or (Path(HF_HUB_CACHE) / f"datasets--{repo_id.replace('/', '--')}" / "snapshots").is_dir()


def cached_model(repo_id: str, revision: str | None) -> Path | None:
    """The cached folder of a model repository at a revision, if its config.json is there."""
    config = _cached_file(repo_id, "model", revision, ("config.json",))
    return None if config is None else Path(config).parent


def _cached_file(repo_id: str, kind: Kind, revision: str | None, names: tuple[str, ...]) -> str | None:
    """The first of these files that the cache has at this revision."""
    from huggingface_hub import try_to_load_from_cache

    found = (try_to_load_from_cache(repo_id, name, revision=revision, repo_type=kind) for name in names)
    return next((path for path in found if isinstance(path, str)), None)

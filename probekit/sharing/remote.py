"""The repository that is pushed to: what it holds, and one line for each way in which the Hub refuses.

Tokens come from where the Hub's own client finds them (`hf auth login`, HF_TOKEN); none is read, shown or stored here.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from probekit.errors import DataError, ProbekitError, ResumeMismatch, StorageError, UsageError
from probekit.files.hub import HubAddress, Kind, ask_hub, deadline_of_requests, no_answer, refusal_of

RESUME = "what was uploaded is kept: run the same command again to resume"


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository: its size, the name that git gives its content, and its sha256 where the Hub knows it."""

    size: int
    blob: str
    sha256: str | None


@dataclass(frozen=True)
class Remote:
    """A repository before a push.

    Attributes:
        head: the commit that the branch is at; None where there is no such repository.
        files: those in the folder that is pushed to, by their names in it.
        private: whether only its owners can read it; None where it is not known.
    """

    head: str | None
    files: dict[str, RemoteFile]
    private: bool | None


def check_token() -> None:
    """Raise a StorageError where the Hub's client finds no token."""
    from huggingface_hub import get_token

    if get_token() is None:
        raise StorageError(
            "the Hub takes uploads from people that it knows, and no token was found; log in with `hf auth login`, or "
            "set HF_TOKEN"
        )


def read_remote(address: HubAddress, kind: Kind) -> Remote:
    """The repository, with a deadline for the first answer.

    Raises:
        StorageError: no answer, or no right to write there.
    """
    deadline = deadline_of_requests()
    answer = ask_hub(
        lambda api: api.repo_info(address.repo, repo_type=kind, timeout=deadline, files_metadata=False), deadline
    )
    if isinstance(answer, Exception):
        if is_unknown_repo(answer):
            return Remote(None, {}, None)
        if getattr(answer, "response", None) is None:
            raise StorageError(f"{no_answer(answer, deadline, False)}; nothing was uploaded") from answer
        raise explained(answer, address, kind) from answer
    with hub_errors(address, kind):
        return Remote(*_branch(address, kind, answer.sha), answer.private)


def is_unknown_repo(error: Exception) -> bool:
    """True if the Hub says that there is no such repository; without the right to see it, it says the same."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    return isinstance(error, RepositoryNotFoundError) and not isinstance(error, GatedRepoError)


def _branch(address: HubAddress, kind: Kind, head: str) -> tuple[str, dict[str, RemoteFile]]:
    """The commit of the branch, and the files of the folder; the branch is made if it is missing."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import EntryNotFoundError, RevisionNotFoundError
    from huggingface_hub.hf_api import RepoFile

    api = HfApi()
    api.auth_check(address.repo, repo_type=kind, write=True)
    if address.revision is not None:
        try:
            head = api.repo_info(address.repo, repo_type=kind, revision=address.revision).sha or head
        except RevisionNotFoundError:
            api.create_branch(address.repo, branch=address.revision, repo_type=kind, exist_ok=True)
    start, folder, files = f"{address.folder}/" if address.folder else "", address.folder or None, {}
    try:
        for entry in api.list_repo_tree(address.repo, folder, recursive=True, revision=head, repo_type=kind):
            if isinstance(entry, RepoFile):
                file = RemoteFile(entry.size, entry.blob_id, entry.lfs.sha256 if entry.lfs else None)
                files[entry.path.removeprefix(start)] = file
    except EntryNotFoundError:  # no such folder yet
        return head, {}
    return head, files


def make_repo(address: HubAddress, kind: Kind, private: bool) -> None:
    """Make the repository, and the branch. Raises StorageError: the Hub refuses."""
    from huggingface_hub import HfApi

    with hub_errors(address, kind):
        HfApi().create_repo(address.repo, repo_type=kind, private=private, exist_ok=True)
        if address.revision is not None:
            HfApi().create_branch(address.repo, branch=address.revision, repo_type=kind, exist_ok=True)


@contextmanager
def hub_errors(address: HubAddress, kind: Kind) -> Iterator[None]:
    """Turn what the Hub's client raises into one line."""
    try:
        yield
    except (ProbekitError, MemoryError):
        raise
    except Exception as error:  # of httpx, OSError, ValueError, RuntimeError, the client's own
        raise explained(error, address, kind) from error


def explained(error: Exception, address: HubAddress, kind: Kind) -> ProbekitError:
    """What to do about a refusal or an upload that failed."""
    responses = (getattr(each, "response", None) for each in _causes(error))
    status = next((code for one in responses if (code := getattr(one, "status_code", None)) is not None), None)
    where = f"the {kind} repository {address.repo!a}"
    if status == 401:
        return StorageError("the Hub does not accept the token; log in again with `hf auth login`, or set HF_TOKEN")
    if status == 403 or (status == 404 and is_unknown_repo(error)):
        return StorageError(
            f"the Hub does not let this token write to {where}; take a token with the right to write, or name a "
            "repository of your own"
        )
    if status in (409, 412):
        return ResumeMismatch(f"{where} was changed by somebody else meanwhile; {RESUME}")
    if status == 400 or isinstance(error, ValueError):
        return UsageError(f"the Hub refuses this push to {where}: {_words(error)}")
    if (refusal := refusal_of(error, address.repo, kind, address.revision, "check the name")) is not None:
        return refusal
    if getattr(error, "errno", None) in (errno.ENOENT, errno.EACCES, errno.EIO):
        return DataError(f"a file could not be read: {_words(error)}")
    return StorageError(f"the upload to {where} failed: {_words(error)}; {RESUME}")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _words(error: Exception) -> str:
    """What was said first, in one line; a wrapper of the client says only which file it was."""
    cause = [*_causes(error)][-1]
    return ascii(" ".join(str(cause).split())[:300])[1:-1] or type(cause).__name__

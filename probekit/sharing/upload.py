"""Upload files and commit them: data first, and in the last commit what makes the folder readable."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from probekit.errors import StorageError
from probekit.files.hub import HubAddress, Kind
from probekit.machine.progress import progress_bar
from probekit.sharing.contents import SharedFile
from probekit.sharing.remote import hub_errors

CARD = "README.md"
COMMIT_FILES = 500  # of one commit; the Hub advises against many more
UPLOAD_BYTES = 512 << 20  # that are uploaded between two steps of the progress bar


@dataclass(frozen=True)
class Target:
    """Where files go, the message of their commits, and whether a bar is shown."""

    address: HubAddress
    kind: Kind
    message: str
    progress: bool | None


def upload(where: Target, head: str, files: list[SharedFile], stale: list[str], card: bytes | None) -> str:
    """Upload in as few commits as possible; the name of the last one.

    Args:
        where: the repository.
        head: the commit that the branch is at: if somebody else was faster, the Hub refuses.
        files: what is uploaded.
        stale: names of files that the last commit removes.
        card: the README.md of the last commit; None leaves what is there.

    Raises:
        StorageError: the upload failed; what was uploaded is kept.
        ResumeMismatch: the branch is at another commit.
    """
    bulk = [file for file in sorted(files, key=_order) if not file.is_last]
    closing = [file for file in files if file.is_last]
    groups = [bulk[i : i + COMMIT_FILES] for i in range(0, len(bulk), COMMIT_FILES)]
    if groups and len(groups[-1]) + len(closing) < COMMIT_FILES:
        closing = [*groups.pop(), *closing]
    with progress_bar("push", "B", sum(file.size for file in files), where.progress) as bar, _quiet_client():
        for group in groups:
            head = _commit(where, head, group, [], bar.advance)
        return _commit(where, head, closing, _last_operations(where, stale, card), bar.advance)


def _order(file: SharedFile) -> tuple[bool, str]:
    """Shards first, then the records that name them."""
    return not file.named_by_content, file.name


def _last_operations(where: Target, stale: list[str], card: bytes | None) -> list[Any]:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    removed = [CommitOperationDelete(_remote_name(where, name)) for name in stale]
    return removed if card is None else [*removed, CommitOperationAdd(_remote_name(where, CARD), card)]


def _remote_name(where: Target, name: str) -> str:
    return f"{where.address.folder}/{name}" if where.address.folder else name


def _commit(
    where: Target, head: str, files: list[SharedFile], more: list[Any], advance: Callable[[int], object]
) -> str:
    """Upload these files, some at a time, and commit them with other operations; the name of the commit."""
    from huggingface_hub import CommitOperationAdd, HfApi

    api, repo, of = HfApi(), where.address.repo, {"repo_type": where.kind, "revision": where.address.revision}
    operations = list(more)
    with hub_errors(where.address, where.kind):
        for some in _by_bytes(files):
            additions = [CommitOperationAdd(_remote_name(where, file.name), str(file.path)) for file in some]
            api.preupload_lfs_files(repo, additions, **of)
            operations += additions
            advance(sum(file.size for file in some))
        done = api.create_commit(repo, operations, commit_message=where.message, parent_commit=head or None, **of)
    if not done.oid:
        raise StorageError("the Hub did not name the commit; run the same command again")
    return done.oid


def _by_bytes(files: list[SharedFile]) -> Iterator[list[SharedFile]]:
    """The files in groups of about `UPLOAD_BYTES`."""
    some: list[SharedFile] = []
    for file in files:
        some.append(file)
        if sum(each.size for each in some) >= UPLOAD_BYTES:
            yield some
            some = []
    if some:
        yield some


@contextmanager
def _quiet_client() -> Iterator[None]:
    """Hide the bars of the Hub's client, one for each file, and its doubts about Parquet in a model repository."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    shown = not are_progress_bars_disabled()
    if shown:
        disable_progress_bars()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "It seems that you are about to commit a data file")
            yield
    finally:
        if shown:
            enable_progress_bars()

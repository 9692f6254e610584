"""Upload a store or results to the Hub: only what is missing, data first, what makes it readable last.

A push is one commit, or for many files several: the manifest of a store, or results.json, is in the last one, with the
card, so that nobody ever reads a manifest whose shards are missing. Files are compared by their content, so a second
push uploads nothing, and an interrupted one is resumed.
"""

import hashlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from probekit.errors import ResumeMismatch, StorageError, UsageError
from probekit.export.front_matter import is_unedited
from probekit.files.hub import HubAddress, address_text, parse_address
from probekit.files.plain_files import open_regular
from probekit.files.remote.path import AnyPath
from probekit.machine.progress import progress_bar
from probekit.options import PushOptions
from probekit.options.option import keywords
from probekit.sharing.cards import card_of
from probekit.sharing.contents import SharedFile, SharedFolder, check_bytes, find_shared
from probekit.sharing.remote import Remote, RemoteFile, check_token, hub_errors, make_repo, read_remote
from probekit.text import counted, listed

CARD = "README.md"
OF_GIT = (".gitattributes", ".gitignore")
COMMIT_FILES = 500  # of one commit; the Hub advises against many more
UPLOAD_BYTES = 512 << 20  # that are uploaded between two steps of the progress bar


@dataclass(frozen=True, eq=False)
class PushPlan:
    """What `run_push` uploads, and where."""

    shared: SharedFolder
    address: HubAddress
    options: PushOptions = field(repr=False)


@dataclass(frozen=True)
class Pushed:
    """The result of a push.

    Attributes:
        address: hf://owner/name[@branch][/folder], which `load_activations` and `load_probe` take.
        url: of the repository's page.
        kind: "dataset" or "model".
        private: whether only its owners can read the repository; None where the Hub does not say.
        commit: the commit that holds everything.
        uploaded: files that this push uploaded, the card among them.
        bytes: of these.
        present: files that were there already.
        removed: files of earlier results that were removed.
        card_kept: True if a README.md that this program did not write, or that was edited, stays as it is.
    """

    address: str
    url: str
    kind: str
    private: bool | None
    commit: str
    uploaded: int
    bytes: int
    present: int
    removed: int
    card_kept: bool


@keywords(PushOptions)
def push_to_hub(source: str | Path, repo: str, options: PushOptions) -> Pushed:
    """Upload a store, or results of probes, to the Hugging Face Hub; only files that are missing there are uploaded.

    A store becomes a dataset repository, results a model repository. Texts and labels of a store are uploaded with it.

    Args:
        source: the folder of a store or of results.
        repo: "owner/name", or "owner/name/folder".
        options: one entry for each field.

    Raises:
        UsageError: a name that no repository has; two branches; a public repository, and `private` is True.
        DataError: neither a store nor results at `source`.
        StorageError: a damaged or unfinished store; no network, token or right to write.
        ResumeMismatch: the folder on the Hub holds another store, or files that are not of one.
    """
    return run_push(plan_push(source, repo, options))


def plan_push(source: str | AnyPath, repo: str, options: PushOptions) -> PushPlan:
    """The plan of a push; nothing is sent. Errors as in `push_to_hub`."""
    shared = find_shared(source)
    address = parse_address(repo, shared.kind)
    if options.revision not in (None, address.revision) and address.revision is not None:
        raise UsageError(
            f"the address names the branch {address.revision!a:.60} and revision (--revision) {options.revision!a}; "
            "leave one out"
        )
    # again through the options, which check the name of the branch
    options = replace(options, revision=options.revision or address.revision)
    return PushPlan(shared, replace(address, revision=options.revision), options)


def run_push(plan: PushPlan) -> Pushed:
    """Upload what is missing, as `push_to_hub` does."""
    from huggingface_hub import constants

    shared, address = plan.shared, plan.address
    check_token()
    remote = read_remote(address, shared.kind)
    if plan.options.private and remote.private is False:
        raise UsageError(
            f"everybody can read the {shared.kind} repository {address.repo!a}, so everybody could read what is "
            "pushed; say --public (private=False), or make it private in its settings on the Hub"
        )
    _check_folder(plan, remote)
    check_bytes(shared)
    if remote.head is None:
        make_repo(address, shared.kind, plan.options.private)
        remote = read_remote(address, shared.kind)
    missing = [
        # one that replaces another comes with the file that names its checksum
        replace(file, is_last=file.is_last or file.name in remote.files)
        for file in shared.files
        if not _is_there(file, remote.files.get(file.name))
    ]
    card, kept = _card(plan, remote)
    names = {file.name for file in shared.files}
    stale = sorted(name for name in remote.files if shared.own.fullmatch(name) and name not in names)
    commit = remote.head or ""
    if missing or stale or card is not None:
        commit = upload(plan, commit, missing, stale, card)
    prefix = "datasets/" if shared.kind == "dataset" else ""
    return Pushed(
        address=address_text(address),
        url=f"{constants.ENDPOINT}/{prefix}{address.repo}",
        kind=shared.kind,
        private=remote.private,
        commit=commit,
        uploaded=len(missing) + (card is not None),
        bytes=sum(file.size for file in missing) + len(card or b""),
        present=len(shared.files) - len(missing),
        removed=len(stale),
        card_kept=kept,
    )


def _check_folder(plan: PushPlan, remote: Remote) -> None:
    """Raise a ResumeMismatch if the folder on the Hub holds something else."""
    shared, where = plan.shared, ascii(address_text(plan.address))
    foreign = [name for name in remote.files if name not in (CARD, *OF_GIT) and shared.own.fullmatch(name) is None]
    if foreign:
        names = listed([ascii(name) for name in sorted(foreign)], most=3)
        raise ResumeMismatch(
            f"{where} holds files that are not of {shared.what} ({names}); name another repository, or a folder in it "
            "(owner/name/folder)"
        )
    there = remote.files.get("plan.json")
    if there is not None and not _is_there(next(file for file in shared.files if file.name == "plan.json"), there):
        raise ResumeMismatch(
            f"{where} holds another store; name another repository, or a folder in it (owner/name/folder)"
        )


def _is_there(file: SharedFile, there: RemoteFile | None) -> bool:
    """Whether the repository has this content under this name."""
    if there is None or there.size != file.size:
        return False
    if file.named_by_content:
        return True
    digest = hashlib.sha256()
    if there.sha256 is None:  # the name that git gives the content
        digest = hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
    with open_regular(file.path) as opened:
        while piece := opened.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest() == (there.sha256 or there.blob)


def _card(plan: PushPlan, remote: Remote) -> tuple[bytes | None, bool]:
    """The card, or None where it need not be uploaded; and whether one that somebody wrote stays."""
    from huggingface_hub import hf_hub_download

    address = replace(plan.address, revision=None)
    text = card_of(plan.shared, address_text(address), plan.options.license).encode("utf-8", "backslashreplace")
    there = remote.files.get(CARD)
    if there is None:
        return text, False
    name = f"{address.folder}/{CARD}".lstrip("/")
    with hub_errors(address, plan.shared.kind):
        path = hf_hub_download(address.repo, name, repo_type=plan.shared.kind, revision=remote.head)
    found = Path(path).read_bytes()
    if found == text:
        return None, False
    is_own = is_unedited(found.decode(errors="replace"))
    return (text, False) if is_own else (None, True)


def upload(plan: PushPlan, head: str, files: list[SharedFile], stale: list[str], card: bytes | None) -> str:
    """Upload in as few commits as possible; the name of the last one.

    Args:
        plan: the repository, and the message of the commits.
        head: the commit that the branch is at: if somebody else was faster, the Hub refuses.
        files: what is uploaded.
        stale: names of files that the last commit removes.
        card: the README.md of the last commit; None leaves what is there.

    Raises:
        StorageError: the upload failed; what was uploaded is kept.
        ResumeMismatch: the branch is at another commit.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    def order(file: SharedFile) -> tuple[bool, str]:
        return not file.named_by_content, file.name  # shards first, then the records that name them

    bulk = [file for file in sorted(files, key=order) if not file.is_last]
    closing = [file for file in files if file.is_last]
    groups = [bulk[i : i + COMMIT_FILES] for i in range(0, len(bulk), COMMIT_FILES)]
    if groups and len(groups[-1]) + len(closing) < COMMIT_FILES:
        closing = [*groups.pop(), *closing]
    last: list[Any] = [CommitOperationDelete(_remote_name(plan, name)) for name in stale]
    last += [] if card is None else [CommitOperationAdd(_remote_name(plan, CARD), card)]
    total = sum(file.size for file in files)
    with progress_bar("push", "B", total, plan.options.progress) as bar, _quiet_client():
        for group in groups:
            head = _commit(plan, head, group, [], bar.advance)
        return _commit(plan, head, closing, last, bar.advance)


def _remote_name(plan: PushPlan, name: str) -> str:
    return f"{plan.address.folder}/{name}" if plan.address.folder else name


def _commit(
    plan: PushPlan, head: str, files: list[SharedFile], more: list[Any], advance: Callable[[int], object]
) -> str:
    """Upload these files, some at a time, and commit them with other operations; the name of the commit."""
    from huggingface_hub import CommitOperationAdd, HfApi

    shared, address = plan.shared, plan.address
    message = plan.options.message or f"{shared.what} of {counted(len(shared.files), 'file')}"
    api, repo, of = HfApi(), address.repo, {"repo_type": shared.kind, "revision": address.revision}
    operations = list(more)
    with hub_errors(address, shared.kind):
        for some in _by_bytes(files):
            additions = [CommitOperationAdd(_remote_name(plan, file.name), str(file.path)) for file in some]
            api.preupload_lfs_files(repo, additions, **of)
            operations += additions
            advance(sum(file.size for file in some))
        done = api.create_commit(repo, operations, commit_message=message, parent_commit=head or None, **of)
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

"""Uploads in parts that a run left unfinished: nobody sees them, and S3 charges for them until they are aborted."""

import contextlib
from email.utils import parsedate_to_datetime
from typing import Any

from probekit.errors import StorageError
from probekit.files.remote.attempts import attempt
from probekit.files.remote.filesystems import filesystem
from probekit.files.remote.path import RemotePath


def abort_stale_uploads(folder: RemotePath, seconds: float) -> None:
    """Abort the uploads below a folder that began more than so many seconds ago, by the store's own clock.

    Only S3 has such uploads; Google ends them by itself after a week. What cannot be listed or aborted stays.
    """
    if folder.scheme != "s3":
        return
    bucket, _, prefix = folder.key.partition("/")
    files = filesystem("s3")

    def ask(verb: str, **about: Any) -> dict[str, Any]:
        return attempt("s3", str(folder), lambda: files.call_s3(verb, Bucket=bucket, **about))

    with contextlib.suppress(StorageError, OSError):  # the right to write does not imply this one
        answer = ask("list_multipart_uploads", Prefix=f"{prefix}/" if prefix else "")
        now = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
        for upload in answer.get("Uploads", []):
            if (now - upload["Initiated"]).total_seconds() > seconds:
                ask("abort_multipart_upload", Key=upload["Key"], UploadId=upload["UploadId"])

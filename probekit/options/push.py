"""The options of `push_to_hub` and `probekit push`."""

import re
from dataclasses import dataclass

from probekit.errors import UsageError
from probekit.options.option import like, option
from probekit.options.progress import ProgressOptions

_LICENSE = re.compile(r"[a-z0-9][a-z0-9.-]{1,39}")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,99}")


@dataclass(frozen=True, kw_only=True)
class PushOptions:
    """Who can read what is pushed, where it goes, and what its card says."""

    private: bool = option(
        True,
        "Who can read a new repository: its owners alone, or everybody. A public one is pushed to with --public alone.",
        flag="--private/--public",
        notes="The visibility of a repository that is there already is not changed.",
    )
    revision: str | None = option(None, "Branch to push to; made if it is missing.  [default: main]", metavar="BRANCH")
    message: str | None = option(None, "Message of the commit.  [default: what is pushed]", metavar="TEXT")
    license: str | None = option(
        None, "License in the card, as the Hub names it: mit, apache-2.0, cc-by-4.0.", metavar="NAME"
    )
    progress: bool | None = like(ProgressOptions, "progress")

    def __post_init__(self) -> None:
        if self.license is not None and _LICENSE.fullmatch(self.license) is None:
            raise UsageError(
                f"license (--license) is a name of the Hub's list, such as apache-2.0; got {self.license!a:.60}"
            )
        if self.revision is not None and (_REVISION.fullmatch(self.revision) is None or ".." in self.revision):
            raise UsageError(f"revision (--revision) is the name of a branch; got {self.revision!a:.60}")
        if self.message is not None and not self.message.strip():
            raise UsageError("the message of the commit (--message) is empty; write one, or leave it out")

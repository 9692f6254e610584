"""Versions of the software that made a result."""

import functools
import platform
from importlib.metadata import version

from probekit import __version__


@functools.cache
def _installed(package: str) -> str:
    return version(package)


def versions_of(*packages: str) -> dict[str, str]:
    """The versions of probekit, Python and these packages."""
    found = {package: _installed(package) for package in packages}
    return {"probekit": __version__, "python": platform.python_version(), **found}

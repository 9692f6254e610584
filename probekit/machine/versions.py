"""Versions of the software that made a result."""

from functools import cache

__version__ = "0.1.0"


def versions_of(*packages: str) -> dict[str, str]:
    """The versions of probekit, Python and these packages."""
    return {"probekit": __version__} | {package: _version(package) for package in ("python", *packages)}


@cache  # 5 ms to read one, and each curve has five
def _version(package: str) -> str:
    # imported here: `--version` and `import probekit` read only the first line
    import platform
    from importlib.metadata import version

    return platform.python_version() if package == "python" else version(package)

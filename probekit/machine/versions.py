"""Versions of the software that made a result."""

__version__ = "0.1.0"


def versions_of(*packages: str) -> dict[str, str]:
    """The versions of probekit, Python and these packages."""
    # imported here: `--version` and `import probekit` read only the line above
    import platform
    from importlib.metadata import version

    found = {package: version(package) for package in packages}
    return {"probekit": __version__, "python": platform.python_version(), **found}

import os
from pathlib import Path

import pytest

SHARED = Path(os.environ.get("PROBEKIT_SHARED", Path(__file__).parents[2] / "shared"))


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of real data kept beside the project (see CONTRIBUTING.md); tests that need it are marked `shared`."""
    if not SHARED.is_dir():
        pytest.skip(f"no data folder at {SHARED} (set PROBEKIT_SHARED)")
    return SHARED

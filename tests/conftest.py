import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_repos import repos
from hub_server import HubServer
from hypothesis import settings

settings.register_profile("untimed", deadline=None)  # a machine under load is no fault of the code
settings.load_profile("untimed")
SHARED = Path(os.environ.get("PROBEKIT_SHARED", Path(__file__).parents[2] / "shared"))


def pytest_configure() -> None:
    """Give children the default handler of Ctrl-C; a job in the background starts with SIGINT ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def no_open_figures() -> Iterator[None]:
    """Close what a test has drawn: pyplot warns of more than 20 figures, in whichever test comes next."""
    yield
    if (pyplot := sys.modules.get("matplotlib.pyplot")) is not None:
        pyplot.close("all")


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of real data kept beside the project (see CONTRIBUTING.md); tests that need it are marked `shared`."""
    if not SHARED.is_dir():
        pytest.skip(f"no data folder at {SHARED} (set PROBEKIT_SHARED)")
    return SHARED


@pytest.fixture(scope="session")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubServer]:
    """A Hub on loopback with a tiny GPT-2 and a tiny SST-2, for processes started with `env=hub.env`."""
    server = HubServer(repos(), tmp_path_factory.mktemp("hf_home"))
    yield server
    server.close()

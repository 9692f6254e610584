"""A browser, and reports to open in it."""

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from open_pages import Pages

from probekit.cli import demo
from probekit.cli.main import run
from probekit.options import TaskOptions

FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --window-size=1200,900"
)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    """Chromium without a window, driven by selenium; skips where one of them is missing."""
    programs = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
    if missing := [name for name, path in programs.items() if path is None]:
        pytest.skip(f"{' and '.join(missing)} not installed")
    webdriver = pytest.importorskip("selenium.webdriver")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(programs["chromium"])
    for flag in [*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(programs["chromedriver"])))
    driver.get("about:blank")  # leaves the page of a new tab, which has a log of its own
    yield Pages(driver)
    driver.quit()


@pytest.fixture(scope="session")
def demo_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page that `probekit demo` writes, of fewer texts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("demo"))
        patch.setattr(demo, "TaskOptions", partial(TaskOptions, limit=120))
        assert run(["demo", "--quiet"]) == 0
        (path,) = Path().resolve().glob("runs/*/report.html")
    return path

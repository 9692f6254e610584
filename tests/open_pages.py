"""Pages in a browser, and what it says of them."""

import json
from pathlib import Path
from typing import Any

PHONE, DESK = (390, 800), (1200, 900)
HARMLESS = ("file:", "data:", "about:")


class Pages:
    """A browser that opens files."""

    def __init__(self, driver: Any):
        self.driver = driver

    def open(self, path: Path, size: tuple[int, int] = DESK, theme: str = "light") -> None:
        """Open a file, as a window of this size and with this theme of the system shows it."""
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self.driver.get("about:blank")
        self.driver.get_log("browser")
        self.driver.get_log("performance")
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features, "media": ""})
        shape = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", shape)
        self.driver.execute_cdp_cmd("Emulation.setFocusEmulationEnabled", {"enabled": True})  # of a hidden window
        self.driver.get(path.as_uri())

    def do(self, script: str, *args: Any) -> Any:
        """What a script gives, in the page."""
        return self.driver.execute_script(script, *args)

    def press(self, *keys: str) -> None:
        """Press keys where the focus is."""
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def requests(self) -> list[str]:
        """The addresses that were asked for since the page was opened."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]

    def check_quiet(self, path: Path) -> None:
        """The console is empty, and nothing but the page itself was asked for."""
        assert self.driver.get_log("browser") == []
        assert {url.split("#")[0] for url in self.requests() if not url.startswith("data:")} <= {path.as_uri()}

"""Drive a headless Chromium on a page that is served over HTTP.

The server runs on a loop of its own, in a thread; a cluster is changed by `do`, on that loop. Whatever the browser's console
says at the end of a test (an error, a violation of the page's policy) fails it.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, TypeVar

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from simnode.page import Served, SimCluster

T = TypeVar("T")
PATIENCE_S: Final = 15.0
FLAGS: Final = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
)


def start_chromium(profile: Path, *, binary: str, driver: str) -> webdriver.Chrome:
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service(driver))


class Loop:
    """Run an event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def call(self, work: Callable[[], T]) -> T:
        done: Future[T] = Future()

        def do() -> None:
            try:
                done.set_result(work())
            except Exception as e:  # noqa: BLE001 - it is raised where it was asked for
                done.set_exception(e)

        self._loop.call_soon_threadsafe(do)
        return done.result(PATIENCE_S)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()


class Tab:
    """Open the page of one cluster, and read and use it as a person does."""

    def __init__(self, driver: webdriver.Chrome, loop: Loop, served: Served, url: str) -> None:
        self.driver = driver
        self.served = served
        self.cluster: SimCluster = served.cluster
        self.url = url
        self._loop = loop

    def do(self, work: Callable[[SimCluster], T]) -> T:
        """Run the function on the server's event loop."""
        return self._loop.call(lambda: work(self.cluster))

    def set_leads(self, leads: bool) -> None:
        self._loop.call(lambda: setattr(self.served, "leads", leads))

    # ---- looking

    def open(self, link: str = "") -> "Tab":
        self.driver.get("about:blank")  # else a change of what is behind # loads nothing
        self.driver.get(self.url + link)
        return self

    def open_drawn(self, link: str = "") -> "Tab":
        self.open(link).until(lambda: self.script("return document.querySelectorAll('[role=gridcell]').length") > 0)
        return self

    def script(self, text: str, *message: object) -> Any:
        return self.driver.execute_script(text, *message)

    def all(self, css: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def one(self, css: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, css)

    def text(self, css: str) -> str:
        return str(self.script("return document.querySelector(arguments[0])?.textContent ?? ''", css))

    def cell(self, device: str, node: str = "") -> WebElement:
        """Return the cell of a GPU, given its UUID, or of a NIC, given its PCI address and node."""
        return self.one(f'{_row(node) if node else ""} [data-cell="{device}"]')

    def head(self, node: str) -> WebElement:
        return self.one(f"{_row(node)} > .head")

    def rows(self) -> list[str]:
        return list(self.script("return [...document.querySelectorAll('.node')].map((row) => row.dataset.node)"))

    def classes(self, element: WebElement) -> set[str]:
        return set((element.get_attribute("class") or "").split())

    def focused(self) -> WebElement:
        return self.driver.switch_to.active_element

    def until(self, holds: Callable[[], T]) -> T:
        """Wait until the condition holds. An element that the page replaces meanwhile is searched again."""
        wait = WebDriverWait(self.driver, PATIENCE_S, poll_frequency=0.05, ignored_exceptions=[StaleElementReferenceException])
        return wait.until(lambda _: holds())

    # ---- doing

    def press(self, *keys: str) -> None:
        for key in keys:
            ActionChains(self.driver).send_keys(key).perform()

    def hover(self, element: WebElement) -> None:
        ActionChains(self.driver).move_to_element(element).perform()

    def emulate(self, **features: str) -> None:
        """Set media features, by name with `_` for `-`."""
        text = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": text})

    def resize(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def console(self) -> list[str]:
        """Return what the browser's console said since the last call."""
        text: Sequence[dict[str, Any]] = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [str(one["message"]) for one in text]


def _row(node: str) -> str:
    return f'.node[data-node="{node}"]'

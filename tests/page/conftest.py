"""Start one browser for all tests of the page, and a server and cluster for each test; tests that change nothing share one."""

import shutil
from collections.abc import Callable, Iterator

import pytest
from selenium import webdriver

from simnode.page import Served, SimCluster
from tests.fakes.needs import need
from tests.page.browser import Loop, Tab, start_chromium

OpenTab = Callable[[SimCluster], Tab]


@pytest.fixture(scope="package")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    need(binary is not None and driver is not None, "chromium and chromedriver")
    browser = start_chromium(tmp_path_factory.mktemp("chromium"), binary=str(binary), driver=str(driver))
    browser.set_script_timeout(10)
    yield browser
    browser.quit()


@pytest.fixture(scope="package")
def loop() -> Iterator[Loop]:
    one = Loop()
    yield one
    one.close()


@pytest.fixture
def tab_on(chromium: webdriver.Chrome, loop: Loop) -> Iterator[OpenTab]:
    """Serve the page of a cluster until the test ends; then the browser's console must be free of errors."""
    served: list[Served] = []
    tabs: list[Tab] = []

    def serve(cluster: SimCluster) -> Tab:
        served.append(Served(cluster))
        tabs.append(Tab(chromium, loop, served[-1], loop.run(served[-1].start())))
        tabs[-1].resize(1280, 900)
        tabs[-1].emulate()
        tabs[-1].console()
        return tabs[-1]

    yield serve
    text = tabs[-1].console() if tabs else []
    chromium.get("about:blank")
    for one in served:
        loop.run(one.close())
    assert text == []


@pytest.fixture
def small() -> SimCluster:
    """Serve a small cluster: `h100-01`, `a100-01` and `gpu-01`; `train` has two GPUs and two VFs, `a` and `b` share a card,
    `large` fits nowhere."""
    cluster = SimCluster(3)
    for name, limits in (("train", {"gpu": "2", "rdma": "2"}), ("a", {"gpu-memory": "8Gi"}), ("b", {"gpu-memory": "8Gi"})):
        assert cluster.schedule(cluster.create(name, limits, namespace="team"))
    assert not cluster.schedule(cluster.create("large", {"gpu-memory": "200Gi"}, namespace="team"))
    return cluster

"""Test the proxy for a server by the rules of golang.org/x/net/http/httpproxy and its own tests (`proxy_test.go`)."""

import pytest

from lading.kube.proxies import find_proxy

PROXY = "http://proxy:3128"


@pytest.mark.parametrize(
    ("environment", "proxy"),
    [
        ({}, None),
        ({"HTTPS_PROXY": PROXY}, PROXY),
        ({"https_proxy": PROXY}, PROXY),
        ({"HTTPS_PROXY": PROXY, "https_proxy": "http://lower"}, PROXY),
        ({"HTTPS_PROXY": "proxy:3128"}, PROXY),
        ({"HTTP_PROXY": PROXY}, None),
    ],
)
def test_the_variable_of_the_scheme(environment: dict[str, str], proxy: str | None) -> None:
    assert find_proxy("https://api.example:6443", environment) == proxy


@pytest.mark.parametrize("server", ["https://localhost", "https://127.1.2.3:6443", "https://[::1]:6443"])
def test_this_machine_has_no_proxy(server: str) -> None:
    assert find_proxy(server, {"HTTPS_PROXY": PROXY}) is None


@pytest.mark.parametrize(
    ("host", "no_proxy", "excepted"),
    [
        ("api.example:6443", "*", True),
        ("api.example:6443", "example", True),
        ("example", "example", True),
        ("example", ".example", False),
        ("api.example", ".example", True),
        ("api.example", "*.example", True),
        ("myexample", "example", False),
        ("API.Example", "api.EXAMPLE", True),
        ("api.example:6443", "other, api.example:6443", True),
        ("api.example:6443", "api.example:443", False),
        ("api.example", "api.example:443", True),
        ("10.1.2.3:6443", "10.0.0.0/8", True),
        ("11.1.2.3:6443", "10.0.0.0/8", False),
        ("10.1.2.3:6443", "10.1.2.3", True),
        ("10.1.2.3:6443", "10.1.2.3:443", False),
        ("[fd00::1]:6443", "fd00::/8", True),
        ("[fd00::1]:6443", "fd00::1", True),
        ("[fd00::1]:6443", "[fd00::1]:6443", True),
        ("api.example", "10.0.0.0/99,,", False),
    ],
)
def test_no_proxy(host: str, no_proxy: str, excepted: bool) -> None:
    assert (find_proxy(f"https://{host}", {"HTTPS_PROXY": PROXY, "NO_PROXY": no_proxy}) is None) == excepted

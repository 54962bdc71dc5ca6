"""Choose the proxy of a server from the environment, by the rules of kubectl.

Pure. Example:

    find_proxy("https://api.example:6443", {"HTTPS_PROXY": "proxy:3128", "NO_PROXY": ".internal,10.0.0.0/8"})
    → "http://proxy:3128"

Source: golang.org/x/net/http/httpproxy, which client-go uses.
"""

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}


def find_proxy(server: str, environment: Mapping[str, str]) -> str | None:
    """Return the URL of the proxy for requests to the server, or None for a direct connection."""
    url = urlsplit(server)
    proxy = _read(environment, f"{url.scheme}_proxy")
    host = (url.hostname or "").rstrip(".")
    if not proxy or _is_local(host) or _is_excepted(host, url.port or _PORTS.get(url.scheme), _read(environment, "no_proxy")):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _read(environment: Mapping[str, str], name: str) -> str:
    return environment.get(name.upper()) or environment.get(name, "")


def _is_local(host: str) -> bool:
    address = _parse_address(host)
    return host == "localhost" if address is None else address.is_loopback


def _is_excepted(host: str, port: int | None, no_proxy: str) -> bool:
    return any(_matches(host.lower(), port, entry.strip().lower()) for entry in no_proxy.split(","))


def _matches(host: str, port: int | None, entry: str) -> bool:
    """Return whether the entry of NO_PROXY covers the host: `*`, a network, an address, or a domain with its subdomains
    (`.domain`: only those). Address and domain may have a port."""
    if not entry:
        return False
    if entry == "*":
        return True
    address = _parse_address(host)
    try:
        network = ipaddress.ip_network(entry, strict=False) if "/" in entry else None
    except ValueError:
        return False
    if network is not None:
        return address is not None and address in network
    name, their_port = _split_port(entry)
    if their_port is not None and their_port != port:
        return False
    if (theirs := _parse_address(name)) is not None:
        return theirs == address
    name = name.removeprefix("*")
    return host.endswith(name) if name.startswith(".") else host == name or host.endswith(f".{name}")


def _split_port(entry: str) -> tuple[str, int | None]:
    if _parse_address(entry.strip("[]")) is not None:
        return entry.strip("[]"), None
    name, colon, port = entry.rpartition(":")
    return (name.strip("[]"), int(port)) if colon and port.isdecimal() else (entry, None)


def _parse_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None

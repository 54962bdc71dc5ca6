"""Of the other daemon's configuration what this one has to agree with. Its own doctor says what is wrong with that file."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyConfig:
    """The defaults are lading-runtimeproxy's own."""

    listen: str = "/run/lading/cri.sock"
    runtime_endpoint: str = "/run/containerd/containerd.sock"
    hooks_dir: str = "/etc/lading/hooks.d"
    metrics: str = "127.0.0.1:9440"


@dataclass(frozen=True, slots=True, kw_only=True)
class HooksConfig:
    """The defaults are lading-hooks' own."""

    metrics: str = "127.0.0.1:9441"

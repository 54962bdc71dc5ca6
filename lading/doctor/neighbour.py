"""The part of the other daemon's configuration that this one must agree with. Its own doctor reports errors in that file."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyConfig:
    """The proxy's configuration. The defaults are lading-runtimeproxy's own."""

    listen: str = "/run/lading/cri.sock"
    runtime_endpoint: str = "/run/containerd/containerd.sock"
    hooks_dir: str = "/etc/lading/hooks.d"
    metrics: str = "127.0.0.1:9440"


@dataclass(frozen=True, slots=True, kw_only=True)
class HooksConfig:
    """The hooks' configuration. The defaults are lading-hooks' own."""

    metrics: str = "127.0.0.1:9441"

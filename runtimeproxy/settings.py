"""Define every setting of the proxy: configuration key, flag, default, help."""

from pathlib import Path
from typing import Annotated, Final

import msgspec

from lading.log import Level
from lading.settings import Setting

CONFIG: Final = Path("/etc/lading/runtimeproxy.toml")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    listen: Annotated[str, Setting("socket for kubelet's --container-runtime-endpoint")] = "/run/lading/cri.sock"
    runtime_endpoint: Annotated[str, Setting("the container runtime's CRI socket")] = "/run/containerd/containerd.sock"
    hooks_dir: Annotated[str, Setting("folder of hook registrations (*.json)")] = "/etc/lading/hooks.d"
    guarded_prefixes: Annotated[
        tuple[str, ...],
        Setting("a pod with an annotation under one of these never starts without its hooks' answer"),
    ] = ("lading.dev/",)
    drain_timeout: Annotated[
        float,
        msgspec.Meta(ge=0, le=600),
        Setting("seconds that open calls get to end after SIGTERM"),
    ] = 15.0
    max_connections: Annotated[
        int,
        msgspec.Meta(ge=2, le=4096),
        Setting("connections at a time; kubelet needs two"),
    ] = 256
    metrics: Annotated[
        str,
        Setting("address and port of /metrics, /healthz and /readyz; empty for none"),
    ] = "127.0.0.1:9440"
    otlp_endpoint: Annotated[
        str, Setting("URL of an OpenTelemetry collector, like http://127.0.0.1:4318/v1/traces; empty: no traces")
    ] = ""
    log_level: Annotated[Level, Setting("debug (every call), info, warning or error")] = Level.INFO

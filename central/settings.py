"""Every setting of central: configuration key, flag, default, help."""

import os
import socket
from pathlib import Path
from typing import Annotated, Final

import msgspec

from central.ask.model import Policy
from central.bind.signer import Signer, load_signer
from lading.errors import ConfigError
from lading.health import Address, parse_address
from lading.log import Level
from lading.settings import Setting

CONFIG: Final = Path("/etc/lading/central.toml")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    listen: Annotated[str, Setting("address and port for kube-scheduler's questions")] = "127.0.0.1:8080"
    tls_certificate: Annotated[str, Setting("PEM file; empty: plain HTTP")] = ""
    tls_key: Annotated[str, Setting("PEM file of its private key")] = ""
    tls_client_ca: Annotated[str, Setting("PEM file: callers need a certificate that it signed")] = ""
    kubeconfig: Annotated[str, Setting("how to reach the API server; empty: as the pod that this runs in")] = ""
    signing_key: Annotated[str, Setting("PEM file of the Ed25519 key that signs assignments; empty: they are not signed")] = ""
    key_id: Annotated[str, Setting("its name in the nodes' [keys]")] = "k1"
    policy: Annotated[Policy, Setting("for pods without lading.dev/policy: binpack or spread")] = Policy.BINPACK
    lease_namespace: Annotated[str, Setting("where the lease of the leader is")] = "lading-system"
    lease_name: Annotated[str, Setting("its name")] = "lading-central"
    identity: Annotated[str, Setting("this replica's name in the lease; empty: the host's")] = ""
    metrics: Annotated[str, Setting("address and port of /metrics, /healthz and /readyz; empty for none")] = "127.0.0.1:9442"
    log_level: Annotated[Level, Setting("debug, info, warning or error")] = Level.INFO

    @property
    def name(self) -> str:
        return self.identity or os.environ.get("POD_NAME", "") or socket.gethostname()


def check(settings: Settings) -> None:
    """What only several settings, or the files that they name, can show. Raises ConfigError."""
    if parse_address(settings.listen) is None:
        raise ConfigError("listen is empty", hint="listen = 127.0.0.1:8080")
    parse_address(settings.metrics)
    if bool(settings.tls_certificate) != bool(settings.tls_key):
        raise ConfigError("tls_certificate and tls_key: one without the other", hint="set both, or neither for plain HTTP")
    if settings.tls_client_ca and not settings.tls_certificate:
        raise ConfigError("tls_client_ca is set, and there is no TLS", hint="set tls_certificate and tls_key too")
    read_signer(settings)


def listen_address(settings: Settings) -> Address:
    address = parse_address(settings.listen)
    if address is None:
        raise ConfigError("listen is empty", hint='listen = "127.0.0.1:8080"')
    return address


def read_signer(settings: Settings) -> Signer | None:
    return load_signer(Path(settings.signing_key), settings.key_id) if settings.signing_key else None

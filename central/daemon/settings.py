"""Define every setting of central: configuration key, flag, default, help."""

import ipaddress
import os
import socket
import ssl
from pathlib import Path
from typing import Annotated, Final

import msgspec

from central.assignment.networks import parse_vf_network
from central.controllers.share_bypass import Bypassed
from central.daemon.keys import Signer, load_signer
from central.http import server_tls
from central.rank.workload import PodKind, parse_workload
from central.request.dialects.options import NO_OPTIONS, DialectOptions
from central.request.model import PartitionPolicy, Policy
from central.request.parse import Dialects
from central.state.nodes import CACHED_KEYS
from lading.errors import ConfigError
from lading.health import Address, parse_address
from lading.log import Level
from lading.settings import Setting
from lading.signature import read_public_keys
from lading.vocabulary import CENTRAL, SYSTEM_NAMESPACE

CONFIG: Final = Path("/etc/lading/central.toml")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    listen: Annotated[str, Setting("address and port for kube-scheduler's requests")] = "127.0.0.1:8080"
    page_listen: Annotated[str, Setting("address and port of the page and of kubectl lading's requests; empty: none")] = (
        "127.0.0.1:8081"
    )
    tls_certificate: Annotated[str, Setting("PEM file, for both addresses; empty: plain HTTP")] = ""
    tls_key: Annotated[str, Setting("PEM file of its private key")] = ""
    tls_client_ca: Annotated[str, Setting("PEM file: callers need a certificate that it signed")] = ""
    tls_client_names: Annotated[
        tuple[str, ...], Setting("common names of certificates that may call the verbs; empty: all that tls_client_ca signed")
    ] = ()
    tls_readers: Annotated[bool, Setting("with tls_client_ca: clients of page_listen need no certificate")] = False
    kubeconfig: Annotated[str, Setting("kubeconfig file; empty: in-cluster service account")] = ""
    signing_key: Annotated[str, Setting("PEM file of the Ed25519 key that signs assignments; empty: they are not signed")] = ""
    key_id: Annotated[str, Setting("name of signing_key in the nodes' [keys]")] = "k1"
    keys: Annotated[dict[str, str], Setting("public keys that signed assignments before: key id = PEM file", flag=False)] = {}
    policy: Annotated[Policy, Setting("for pods without lading.dev/policy: fragmentation, binpack or spread")] = (
        Policy.FRAGMENTATION
    )
    workload: Annotated[str, Setting("policy fragmentation: JSON file of the expected pods; empty: none")] = ""
    learn_workload: Annotated[bool, Setting("policy fragmentation: learn from incoming pods, in addition to the file")] = True
    patience: Annotated[
        int,
        msgspec.Meta(ge=0, le=604_800),
        Setting(
            "seconds that a pod for several whole GPUs waits before central keeps the free devices of one node for it; 0: never"
        ),
    ] = 600
    gang_plan_share: Annotated[
        int,
        msgspec.Meta(ge=1, le=100),
        Setting("percent of the devices that gangs may hold that are planned and not bound; one gang may be larger"),
    ] = 50
    gang_finish: Annotated[
        int,
        msgspec.Meta(ge=1, le=3600),
        Setting("seconds for which a gang of which a member is bound may wait for the others, at most; it may say less"),
    ] = 60
    topology_keys: Annotated[tuple[str, ...], Setting("node labels that describe topology, which gangs may name")] = CACHED_KEYS
    bypassed: Annotated[Bypassed, Setting("a pod that does not keep to its share of a card: report, or end: evict it too")] = (
        Bypassed.REPORT
    )
    quota_delay: Annotated[
        int,
        msgspec.Meta(ge=0, le=604_800),
        Setting("seconds for which a quota must use more than it may, until its pods are evicted for another quota; 0: never"),
    ] = 120
    quota_status: Annotated[bool, Setting("write what each ElasticQuota uses, and may use, into the object")] = True
    spread_containers_per_card: Annotated[
        int,
        msgspec.Meta(ge=0, le=100),
        Setting("policy spread: number of containers that share a card when each requests one card; 0: off"),
    ] = 0
    nvswitch_partition: Annotated[
        PartitionPolicy, Setting("for pods without lading.dev/nvswitch-partition: prefer or honor")
    ] = PartitionPolicy.PREFER
    cni_network: Annotated[
        str, Setting("nodes with attach = cni: the NetworkAttachmentDefinition of VFs, as namespace/vf-{vf}; empty: none")
    ] = ""
    foreign_annotations: Annotated[
        tuple[str, ...], Setting("annotations below lading.dev/ of other systems, which pods with devices may have")
    ] = ()
    dialects: Annotated[DialectOptions, Setting("other systems whose pods central places: docs/migration.md", flag=False)] = (
        NO_OPTIONS
    )
    lease_namespace: Annotated[str, Setting("namespace of the leader's lease")] = SYSTEM_NAMESPACE
    lease_name: Annotated[str, Setting("name of the leader's lease")] = CENTRAL
    identity: Annotated[
        str, Setting("this replica's name in the lease; empty: POD_NAME of the environment, or the host name")
    ] = ""
    service: Annotated[str, Setting("Service without a selector that central points at the leader; empty: none")] = ""
    advertise: Annotated[str, Setting("this replica's IP address for service; empty: POD_IP of the environment")] = ""
    metrics: Annotated[str, Setting("address and port of /metrics, /healthz and /readyz; empty: none")] = "127.0.0.1:9442"
    probes: Annotated[str, Setting("address and port of /healthz and /readyz alone, for kubelet; empty: only at metrics")] = ""
    page: Annotated[bool, Setting("the page of the cluster at / of page_listen, and GET /v1/cluster")] = True
    otlp_endpoint: Annotated[
        str, Setting("URL of an OpenTelemetry collector, like http://127.0.0.1:4318/v1/traces; empty: no traces")
    ] = ""
    log_level: Annotated[Level, Setting("debug, info, warning or error")] = Level.INFO

    @property
    def name(self) -> str:
        return self.identity or os.environ.get("POD_NAME", "") or socket.gethostname()


def check(settings: Settings) -> None:
    """Check combinations of settings, and the files that they name. Raise ConfigError."""
    if parse_address(settings.listen) is None:
        raise ConfigError("listen is empty", hint="listen = 127.0.0.1:8080")
    parse_address(settings.page_listen)
    parse_address(settings.metrics)
    parse_address(settings.probes)
    advertised(settings, port=1)
    if bool(settings.tls_certificate) != bool(settings.tls_key):
        raise ConfigError("only one of tls_certificate and tls_key is set", hint="set both, or neither for plain HTTP")
    if settings.tls_client_ca and not settings.tls_certificate:
        raise ConfigError("tls_client_ca is set without TLS", hint="set tls_certificate and tls_key too")
    if (settings.tls_client_names or settings.tls_readers) and not settings.tls_client_ca:
        raise ConfigError("tls_client_names or tls_readers is set without tls_client_ca", hint="set tls_client_ca too")
    read_signer(settings)
    read_prior(settings)
    parse_vf_network(settings.cni_network)
    Dialects(settings.dialects)
    read_tls(settings)


def listen_address(settings: Settings) -> Address:
    address = parse_address(settings.listen)
    if address is None:
        raise ConfigError("listen is empty", hint='listen = "127.0.0.1:8080"')
    return address


def advertised(settings: Settings, *, port: int) -> Address | None:
    """Return the address for the Service; None if no Service is configured. Raise ConfigError."""
    if not settings.service:
        return None
    host = settings.advertise or os.environ.get("POD_IP", "")
    try:
        ipaddress.ip_address(host)
    except ValueError as e:
        hint = "in a Deployment: POD_IP from fieldRef status.podIP"
        raise ConfigError(
            f"advertise: {host!r} is not an IP address; service = {settings.service!r} needs one", hint=hint
        ) from e
    return Address(host, port)


def read_prior(settings: Settings) -> dict[PodKind, float] | None:
    """Read the workload file. Return None if no file is configured. Raise ConfigError."""
    if not settings.workload:
        return None
    try:
        return parse_workload(Path(settings.workload).read_bytes())
    except OSError as e:
        raise ConfigError(f"cannot read workload {settings.workload}: {e.strerror}") from e
    except msgspec.MsgspecError as e:
        hint = "docs/central.md describes its format"
        raise ConfigError(f"cannot read workload {settings.workload}: {e}", hint=hint) from e


def read_tls(settings: Settings) -> ssl.SSLContext | None:
    """Return the TLS context for kube-scheduler; None: plain HTTP. Raise ConfigError."""
    return server_tls(settings.tls_certificate, settings.tls_key, settings.tls_client_ca)


def read_page_tls(settings: Settings) -> ssl.SSLContext | None:
    """Return the TLS context for people; None: plain HTTP. Raise ConfigError."""
    return server_tls(settings.tls_certificate, settings.tls_key, "" if settings.tls_readers else settings.tls_client_ca)


def read_signer(settings: Settings) -> Signer | None:
    if not settings.signing_key:
        return None
    return load_signer(Path(settings.signing_key), settings.key_id, read_public_keys(settings.keys))

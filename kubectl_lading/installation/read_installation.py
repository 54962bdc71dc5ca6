"""Read an installation once: the API server's objects, and the reports of central's replicas through the API server's proxy.

Take a client, and return an `Installation`. A missing object is None; an object that may not or cannot be read is an `Unread`.
Without the lists of pods, nodes and NodeDevices nothing can be checked: errors there raise KubeError. Nothing is written.
"""

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import msgspec
import yaml
from prometheus_client.parser import text_string_to_metric_families

from central.daemon.announce import ENDPOINT_SLICES
from central.decide.configuration import EffectiveConfiguration
from central.request.dialects.options import NO_OPTIONS
from kubectl_lading.central import CONFIGURATION, Central
from kubectl_lading.deciding import compute_deciding
from kubectl_lading.installation.control_checks import NAME_LABEL, SCHEDULER
from kubectl_lading.installation.daemonset_checks import DAEMONSETS as NAMES
from kubectl_lading.installation.installation import Installation, Maybe, NamedCentral, Replica, SchedulerConfig
from kubectl_lading.installation.workload import summarise
from kubectl_lading.lists import Listed, NotInstalledError, read_list
from kubectl_lading.objects import (
    Crd,
    DaemonSet,
    Deployment,
    EndpointSlice,
    FullPod,
    Lease,
    Node,
    Pod,
    Policy,
    PolicyBinding,
    Report,
    Unread,
)
from kubectl_lading.terminal.progress import Progress
from lading import __version__, nodedevices
from lading.health import Condition
from lading.kube.client import KubeClient
from lading.kube.errors import KubeError, MalformedError, NotFoundError
from lading.kube.resource import LEASES, NODE_DEVICES, NODES, PODS, Resource
from lading.vocabulary import CENTRAL, NODES_NAMESPACE

DEPLOYMENTS: Final = Resource("apps", "v1", "deployments")
DAEMONSETS: Final = Resource("apps", "v1", "daemonsets")
CONFIG_MAPS: Final = Resource("", "v1", "configmaps")
CRDS: Final = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions")
POLICIES: Final = Resource("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies")
POLICY_BINDINGS: Final = Resource("admissionregistration.k8s.io", "v1", "validatingadmissionpolicybindings")
CRD_NAME: Final = f"{nodedevices.PLURAL}.{nodedevices.GROUP}"
METRICS_PORT: Final = 9442
REPLICA_TIMEOUT_S: Final = 3.0
_CONFIG_KEY: Final = "config.yaml"

T = TypeVar("T")


class _Version(msgspec.Struct):
    git_version: str = msgspec.field(name="gitVersion", default="")


class _Items(msgspec.Struct):
    items: list[msgspec.Raw] | None = None


class _ConfigMap(msgspec.Struct):
    data: dict[str, str] | None = None


async def read_installation(client: KubeClient, namespace: str, central_api: Central) -> Installation:
    """Return the installation. `namespace`: Lading's own namespace. `central_api`: central, which reports its dialects. Raises
    KubeError if pods, nodes, NodeDevices or the API server's version cannot be read."""
    version = msgspec.json.decode(await client.get("/version"), type=_Version).git_version
    with Progress("reading the installation") as progress:
        crd, policies, bindings = await asyncio.gather(
            _one(client, CRDS.path(name=CRD_NAME), Crd),
            _some(client, POLICIES.path(), Policy),
            _some(client, POLICY_BINDINGS.path(), PolicyBinding),
        )
        central, scheduler, lease, endpoints, system_pods = await asyncio.gather(
            _one(client, DEPLOYMENTS.path(namespace, CENTRAL), Deployment),
            _one(client, DEPLOYMENTS.path(namespace, SCHEDULER), Deployment),
            _one(client, LEASES.path(namespace, CENTRAL), Lease),
            _one(client, ENDPOINT_SLICES.path(namespace, CENTRAL), EndpointSlice),
            _some(client, PODS.path(namespace), FullPod),
        )
        daemonsets = await asyncio.gather(*(_one(client, DAEMONSETS.path(NODES_NAMESPACE, name), DaemonSet) for name in NAMES))
        node_pods = await _some(client, PODS.path(NODES_NAMESPACE), FullPod)
        config = await _scheduler_config(client, namespace, scheduler)
        reported, replicas = await asyncio.gather(
            central_api.ask(CONFIGURATION, EffectiveConfiguration),
            read_replicas(client, namespace, names_of_replicas(system_pods)),
        )
        reports, nodes, pods = await asyncio.gather(
            _reports(client, progress), read_list(client, NODES, Node, progress), read_list(client, PODS, Pod, progress)
        )
    dialects = reported.dialects if isinstance(reported, EffectiveConfiguration) else NO_OPTIONS
    cluster = compute_deciding(reports or ([], ""), nodes, pods, EffectiveConfiguration(dialects=dialects))
    url, now = central_api.url, datetime.fromtimestamp(time.time(), UTC)
    return Installation(
        at=now,
        cli=__version__,
        namespace=namespace,
        api_server=version,
        crd=None if reports is None else crd,
        policies=policies if isinstance(policies, Unread) else {one.metadata.name: one for one in policies},
        bindings=bindings,
        central=central,
        named=NamedCentral(url=url, silent=reported.why if isinstance(reported, Unread) else "") if url else None,
        lease=lease,
        endpoints=endpoints,
        scheduler=scheduler,
        scheduler_config=config,
        system_pods=system_pods,
        daemonsets={name: one for name, one in zip(NAMES, daemonsets, strict=True) if one is not None},
        node_pods=node_pods,
        replicas=replicas,
        nodes=cluster.nodes,
        reports=cluster.reports,
        workload=summarise(cluster, now),
        dialects=cluster.dialects,
    )


def names_of_replicas(pods: Sequence[FullPod] | Unread) -> list[str]:
    if isinstance(pods, Unread):
        return []
    ours = [pod for pod in pods if pod.metadata.labels.get(NAME_LABEL) == CENTRAL and pod.status.phase == "Running"]
    return sorted(pod.metadata.name for pod in ours)


def replica_path(namespace: str, pod: str, page: str) -> str:
    """Return the path, through the API server's proxy, of /metrics or /readyz of a replica of central."""
    return PODS.path(namespace, f"{pod}:{METRICS_PORT}", "proxy") + page


async def read_replicas(client: KubeClient, namespace: str, pods: Sequence[str]) -> dict[str, Replica | Unread]:
    return dict(zip(pods, await asyncio.gather(*(_replica(client, namespace, pod) for pod in pods)), strict=True))


async def _replica(client: KubeClient, namespace: str, pod: str) -> Replica | Unread:
    async def page(name: str) -> bytes:
        return await client.get(replica_path(namespace, pod, name), timeout_s=REPLICA_TIMEOUT_S)

    try:
        metrics, ready = await page("/metrics"), await page("/readyz")
    except KubeError as e:
        return Unread(why=e.message)
    return parse_replica(metrics, ready)


class _Readiness(msgspec.Struct):
    conditions: tuple[Condition, ...] = ()


def parse_replica(metrics: bytes, ready: bytes) -> Replica | Unread:
    try:
        values = {(one.name, one.labels.get("version", "")): one.value for one in _samples(metrics.decode())}
        conditions = msgspec.json.decode(ready, type=_Readiness).conditions
    except ValueError:
        return Unread(why="its /metrics or /readyz cannot be understood")
    bindings = values.get(("lading_central_bindings_open", ""))
    return Replica(
        version=next((version for name, version in values if name == "lading_build_info"), ""),
        leads=values.get(("lading_central_leader", "")) == 1,
        bindings_open=None if bindings is None else int(bindings),
        unready=tuple(f"{one.name}: {one.why}" for one in conditions if not one.ok),
    )


def _samples(metrics: str) -> list[Any]:
    return [sample for family in text_string_to_metric_families(metrics) for sample in family.samples]


async def _scheduler_config(client: KubeClient, namespace: str, scheduler: Maybe[Deployment]) -> Maybe[SchedulerConfig]:
    """Return kube-scheduler's configuration from the ConfigMap that its Deployment mounts; its name contains a hash."""
    if not isinstance(scheduler, Deployment):
        return None
    volumes = scheduler.spec.template.spec.volumes
    name = next((one.config_map.name for one in volumes if one.config_map is not None), "")
    result = await _one(client, CONFIG_MAPS.path(namespace, name), _ConfigMap) if name else None
    match result:
        case _ConfigMap(data=data) if data and _CONFIG_KEY in data:
            return parse_scheduler_config(data[_CONFIG_KEY])
        case Unread():
            return result
        case _:
            return Unread(why=f"the Deployment mounts no ConfigMap with {_CONFIG_KEY}")


def parse_scheduler_config(text: str) -> SchedulerConfig | Unread:
    try:
        config = yaml.safe_load(text)
        extenders = [one for one in config.get("extenders") or () if one.get("filterVerb") and one.get("bindVerb")]
        asks_all = any(not one.get("managedResources") for one in extenders)
        managing = config["extenders"] if asks_all else extenders  # another entry has the resources that are not counted
        return SchedulerConfig(
            profiles=tuple(str(one.get("schedulerName", "default-scheduler")) for one in config.get("profiles") or ()),
            asks_central=frozenset(str(one["name"]) for each in managing for one in each.get("managedResources") or ()),
            asks_all=asks_all,
        )
    except (yaml.YAMLError, AttributeError, KeyError, TypeError) as e:
        return Unread(why=f"it is no KubeSchedulerConfiguration: {type(e).__name__}")


# ---- one read


async def _reports(client: KubeClient, progress: Progress) -> Listed[Report] | None:
    """Return the nodes' reports; None if the cluster has no resource NodeDevices. No right to read CustomResourceDefinitions is
    needed."""
    try:
        return await read_list(client, NODE_DEVICES, Report, progress)
    except NotInstalledError:
        return None


async def _one(client: KubeClient, path: str, kind: type[T]) -> Maybe[T]:
    try:
        return _decoded(await client.get(path), kind, path)
    except NotFoundError:
        return None
    except KubeError as e:
        return Unread(why=e.message)


async def _some(client: KubeClient, path: str, kind: type[T]) -> Sequence[T] | Unread:
    try:
        items = _decoded(await client.get(path), _Items, path).items or []
        return [_decoded(raw, kind, path) for raw in items]
    except KubeError as e:
        return Unread(why=e.message)


def _decoded(body: bytes | msgspec.Raw, kind: type[T], path: str) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as e:
        raise MalformedError(f"cannot read {path}: {e}") from e

"""Explain with central's scheduler why one pod waits, or why each waiting pod waits.

Ask central if it answers. Show what each node lacks, and which pods would have to end (waiting.py). Without a pod, list all
waiting pods in the order in which they get devices. Their reasons are counted over all nodes, as central's filter does.

Tests: tests/unit/kubectl_lading/pods/test_why.py
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
from rich.console import RenderableType
from rich.text import Text

from central.api.times import parse_seconds
from central.decide.why_pod import FITS, Why
from central.request.describe import describe_request
from central.request.model import DeviceRequest, MalformedRequest
from central.request.parse import parse_request
from central.state.budgets import Budgets
from central.state.pending import pending_of
from kubectl_lading.access import connect, find_scope
from kubectl_lading.central import Central, why_path
from kubectl_lading.deciding import DecidingCluster, read_budgets, read_deciding
from kubectl_lading.flags import Flags, Output
from kubectl_lading.lists import read_selected
from kubectl_lading.next_step import next_step
from kubectl_lading.objects import FullPod, Pod, Unread
from kubectl_lading.pods.listed import waits
from kubectl_lading.pods.situation import SCHEDULER, Stand
from kubectl_lading.pods.waiting import NEVER, Wait, explain_wait
from kubectl_lading.terminal.format import NONE, age, count
from kubectl_lading.terminal.output import Cell, now, show, table, text, warn
from kubectl_lading.terminal.progress import collect
from lading.kube.client import KubeClient
from lading.kube.resource import PODS

SEARCHED_NODES: Final = 20  # maximum nodes for which pods whose end would help are searched
SEARCHED_NODES_WIDE: Final = 1000  # the same maximum with -o wide, json or yaml
HEADS: Final = ("AGE", "PRIORITY", "WHY", "ASKS")


async def explain_one(client: KubeClient, central: Central, flags: Flags, own: FullPod, requested: DeviceRequest) -> Wait:
    metadata = own.metadata
    cluster, message, budgets = await asyncio.gather(
        read_deciding(client, central), central.ask(why_path(metadata.namespace, metadata.name), Why), read_budgets(client)
    )
    pod = cluster.pending.get(metadata.uid) or pending_of(own, requested)
    steps = explain_wait(
        cluster,
        pod,
        message if isinstance(message, Why) and message.uid == pod.uid else None,
        most=SEARCHED_NODES if flags.output is Output.TABLE else SEARCHED_NODES_WIDE,
        silent=isinstance(message, Unread),
        stay=frozenset(one.metadata.uid for one in cluster.pods if one.why_bound_to_its_node),
        budgets=Budgets.of(budgets or ()),
    )
    *_, wait = await collect("looking for what would help", "steps", steps)
    if wait is None:
        raise AssertionError("explain_wait ends with a Wait")
    return wait


async def explain_all(flags: Flags) -> None:
    namespace = find_scope(flags)
    async with connect(flags) as client:
        selected = await read_selected(client, PODS.path(namespace), flags.selector)
        cluster = await read_deciding(client, Central(client, flags))
        result = await collect("looking at all nodes", "pods", explain_waiting(cluster, namespace))
    warn(*cluster.problems)
    result = [one for one in result if selected is None or one.uid in selected]
    lines = (*draw_waiting(result, everywhere=not namespace), *map(text, next_step(cluster)))
    show(WaitingView(tuple(result)), flags, *lines)


class WaitingPod(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str
    pod: str
    uid: str
    stand: Stand
    priority: int = 0
    created: int = 0  # Unix seconds; 0: unknown
    asks: str = ""
    reasons: Mapping[str, int] = {}  # number of nodes by reason code, if the pod waits for devices
    said: str = ""  # reason why schedulers do not place the pod, if it does not wait for devices


class WaitingView(msgspec.Struct, frozen=True):
    pods: tuple[WaitingPod, ...]


def explain_waiting(cluster: DecidingCluster, namespace: str = "") -> Iterator[WaitingPod]:
    """Yield the waiting pods of `namespace` (empty: all), in the order in which they get devices. Each distinct request is
    checked once."""
    result = [pod for pod in cluster.pods if waits(pod, cluster.dialects) and namespace in ("", pod.metadata.namespace)]
    tenants = cluster.scheduler.tenants
    tenants.catch_up()

    def place(pod: Pod) -> tuple[object, ...]:
        metadata = pod.metadata
        return -pod.spec.priority, tenants.part(metadata.namespace), metadata.creation_timestamp or "", metadata.uid

    for pod in sorted(result, key=place):
        yield _explain(cluster, pod)


def _explain(cluster: DecidingCluster, pod: Pod) -> WaitingPod:
    requested, metadata = parse_request(pod, cluster.dialects), pod.metadata
    stand, message = _stand(pod, requested)
    pending = pending_of(pod, requested) if isinstance(requested, DeviceRequest) else None
    return WaitingPod(
        namespace=metadata.namespace,
        pod=metadata.name,
        uid=metadata.uid,
        stand=stand,
        priority=pod.spec.priority,
        created=parse_seconds(metadata.creation_timestamp),
        asks=describe_request(pending.request) if pending else "",
        reasons=cluster.count_reasons(pending) if pending and stand is Stand.WAITING else {},
        said=message,
    )


def _stand(pod: Pod, requested: DeviceRequest | MalformedRequest | None) -> tuple[Stand, str]:
    """Return the state of an unbound pod that requests devices, as `read_situation` does, and its reason as text."""
    if pod.spec.scheduling_gates:
        return Stand.GATED, f"gated: {', '.join(gate.name for gate in pod.spec.scheduling_gates)}"
    if isinstance(requested, MalformedRequest):
        return Stand.MALFORMED, requested.message
    if pod.spec.scheduler_name != SCHEDULER:
        return Stand.OTHER_SCHEDULER, f"names the scheduler {pod.spec.scheduler_name or 'default-scheduler'}, not {SCHEDULER}"
    return Stand.WAITING, ""


def draw_waiting(pods: Sequence[WaitingPod], *, everywhere: bool) -> Iterator[RenderableType]:
    if not pods:
        yield text(f"No pod{'' if everywhere else ' in this namespace (-A: all)'} waits for devices.")
        return
    heads = (*(["NAMESPACE"] if everywhere else []), "POD", *HEADS)
    yield table(heads, [_row(one, everywhere=everywhere) for one in pods], wraps=("WHY", "ASKS"))
    yield text(f"{count(len(pods), 'pod')}. Node by node: kubectl lading why POD", "dim")


def _row(one: WaitingPod, *, everywhere: bool) -> list[Cell]:
    since = age(now() - one.created) if one.created else NONE
    return [*([one.namespace] if everywhere else []), one.pod, since, str(one.priority), _describe(one), one.asks or NONE]


def _describe(one: WaitingPod) -> Text:
    """Return why the pod waits: the number of nodes by reason. Fitting nodes come first, nodes that can never fit last."""
    if one.stand is Stand.MALFORMED:  # only `why POD` shows the message
        return text(one.stand.value, "bad")
    if one.said:
        return text(one.said, "warn")
    if not one.reasons:
        return text("no node reports devices", "bad")
    ordered = sorted(one.reasons.items(), key=lambda item: (item[0] != FITS, item[0] in NEVER, -item[1]))
    return text(", ".join(f"{code}={nodes}" for code, nodes in ordered), "good" if FITS in one.reasons else "")

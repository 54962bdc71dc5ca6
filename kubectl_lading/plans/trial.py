"""Where pods would go now, one after another, as central would decide it. Pure, but for the cluster's own ledger.

Enters: a cluster that was read, pods that do not exist. Leaves: a `Trial` for each: its node and devices, or why there is none.
Each is placed beside those before it: their room is held in the cluster's ledger, which nobody else reads.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from central.ask.parse import BadAsk, parse_ask
from central.ask.pod import Pod
from central.pending import Pending, pending_of
from central.reasons import OfPod
from central.view.whatif import has_resources
from central.why import FITS, Why, ask_in_words, why_pending
from kubectl_lading.cluster import Cluster
from kubectl_lading.pods.given import Given, given_of
from kubectl_lading.pods.nearness import Pair, pairs_of
from kubectl_lading.pods.situation import SCHEDULER

_PREFIX: Final = "simulated-"  # of uids


class Trial(msgspec.Struct, frozen=True, omit_defaults=True):
    namespace: str
    pod: str
    asks: str = ""  # in words
    node: str = ""  # empty: nowhere
    containers: dict[str, Given] = {}
    pairs: tuple[Pair, ...] = ()  # how close they are, of containers with several
    why: Why | None = None  # of one that goes nowhere
    lacks_resources: tuple[str, ...] = ()  # nodes with the devices, and without the cpu or memory
    problem: str = ""  # with the pod itself, whatever the node
    code: str = ""  # of that problem
    notes: tuple[str, ...] = ()


def try_pods(cluster: Cluster, pods: Sequence[Pod]) -> Iterator[Trial]:
    for number, pod in enumerate(pods):
        yield _try(cluster, _with_uid(pod, number))


def _with_uid(pod: Pod, number: int) -> Pod:
    """What does not exist has none, and each holds its own room."""
    metadata = msgspec.structs.replace(pod.metadata, uid=f"{_PREFIX}{number}")
    return msgspec.structs.replace(pod, metadata=metadata)


def _try(cluster: Cluster, pod: Pod) -> Trial:
    metadata, asked = pod.metadata, parse_ask(pod)
    blank = Trial(namespace=metadata.namespace, pod=metadata.name, notes=tuple(_notes(pod)))
    if asked is None:
        return msgspec.structs.replace(blank, problem="asks for no device of lading.dev/: any scheduler may take it anywhere")
    if isinstance(asked, BadAsk):
        return msgspec.structs.replace(blank, problem=asked.message, code=OfPod.REQUEST_MALFORMED.value)
    pending = pending_of(pod, asked)
    blank = msgspec.structs.replace(blank, asks=ask_in_words(pending))
    names = cluster.ledger.nodes()
    able = [name for name in names if has_resources(cluster.ledger.room(name), pending.requests)]
    cluster.scheduler.filter(pod, able)
    winner = cluster.scheduler.prioritize(pod, able)
    placement = cluster.scheduler.placement(pending, winner) if winner else None
    if winner is None or placement is None:
        return _nowhere(cluster, blank, pending, set(able))
    placed, report = placement.containers, cluster.reports[winner]
    return msgspec.structs.replace(
        blank,
        node=winner,
        containers={name: given_of(one) for name, one in placed.items()},
        pairs=tuple(pair for one in placed.values() for pair in pairs_of(report, one)),
    )


def _nowhere(cluster: Cluster, blank: Trial, pending: Pending, able: set[str]) -> Trial:
    why = why_pending(cluster.scheduler, pending, 0.0)
    lacks = tuple(node.node for node in why.nodes if node.reason == FITS and node.node not in able)
    return msgspec.structs.replace(blank, why=why, lacks_resources=lacks)


def _notes(pod: Pod) -> Iterator[str]:
    if pod.spec.scheduler_name != SCHEDULER:
        written = pod.spec.scheduler_name or "none"
        yield f"schedulerName is {written}; devices are given by {SCHEDULER}"
    if pod.spec.node_name:
        yield f"nodeName is {pod.spec.node_name}: no scheduler would be asked, and the pod would come without devices"

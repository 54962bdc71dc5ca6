"""Run `kubectl lading defrag`: find running pods that would have to move so that waiting pods fit. Nothing is changed.

Read the cluster, the objects of the pods to move, and the disruption budgets. For each waiting pod, return the fewest moves
that were found, each to devices that are free at that time (central.view.moves). If a pod to move turns out to be immovable,
plan everything again without it.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from central.request.describe import describe_request
from central.request.model import DeviceRequest
from central.request.parse import parse_request
from central.state.budgets import BudgetKey, Budgets
from central.state.pending import Pending, pending_of
from central.view.moves import MOST_MOVES, Opening, plan_openings
from kubectl_lading.access import connect
from kubectl_lading.central import Central
from kubectl_lading.command import command
from kubectl_lading.deciding import DecidingCluster, read_budgets, read_deciding
from kubectl_lading.flags import Flags, Scope
from kubectl_lading.next_step import next_step
from kubectl_lading.objects import FullPod
from kubectl_lading.terminal.format import count, listed
from kubectl_lading.terminal.output import pairs, show, text
from kubectl_lading.terminal.progress import Progress
from lading.kube.client import KubeClient
from lading.kube.errors import NotFoundError
from lading.kube.resource import PODS
from lading.vocabulary import PodUid

ROUNDS: Final = 8  # maximum rounds of planning; each leaves out the pods that the previous round found immovable
_NAMED: Final = 2  # maximum pods named for one reason why they may not be moved
_POD: Final = msgspec.json.Decoder(FullPod)

NOT_CONSIDERED: Final = (
    f"Tried: up to {MOST_MOVES} pods of one node for each. Not looked at: volumes, ports and affinity between pods, which are "
    "kube-scheduler's, and cpu and memory where a Node does not say what it has."
)
HOW: Final = (
    "When you delete a pod, its controller creates it again, and central places it on the best node at that time. Waiting pods "
    "get the free devices in this order: the highest priority, the namespace that holds the least, the oldest pod."
)


class MoveView(msgspec.Struct, frozen=True, omit_defaults=True):
    namespace: str
    pod: str
    uid: str
    priority: int
    node: str  # name of the pod's current node
    to: str  # name of the new node; the same as `node` for a move to other devices of it
    notes: tuple[str, ...] = ()


class OpeningView(msgspec.Struct, frozen=True, omit_defaults=True):
    namespace: str
    pod: str
    uid: str
    asks: str
    node: str = ""  # node on which the pod would fit after the moves; empty: no moves were found
    moves: tuple[MoveView, ...] = ()  # moves that are necessary; empty with a `node`: the pod fits without moves
    search_ended: bool = False  # True: the search stopped before all moves were tried


class Advice(msgspec.Struct, frozen=True, omit_defaults=True):
    openings: tuple[OpeningView, ...]
    stay: dict[str, str] = {}  # reason by pod, for the examined pods that may not be moved
    budgets_read: bool = True


@command(
    "defrag",
    scope=Scope.PODS,
    examples={
        "defrag": "What would have to move for the pods that wait.",
        "defrag -n team-a": "Only for the pods of one namespace.",
    },
)
async def defrag(flags: Flags) -> None:
    """Find running pods that would have to move so that waiting pods fit. Advice: nothing is changed.

    For each pod that waits the fewest moves that were found, of the least important pods, each to a place that is free while
    all others have theirs. Pods of all namespaces wait and are moved; -n limits whom room is made for."""
    async with connect(flags) as client:
        cluster = await read_deciding(client, Central(client, flags))
        everybody = flags.all_namespaces or not flags.namespace
        waiting = [pod for pod in cluster.pending if everybody or pod.namespace == flags.namespace]
        advice = await _advise(client, cluster, waiting)
    show(advice, flags, draw(advice), *map(text, next_step(cluster)))


async def _advise(client: KubeClient, cluster: DecidingCluster, waiting: Sequence[Pending]) -> Advice:
    movable = read_movable(cluster)
    read = await read_budgets(client)
    budgets = Budgets.of(read or ())
    stay: dict[str, str] = {}
    movers: dict[PodUid, FullPod] = {}
    for _ in range(ROUNDS):
        openings = await _plan(cluster, waiting, movable)
        moved = [move.pod.uid for opening in openings for move in opening.moves]
        beside = [uid for uid in _beside(cluster, openings) if uid in movable and uid not in movers]
        movers |= await _movers(client, [movable[uid] for uid in beside])
        may_not = forbidden(_movable(moved, movers), budgets)
        may_not |= {uid: "it has ended" for uid in moved if uid not in movers}
        if not may_not:
            break
        for pod in _movable([uid for uid in beside if uid not in may_not], movers):
            may_not |= forbidden([pod], budgets)
        stay |= {f"{movable[uid].namespace}/{movable[uid].name}": reason for uid, reason in may_not.items()}
        movable = {uid: pod for uid, pod in movable.items() if uid not in may_not}
    else:
        openings = [_without(opening, may_not) for opening in openings]
    views = tuple(_view(opening, movers) for opening in openings)
    return Advice(openings=views, stay=stay, budgets_read=read is not None)


def _beside(cluster: DecidingCluster, openings: Sequence[Opening]) -> list[PodUid]:
    """Return the bound pods on the nodes of the moves. If a move is forbidden, the next plan may move one of them instead."""
    nodes = dict.fromkeys(move.record.node for opening in openings for move in opening.moves)
    return [record.uid for name in nodes for record in cluster.ledger.bound_on(name)]


def _movable(uids: Sequence[PodUid], movers: Mapping[PodUid, FullPod]) -> list[FullPod]:
    return [movers[uid] for uid in uids if uid in movers]


def read_movable(cluster: DecidingCluster) -> dict[PodUid, Pending]:
    """Return the requests of the bound pods by uid, without pods that are being deleted or whose request became invalid."""
    result, dialects = {}, cluster.dialects
    for pod in cluster.pods:
        record = cluster.ledger.pod(pod.metadata.uid)
        requested = (
            parse_request(pod, dialects) if record is not None and record.holds is not None and not record.deleting else None
        )
        if isinstance(requested, DeviceRequest):
            result[pod.metadata.uid] = pending_of(pod, requested)
    return result


async def _plan(cluster: DecidingCluster, waiting: Sequence[Pending], movable: Mapping[PodUid, Pending]) -> list[Opening]:
    openings = []
    with Progress("looking for moves") as progress:
        for steps, opening in enumerate(plan_openings(cluster.scheduler, waiting, movable, allows=cluster.allows)):
            if opening is not None:
                openings.append(opening)
            progress.show_count(f"of {len(waiting)} pods, {steps} steps", len(openings))
            await asyncio.sleep(0)
    return openings


def _without(opening: Opening, may_not: Mapping[PodUid, str]) -> Opening:
    if any(move.pod.uid in may_not for move in opening.moves):
        return Opening(pod=opening.pod, to=None, ended=True)
    return opening


async def _movers(client: KubeClient, pods: Sequence[Pending]) -> dict[PodUid, FullPod]:
    """Return the objects of the pods by uid, without pods that no longer exist."""
    result = await asyncio.gather(*(_mover(client, pod) for pod in pods))
    return {one.metadata.uid: one for one in result if one is not None}


async def _mover(client: KubeClient, pod: Pending) -> FullPod | None:
    try:
        mover = _POD.decode(await client.get(PODS.path(pod.namespace, pod.name)))
    except NotFoundError:
        return None
    return mover if mover.metadata.uid == pod.uid else None


def _view(opening: Opening, movers: Mapping[PodUid, FullPod]) -> OpeningView:
    pod = opening.pod
    return OpeningView(
        namespace=pod.namespace,
        pod=pod.name,
        uid=pod.uid,
        asks=describe_request(pod.request),
        node=opening.to.node if opening.to else "",
        moves=tuple(
            MoveView(
                namespace=move.pod.namespace,
                pod=move.pod.name,
                uid=move.pod.uid,
                priority=move.pod.priority,
                node=move.record.node,
                to=move.to.node,
                notes=tuple(notes(movers[move.pod.uid])),
            )
            for move in opening.moves
        ),
        search_ended=opening.ended,
    )


# ---- whether a running pod may be moved, by its own constraints and disruption budgets


def forbidden(pods: Sequence[FullPod], budgets: Budgets) -> dict[PodUid, str]:
    """Return by uid why a pod may not be moved together with the pods before it: a budget of 1 allows the first of 2 pods."""
    taken: Counter[BudgetKey] = Counter()
    result = {}
    for pod in pods:
        if reason := pod.why_bound_to_its_node or budgets.refuse(pod.metadata.namespace, pod.metadata.labels, taken):
            result[pod.metadata.uid] = reason
    return result


def notes(pod: FullPod) -> Iterator[str]:
    """Yield notes for the person who moves the pod."""
    owner = pod.controller
    yield f"{owner.kind} {owner.name} makes it again" if owner else "it is not created again: it has no controller"
    constraints = ["nodeSelector"] if pod.spec.node_selector else []
    constraints += ["affinity"] if pod.spec.affinity else []
    constraints += ["volumes"] if any(volume.persistent_volume_claim is not None for volume in pod.spec.volumes) else []
    if constraints:
        yield f"its {' and '.join(constraints)} may forbid that node"


# ---- for people


def draw(advice: Advice) -> RenderableType:
    opened = [one for one in advice.openings if one.moves]
    fits = [one for one in advice.openings if one.node and not one.moves]
    closed = [one for one in advice.openings if not one.node]
    lines: list[RenderableType] = []
    for opening in opened:
        lines += [*_opening(opening), text("")]
    if fits:
        rows = [(_name(one), text(f"on {one.node}: kubectl lading why {_name(one)}")) for one in fits]
        lines += [text("Would fit as things are", "head"), pairs(rows, style=""), text("")]
    if closed:
        lines += [
            text("No moves would make room for", "head"),
            pairs([(_name(one), _closed(one)) for one in closed], style=""),
            text(""),
        ]
    if advice.stay:
        lines += [text("Not moved", "head"), pairs(list(_who_stays(advice.stay)), style=""), text("")]
    lines.append(text(_summary(advice.openings), "head"))
    if opened:
        lines.append(text(HOW, "dim"))
    if advice.openings:
        lines.append(text(NOT_CONSIDERED, "dim"))
    return Group(*lines)


def _opening(opening: OpeningView) -> Iterator[RenderableType]:
    moved = f", once {count(len(opening.moves), 'pod')} went elsewhere"
    yield Text.assemble(text(f"{_name(opening)} would fit on ", "head"), text(opening.node, "good"), text(moved, "head"))
    moves = [("" if number else "move", _move(move)) for number, move in enumerate(opening.moves)]
    yield pairs([("asks", text(opening.asks)), *moves])


def _who_stays(stay: Mapping[str, str]) -> Iterator[tuple[str, Text]]:
    by_reason: dict[str, list[str]] = {}
    for name, reason in stay.items():
        by_reason.setdefault(reason, []).append(name)
    for reason, names in by_reason.items():
        yield listed(names, _NAMED), text(reason)


def _closed(opening: OpeningView) -> Text:
    return text(opening.asks + (" (not everything was tried)" if opening.search_ended else ""))


def _name(opening: OpeningView) -> str:
    return f"{opening.namespace}/{opening.pod}"


def _move(move: MoveView) -> Text:
    to = f"to {move.to}" if move.to != move.node else f"to other devices of {move.to}"
    message = "; ".join((f"priority {move.priority}", *move.notes))
    return Text.assemble(text(f"{move.namespace}/{move.pod} {to} "), text(f"({message})", "dim"))


def _summary(openings: Sequence[OpeningView]) -> str:
    if not openings:
        return "No pod waits for devices."
    fit = sum(bool(opening.node) and not opening.moves for opening in openings)
    opened = sum(bool(opening.moves) for opening in openings)
    moves = count(sum(len(opening.moves) for opening in openings), "move")
    already = f"; {fit} would fit as things are" if fit else ""
    made = (
        f"{moves} would make room for {opened} of {count(len(openings), 'pod')} that wait" if opened else "No moves would help"
    )
    return f"{made}{already}. Nothing was changed."

"""`why POD`: why it does not run, and what would help. `why`: all pods that wait (why_all.py).

Enters: the pod and its Events, the cluster, central where it answers. Leaves: where the pod stands (situation.py); of one that
waits for devices also what each node lacks and whose end would make room (waiting.py).
"""

import asyncio
from typing import Final

import click

from central.ask.model import Ask
from central.ask.parse import parse_ask
from central.scheduling.why import Why
from central.state.budgets import Budgets
from central.state.pending import Pending, pending_of
from kubectl_lading.access import connect, find_pod, find_scope
from kubectl_lading.central import Central
from kubectl_lading.cluster import Cluster, read_budgets, read_deciding
from kubectl_lading.flags import Flags, Output, Scope, command, refuse
from kubectl_lading.objects import FullPod, Unread
from kubectl_lading.pods.draw_why import Answer, draw
from kubectl_lading.pods.given import given_to
from kubectl_lading.pods.read_pod import read_events, read_pod
from kubectl_lading.pods.situation import Stand, read_situation
from kubectl_lading.pods.waiting import Wait, explain_wait
from kubectl_lading.pods.why_all import COLUMNS, WaitingView, draw_waiting, explain_waiting
from kubectl_lading.terminal.complete import complete_pods
from kubectl_lading.terminal.output import show, warn
from kubectl_lading.terminal.progress import Progress
from lading.kube.client import KubeClient

LOOKED_AT: Final = 20  # number of nodes for which pods to end are searched; with -o wide
LOOKED_AT_WIDE: Final = 1000


@command("why", columns=COLUMNS, scope=Scope.PODS)
@click.argument("pod", shell_complete=complete_pods, default="")
async def why(flags: Flags, pod: str) -> None:
    """Show why a pod does not run, and what would help; without POD: why each waiting pod waits.

    Of a pod that waits: what each node lacks, the nearest misses first, and whose end would make room. Of one that a node
    refuses: the refusal, and what to do. POD is a name, or NAMESPACE/NAME. -o wide names all nodes.
    """
    if pod:
        refuse(flags, Scope.POD)
    await (_why(flags, pod) if pod else _why_all(flags))


async def _why(flags: Flags, pod: str) -> None:
    namespace, name = find_pod(flags, pod)
    async with connect(flags) as client:
        own = await read_pod(client, namespace, name)
        asked = parse_ask(own)
        situation = read_situation(own, asked, await read_events(client, own))
        wait = await _wait(client, flags, own, asked) if situation.stand is Stand.WAITING and isinstance(asked, Ask) else None
    answer = Answer(
        namespace=namespace,
        name=name,
        uid=own.metadata.uid,
        situation=situation,
        deleting=own.metadata.deletion_timestamp is not None,
        devices=given_to(own),
        wait=wait,
    )
    show(answer, flags.output, draw(answer, wide=flags.output is Output.WIDE))


async def _why_all(flags: Flags) -> None:
    namespace = find_scope(flags)
    async with connect(flags) as client:
        cluster = await read_deciding(client, Central(client, flags))
        found = []
        with Progress("looking at all nodes") as progress:
            for one in explain_waiting(cluster, namespace):
                found.append(one)
                progress.say("pods", len(found))
                await asyncio.sleep(0)
    warn(*cluster.problems)
    show(WaitingView(tuple(found)), flags.output, *draw_waiting(found, everywhere=not namespace))


async def _wait(client: KubeClient, flags: Flags, own: FullPod, asked: Ask) -> Wait:
    metadata, central = own.metadata, Central(client, flags)
    cluster, said, budgets = await asyncio.gather(
        read_deciding(client, central), central.why(metadata.namespace, metadata.name), read_budgets(client)
    )
    pod = cluster.pending.get(metadata.uid) or pending_of(own, asked)
    return await _search(
        cluster, pod, said, Budgets.of(budgets or ()), most=LOOKED_AT if flags.output is Output.TABLE else LOOKED_AT_WIDE
    )


async def _search(cluster: Cluster, pod: Pending, said: Why | Unread | None, budgets: Budgets, *, most: int) -> Wait:
    known = said if isinstance(said, Why) and said.uid == pod.uid else None
    stay = frozenset(one.metadata.uid for one in cluster.pods if one.why_bound_to_its_node)
    silent = isinstance(said, Unread)
    steps = explain_wait(cluster.scheduler, pod, known, most=most, silent=silent, stay=stay, budgets=budgets)
    with Progress("looking for what would help") as progress:
        for step, found in enumerate(steps):
            if found is not None:
                return found
            progress.say("steps", step)
            await asyncio.sleep(0)
    raise AssertionError("explain_wait ends with a Wait")

"""Run `kubectl lading why`: explain why one pod does not run, or list all waiting pods with their reasons.

Read the pod and its Events, and show the pod's situation (situation.py). Pods that wait for devices are explained with
central's scheduler, which is imported for them only (explain.py).
"""

from typing import Final

import click
import msgspec

from central.request.model import DeviceRequest
from kubectl_lading.access import connect, find_pod
from kubectl_lading.central import Central
from kubectl_lading.command import command
from kubectl_lading.complete_names import complete_pods
from kubectl_lading.flags import Flags, Output, Scope, refuse
from kubectl_lading.pods.draw_why import WhyView, draw
from kubectl_lading.pods.given import given_to
from kubectl_lading.pods.read_pod import read_events, read_pod, read_request
from kubectl_lading.pods.situation import Stand, read_situation
from kubectl_lading.terminal.output import show

COLUMNS: Final = (
    ("AGE", "(without POD) Since the pod was created."),
    (
        "PRIORITY",
        "(without POD) Pods are listed in the order in which they get devices: by priority, then the namespace that holds the "
        "least, then by age.",
    ),
    ("WHY", "(without POD) Nodes by reason code, or what keeps schedulers from the pod."),
    ("ASKS", "(without POD) Its request, in words."),
)


@command(
    "why",
    columns=COLUMNS,
    scope=Scope.PODS,
    selects=True,
    examples={
        "why train-0": "Why that pod does not run, and what would help.",
        "why pod/train-0 -n team-a -o wide": "The same, with all nodes.",
        "why -A": "Why each waiting pod waits.",
    },
)
@click.argument("pod", shell_complete=complete_pods, default="")
async def why(flags: Flags, pod: str) -> None:
    """Show why a pod does not run, and what would help; without POD: why each waiting pod waits.

    Of a pod that waits: what each node lacks, the nearest misses first, and whose end would make room. Of one that a node
    refuses: the refusal, and what to do. POD is a name, pod/NAME or NAMESPACE/NAME. -o wide names all nodes."""
    if pod:
        refuse(flags, Scope.POD)  # without -l too: one pod is named
        await _why(flags, pod)
    else:
        from kubectl_lading.pods.explain import explain_all  # noqa: PLC0415  as in _why

        await explain_all(flags)


async def _why(flags: Flags, pod: str) -> None:
    namespace, name = find_pod(flags, pod)
    async with connect(flags) as client:
        own, central = await read_pod(client, namespace, name), Central(client, flags)
        requested = await read_request(central, own)
        situation = read_situation(own, requested, await read_events(client, own))
        answer = WhyView(
            namespace=namespace,
            name=name,
            uid=own.metadata.uid,
            situation=situation,
            deleting=own.metadata.deletion_timestamp is not None,
            devices=given_to(own),
        )
        if situation.stand is not Stand.WAITING or not isinstance(requested, DeviceRequest):
            show(answer, flags, draw(answer))
            return
        # Importing the scheduler takes most of a second, and only a pod that waits for devices needs it.
        from kubectl_lading.pods.draw_wait import draw_waiting_pod  # noqa: PLC0415
        from kubectl_lading.pods.explain import explain_one  # noqa: PLC0415

        wait = await explain_one(client, central, flags, own, requested)
    answer = msgspec.structs.replace(answer, wait=wait)
    show(answer, flags, draw_waiting_pod(answer, wait, wide=flags.output is Output.WIDE))

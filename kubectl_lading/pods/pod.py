"""Run `kubectl lading pod`: show a pod's request, assigned and granted devices, their distances, and the pod's Events.

Read the pod, its Events, its node's report, and public keys if the user names some. Show a `PodReport` (pod_report.py).

Tests: tests/golden/cli/test_look.py
"""

from pathlib import Path
from typing import Final

import click
import msgspec

from kubectl_lading.access import connect, find_pod
from kubectl_lading.central import Central
from kubectl_lading.command import command
from kubectl_lading.complete_names import complete_pods
from kubectl_lading.flags import Flags, Output, Scope
from kubectl_lading.lists import NotInstalledError
from kubectl_lading.pods.draw_pod import draw_pod
from kubectl_lading.pods.pod_report import report_pod
from kubectl_lading.pods.read_pod import read_events, read_pod, read_request
from kubectl_lading.terminal.output import show, warn
from lading.errors import ConfigError
from lading.kube.client import KubeClient
from lading.kube.errors import ForbiddenError, NotFoundError
from lading.kube.resource import NODE_DEVICES
from lading.nodedevices import NodeDevices
from lading.signature import load_public_keys

COLUMNS: Final = (
    ("ASSIGNED", "What central gave to the container: its assignment, an annotation of the pod."),
    ("GRANTED", "What the node reports that it gave to the container. It differs while the container has not started there."),
    ("DISTANCE", "Between two devices of one container: NVLinks of two GPUs, else what of the machine they have in common."),
)


@command(
    "pod",
    columns=COLUMNS,
    scope=Scope.POD,
    examples={"pod train-0": "The devices of a pod, and its Events.", "pod team-a/train-0 -o json": "The same for a program."},
)
@click.option(
    "--public-key",
    "keys",
    metavar="ID=FILE",
    multiple=True,
    help="A key as nodes have it in [keys], to check the signature of the assignment. May be repeated.",
)
@click.argument("name", metavar="POD", shell_complete=complete_pods)
async def pod(flags: Flags, name: str, keys: tuple[str, ...]) -> None:
    """Show what POD requests, what it was given, and its Events.

    POD is a name, pod/NAME or NAMESPACE/NAME. Why one does not run: kubectl lading why POD."""
    known = load_public_keys(dict(map(_read_key, keys)))
    namespace, name = find_pod(flags, name)
    async with connect(flags) as client:
        result = await read_pod(client, namespace, name)
        requested = await read_request(Central(client, flags), result)
        devices = await _read_report(client, result.spec.node_name) if result.spec.node_name else None
        events = await read_events(client, result)
    report = report_pod(result, requested, devices, events, known)
    show(report, flags, *draw_pod(report, wide=flags.output is Output.WIDE))


def _read_key(given: str) -> tuple[str, bytes]:
    key_id, _, file = given.partition("=")
    if not (key_id and file):
        raise ConfigError(f"cannot use --public-key {given}: it is not ID=FILE", hint="the id is in the pod's signature")
    try:
        return key_id, Path(file).read_bytes()
    except OSError as e:
        raise ConfigError(f"cannot read --public-key {file}: {e.strerror}") from e


async def _read_report(client: KubeClient, node: str) -> NodeDevices | None:
    try:
        return msgspec.json.decode(await client.get(NODE_DEVICES.path(name=node)), type=NodeDevices)
    except NotFoundError as e:
        if not e.reason:  # no Status: the resource itself is missing
            warn(NotInstalledError().message)
        return None
    except (ForbiddenError, msgspec.DecodeError) as e:
        warn(f"cannot read the grants of node {node}: {e}")
        return None

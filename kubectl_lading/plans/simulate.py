"""`simulate -f MANIFEST`: where its pods would go now, without creating them.

Enters: manifests, the cluster. Leaves: for each pod its node and devices, or why it would wait (trial.py).
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import click
import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from central.why import FITS, SENTENCES
from kubectl_lading.access import connect, find_namespace
from kubectl_lading.central import Central
from kubectl_lading.cluster import read_deciding
from kubectl_lading.flags import Flags, Output, command
from kubectl_lading.plans.manifests import parse_manifest
from kubectl_lading.plans.trial import Trial, try_pods
from kubectl_lading.pods.nearness import Pair
from kubectl_lading.run import run
from kubectl_lading.terminal.amounts import count
from kubectl_lading.terminal.blocks import pairs, under
from kubectl_lading.terminal.output import show, text, warn
from kubectl_lading.terminal.progress import Progress
from lading.errors import ConfigError

NOT_LOOKED_AT: Final = (
    "Not looked at: node selectors, affinity, taints and volumes, which are kube-scheduler's; preemption; what central is "
    "binding at this moment."
)
_STDIN: Final = "-"


class Simulation(msgspec.Struct, frozen=True, omit_defaults=True):
    pods: tuple[Trial, ...]
    passed_over: tuple[str, ...] = ()  # objects of the manifests without pods that can be counted


@command("simulate")
@click.option("-f", "--filename", "files", metavar="FILE", multiple=True, required=True, help="A manifest; - is stdin.")
def simulate(flags: Flags, files: tuple[str, ...]) -> None:
    """Where the pods of a manifest would go now, and with which devices, without creating them.

    Pods, and those of Deployments, ReplicaSets, StatefulSets, Jobs and CronJobs, one after another: each is placed beside those
    before it. One that would wait has the reasons. -o wide has the distance of each pair of devices.
    """
    run(_simulate(flags, files))


async def _simulate(flags: Flags, files: Sequence[str]) -> None:
    namespace = find_namespace(flags)
    manifests = [parse_manifest(_read(file), file, namespace=namespace) for file in files]
    async with connect(flags) as client:
        cluster = await read_deciding(client, Central(client, flags))
    trials = []
    with Progress("simulating") as progress:
        for trial in try_pods(cluster, [pod for manifest in manifests for pod in manifest.pods]):
            trials.append(trial)
            progress.say("pods", len(trials))
            await asyncio.sleep(0)
    passed_over = tuple(one for manifest in manifests for one in manifest.passed_over)
    if not trials:
        warn("there is no pod in it")
    show(Simulation(pods=tuple(trials), passed_over=passed_over), flags.output, draw(trials, passed_over, flags.output))


def _read(file: str) -> str:
    try:
        return sys.stdin.read() if file == _STDIN else Path(file).read_text()
    except OSError as e:
        raise ConfigError(f"cannot read {file}: {e.strerror}") from e
    except UnicodeDecodeError as e:
        raise ConfigError(f"cannot read {file}: it is no text: {e}") from e


def draw(trials: Sequence[Trial], passed_over: Sequence[str], output: Output) -> RenderableType:
    lines: list[RenderableType] = []
    for trial in trials:
        lines += [*_trial(trial, wide=output is Output.WIDE), text("")]
    if passed_over:
        lines.append(text(f"Passed over, without pods that can be counted: {', '.join(passed_over)}.", "warn"))
    placed = sum(bool(trial.node) for trial in trials)
    lines.append(text(f"{placed} of {count(len(trials), 'pod')} would be placed now. {NOT_LOOKED_AT}", "dim"))
    return Group(*lines)


def _trial(trial: Trial, *, wide: bool) -> Iterator[RenderableType]:
    name = f"{trial.namespace}/{trial.pod}"
    notes = [("note", text(note, "warn")) for note in trial.notes]
    if trial.problem:
        yield text(f"{name} {'asks for what has no meaning' if trial.code else trial.problem}", "head")
        yield pairs([*([(trial.code, text(trial.problem, "bad"))] if trial.code else []), *notes])
        return
    if not trial.node:
        yield text(f"{name} would wait: it fits on no node", "head")
        yield pairs([("asks", text(trial.asks)), *_reasons(trial, wide=wide), *notes])
        return
    yield Text.assemble(text(f"{name} would go to ", "head"), text(trial.node, "good"))
    devices = [pair for container, some in trial.containers.items() for pair in under(container, some.in_words())]
    yield pairs([("asks", text(trial.asks)), *devices, *_distances(trial.pairs, wide=wide), *notes])


def _reasons(trial: Trial, *, wide: bool) -> Iterator[tuple[str, Text]]:
    if trial.lacks_resources:
        yield (
            count(len(trial.lacks_resources), "node"),
            text(f"its devices are free, and too little cpu or memory: {', '.join(trial.lacks_resources)}", "warn"),
        )
    for reason, nodes in trial.why.reasons.items() if trial.why else ():
        if reason != FITS:
            yield count(nodes, "node"), text(f"{SENTENCES.get(reason, reason)} ({reason})")
    for node in trial.why.nodes if trial.why and wide else ():
        if node.detail:
            yield node.node, text(node.detail, "dim")


def _distances(between: Sequence[Pair], *, wide: bool) -> Iterable[tuple[str, Text]]:
    if wide:
        return under("distance", (f"{pair.one} to {pair.other}: {pair.said}" for pair in between), "dim")
    counts = Counter(pair.said for pair in between).most_common()
    return under("distance", (f"{count(number, 'pair')}: {said}" for said, number in counts), "dim")

"""Run `kubectl lading simulate`: show where the pods of a manifest would go now, without creating them.

Take manifests, the cluster, and its PriorityClasses. Return for each pod its node and devices, or the reason why it would wait
(trial.py).
"""

import asyncio
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

import click
import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from central.decide.why_pod import FITS
from kubectl_lading.access import connect, find_namespace
from kubectl_lading.central import Central
from kubectl_lading.command import command
from kubectl_lading.deciding import NOT_ALLOWED, read_deciding
from kubectl_lading.flags import Flags, Output, Scope
from kubectl_lading.lists import read_permitted
from kubectl_lading.next_step import next_step
from kubectl_lading.plans.gang_objects import add_objects, read_gang_objects
from kubectl_lading.plans.manifests import PriorityClass, admit, parse_manifest
from kubectl_lading.plans.trial import Trial, Trials, Verdict
from kubectl_lading.pods.waiting import SENTENCES
from kubectl_lading.terminal.format import count
from kubectl_lading.terminal.output import of_nodes, pairs, show, text, under, warn
from kubectl_lading.terminal.progress import collect
from lading.errors import ConfigError
from lading.kube.resource import Resource

NOT_CONSIDERED: Final = (
    "Not looked at: quotas, volumes, ports and affinity between pods; the room that evictions would make for others; what "
    "central is binding at this moment."
)
CLASSES: Final = Resource("scheduling.k8s.io", "v1", "priorityclasses")
NO_CLASSES: Final = (
    "you may not read PriorityClasses, so each pod has the priority that is written in it: ClusterRole lading-reader "
    "(deploy/rbac/reader.yaml) gives that right"
)
_STDIN: Final = "-"


class Simulation(msgspec.Struct, frozen=True, omit_defaults=True):
    pods: tuple[Trial, ...]  # trials of the pods, in the order in which they were tried
    verdicts: tuple[Verdict, ...] = ()  # verdicts about nodes; the field `verdicts` of a Trial has indexes into this tuple
    passed_over: tuple[str, ...] = ()  # skipped objects of the manifests, as kind/name


@command(
    "simulate",
    scope=Scope.POD,
    examples={
        "simulate -f job.yaml": "Where the pods of a manifest would go.",
        "simulate -f - -n team-a -o wide": "The same from stdin, with why each node does not fit.",
    },
)
@click.option(
    "-f", "--filename", "files", metavar="FILE", multiple=True, required=True, help="Manifest; - is stdin. May be repeated."
)
@click.option("--pairs", "in_pairs", is_flag=True, help="Show each pair of devices with its distance, in JSON and YAML too.")
async def simulate(flags: Flags, files: tuple[str, ...], in_pairs: bool) -> None:
    """Show where the pods of a manifest would go now, and with which devices, without creating them.

    Pods, and those of Deployments, ReplicaSets, StatefulSets, Jobs and CronJobs, one after another, the highest priority first:
    each is placed beside the earlier ones, and the pods of a gang by one plan. For a pod that would wait, the output has the
    reasons, and the pods that central would evict for it. -o wide adds the distance of each pair of devices, and why each node
    does not fit."""
    namespace = find_namespace(flags)
    manifests = [parse_manifest(_read(file), file, namespace=namespace) for file in files]
    drafts = [draft for manifest in manifests for draft in manifest.pods]
    async with connect(flags) as client:
        cluster, classes, gang_objects = await asyncio.gather(
            read_deciding(client, Central(client, flags)),
            read_permitted(client, CLASSES.path(), PriorityClass, NO_CLASSES),
            read_gang_objects(client),
        )
    add_objects(
        cluster.scheduler.starts,
        [*gang_objects, *(one for manifest in manifests for one in manifest.gang_objects)],
    )
    if classes is not None:
        classes += [one for manifest in manifests for one in manifest.classes]
    trials = Trials(cluster, in_pairs=in_pairs or flags.output is Output.WIDE)
    made = await collect("simulating", "pods", trials.run([admit(draft.pod, draft.wanted, classes) for draft in drafts]))
    if not made:
        warn("there is no pod in it")
    passed_over = tuple(one for manifest in manifests for one in manifest.passed_over)
    simulation = Simulation(pods=tuple(made), verdicts=trials.verdicts, passed_over=passed_over)
    show(simulation, flags, draw(simulation, wide=flags.output is Output.WIDE), *map(text, next_step(cluster)))


def _read(file: str) -> str:
    try:
        return sys.stdin.read() if file == _STDIN else Path(file).read_text()
    except OSError as e:
        raise ConfigError(f"cannot read {file}: {e.strerror}") from e
    except UnicodeDecodeError as e:
        raise ConfigError(f"cannot read {file}: it is not text: {e}") from e


def draw(simulation: Simulation, *, wide: bool) -> RenderableType:
    lines: list[RenderableType] = []
    for _, alike in groupby(simulation.pods, key=_alike):
        lines += [*_trial(list(alike), simulation.verdicts, wide=wide), text("")]
    if simulation.passed_over:
        skipped = ", ".join(simulation.passed_over)
        lines.append(text(f"Skipped, because they create no pods, or an unknown number: {skipped}.", "warn"))
    placed = sum(bool(trial.node) for trial in simulation.pods)
    lines.append(text(f"{placed} of {count(len(simulation.pods), 'pod')} would be placed now. {NOT_CONSIDERED}", "dim"))
    return Group(*lines)


def _alike(trial: Trial) -> object:
    """Return a key for grouping consecutive pods: those that fit nowhere for the same reason are shown as one."""
    if trial.node:
        return trial.namespace, trial.pod
    return msgspec.structs.replace(trial, namespace="", pod="", why=None)


def _trial(alike: Sequence[Trial], verdicts: Sequence[Verdict], *, wide: bool) -> Iterator[RenderableType]:
    trial = alike[0]
    name = f"{trial.namespace}/{trial.pod}" + (f" and {len(alike) - 1} more" if len(alike) > 1 else "")
    notes = [("note", text(note, "warn")) for note in trial.notes]
    if trial.problem:
        problem = "would wait with its gang" if trial.gang else "has an invalid device request" if trial.code else trial.problem
        yield text(f"{name}{': each' if len(alike) > 1 else ''} {problem}", "head")
        yield pairs([*([(trial.code, text(trial.problem, "bad"))] if trial.code else []), *notes])
        return
    rows = [("asks", text(trial.asks))]
    if trial.gang:
        rows.append(("gang", text(f"{trial.gang}, with which it starts")))
    if trial.priority:
        rows.append(("priority", text(str(trial.priority))))
    if not trial.node:
        fits = "it fits" if len(alike) == 1 else "they fit"
        yield text(f"{name} would wait: {fits} on no node", "head")
        yield pairs([*rows, *_reasons(trial, verdicts, wide=wide), *_preemption(trial), *notes])
        return
    yield Text.assemble(text(f"{name} would go to ", "head"), text(trial.node, "good"))
    devices = [pair for container, some in trial.containers.items() for pair in under(container, some.as_text())]
    yield pairs([*rows, *devices, *_distances(trial), *notes])


def _reasons(trial: Trial, verdicts: Sequence[Verdict], *, wide: bool) -> Iterator[tuple[str, Text]]:
    if trial.lacks_resources:
        yield (
            count(len(trial.lacks_resources), "node"),
            text(f"its devices are free, and too little cpu or memory: {', '.join(trial.lacks_resources)}", "warn"),
        )
    if trial.not_allowed:
        yield count(len(trial.not_allowed), "node"), text(f"{SENTENCES[NOT_ALLOWED]}: {', '.join(trial.not_allowed)}", "warn")
    for reason, nodes in trial.why.reasons.items() if trial.why else ():
        if reason not in (FITS, NOT_ALLOWED):
            yield count(nodes, "node"), text(f"{SENTENCES.get(reason, reason)} ({reason})")
    for verdict in (verdicts[number] for number in trial.verdicts) if wide else ():
        if verdict.detail:
            yield from of_nodes(verdict.nodes, [text(verdict.detail, "dim")], wide=True)


def _preemption(trial: Trial) -> Iterator[tuple[str, Text]]:
    """Yield the pod's preemption; without victims only for a pod with a priority, of which a user would expect one."""
    if trial.preemption is not None and (trial.preemption.victims or trial.priority):
        yield "preemption", text(trial.preemption.as_text())


def _distances(trial: Trial) -> Iterable[tuple[str, Text]]:
    if trial.pairs:
        return under("distance", (f"{pair.one} to {pair.other}: {pair.said}" for pair in trial.pairs), "dim")
    return under("distance", (f"{count(number, 'pair')}: {message}" for message, number in trial.distances.items()), "dim")

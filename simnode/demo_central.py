"""Run `make demo-central`: show and check the scheduler extender without a cluster.

    python -m simnode.demo_central            tables, a picture of every node, ends with `lading demo-central: ok`
    python -m simnode.demo_central -o json    the decisions and the checks as JSON; progress on stderr
    DEMO_KEEP=1 python -m simnode.demo_central    leaves API server and central running, and prints commands to try
    python -m simnode.demo_central stop DIR   ends what was left running

lading-central is real, and runs as a process. Simulated are an API server that keeps objects (simnode.api_server),
kube-scheduler's calls of an extender (simnode.extender_calls), and nodes from files (simnode/nodedevices), with the parts of
kubelet and lading-hooks that grants need (simnode.node_agents). The demo needs neither root nor containerd.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

import aiohttp
import msgspec

from lading.errors import HostError, LadingError, die
from lading.kube.client import KubeClient
from lading.kube.config import open_access
from lading.kube.resource import EVENTS, LEASES, NODE_DEVICES, NODES, PODS
from lading.nodedevices import Status
from lading.signature import load_public_keys
from lading.vocabulary import CENTRAL, SYSTEM_NAMESPACE
from simnode import kept
from simnode.api_server import ApiServer, write_kubeconfig
from simnode.api_store import PRIORITY_CLASSES, Store
from simnode.crowd import (
    ENDS,
    FILLING,
    JOBS,
    LAST_BUT_TWO,
    MISSPELT,
    NAMESPACE,
    PROFILES,
    SAMPLES,
    TOO_LARGE,
    URGENT,
    WAITS,
    jobs,
    read_documents,
    read_samples,
)
from simnode.decisions import Decision, GivenGpu, find_clashes, read_decision
from simnode.extender_calls import ExtenderCalls, Outcome
from simnode.node_agents import NodeAgents
from simnode.patience import await_until, tail
from simnode.picture import COLUMNS, decision_rows, draw_node, gib, letters
from simnode.reported import read_status
from simnode.scheduling import KEY_ID, Replica, SigningKey
from simnode.terminal import Terminal

ROOT: Final = Path(__file__).parents[1]
NAME: Final = "lading demo-central"
ATTEND_S: Final = 0.5  # between two checks that lading-central still runs
CONTENT: Final = {"Content-Type": "application/json"}


class Stage:
    """Hold the servers and processes that run during the demo."""

    def __init__(
        self, store: Store, client: KubeClient, session: aiohttp.ClientSession, replica: Replica, key: SigningKey
    ) -> None:
        self.reports: Mapping[str, Status] = {node: read_status(profile) for node, profile in PROFILES.items()}
        self.store = store
        self.client = client
        self.replica = replica
        self.folder = replica.log.parent
        self.page_url = f"http://127.0.0.1:{replica.page_port}"
        self.calls = ExtenderCalls(session, client, extender=f"http://127.0.0.1:{replica.port}", nodes=list(PROFILES))
        keys = load_public_keys({KEY_ID: key.public.read_bytes()})
        self.agents = NodeAgents(client, self.reports, keys)
        self._session = session

    @property
    def decisions(self) -> list[Decision]:
        """Return the decisions that the API server has now, in the order in which the pods came."""
        return [read_decision(pod) for pod in self._objects(PODS.path(NAMESPACE))]

    def decision(self, name: str) -> Decision:
        return read_decision(self.store.objects[PODS.path(NAMESPACE, name)])

    def outcome(self, name: str) -> Outcome:
        return self.calls.outcomes[self.decision(name).uid]

    def events(self) -> list[dict[str, Any]]:
        return self._objects(EVENTS.path(NAMESPACE))

    def _objects(self, collection: str) -> list[dict[str, Any]]:
        return [self.store.objects[path] for path in self.store.objects if path.startswith(f"{collection}/")]

    async def create(self, pod: dict[str, Any]) -> str:
        """Create the pod. Return its uid."""
        created = msgspec.json.decode(await self.client.create(PODS.path(NAMESPACE), pod))
        return str(created["metadata"]["uid"])

    async def why(self, name: str) -> dict[str, Any]:
        """Return why the pod waits; empty for a pod without a valid request."""
        async with self._session.get(f"{self.page_url}/v1/why/{NAMESPACE}/{name}") as answer:
            result: dict[str, Any] = msgspec.json.decode(await answer.read()) if answer.status == 200 else {}
            return result

    async def await_decided(self, uids: Iterable[str]) -> None:
        expected = set(uids)
        await self._await(lambda: self.calls.outcomes.keys() >= expected, "a decision for each pod")

    async def await_bound(self, uid: str, name: str) -> float:
        """Wait until it is bound. Return when; monotonic seconds."""

        def bound() -> bool:
            return uid in self.calls.outcomes and bool(self.calls.outcomes[uid].node)

        await self._await(bound, f"a node for {name}")
        return self.calls.outcomes[uid].at

    async def await_ended(self, names: Iterable[str]) -> None:
        paths = {PODS.path(NAMESPACE, name) for name in names}
        await self._await(lambda: not paths & self.store.objects.keys(), f"the end of {', '.join(sorted(names))}")

    async def await_taken(self, uids: set[str]) -> bool:
        """Report whether the nodes grant exactly these pods what they were assigned; the last ones may take a moment."""

        def taken() -> bool:
            granted = {grant.pod for node in PROFILES for grant in self.agents.held(node)}
            return granted == uids or bool(self.agents.refused)

        await self._await(taken, "the nodes' grants")
        return not self.agents.refused

    async def attend(self) -> NoReturn:
        """Raise HostError when lading-central ends."""
        while self.replica.running:  # noqa: ASYNC110  a process sets no event
            await asyncio.sleep(ATTEND_S)
        raise HostError(f"lading-central ended with status {self.replica.status}\n{tail(self.replica.log)}")

    async def _await(self, holds: Callable[[], bool], what: str) -> None:
        await await_until(holds, what, self.replica)


class Story:
    def __init__(self, out: Terminal, stage: Stage) -> None:
        self._out = out
        self._stage = stage
        self.figures: dict[str, float] = {}

    async def run(self) -> None:
        await self._pods_come()
        await self._pods_wait()
        await self._a_pod_ends()
        await self._a_pod_is_urgent()
        await self._two_jobs_come()
        self._nodes()
        await self._checks()

    async def _pods_come(self) -> None:
        out, stage = self._out, self._stage
        pods = [*read_samples(), *FILLING, MISSPELT, TOO_LARGE, WAITS]
        # The pods come by priority, so that none is evicted here: else that would depend on the machine.
        pods.sort(key=lambda pod: "priorityClassName" not in pod["spec"])
        out.step(f"{len(pods)} pods come: those of deploy/samples, some that fill the nodes, and three that have to wait")
        began = time.monotonic()
        uids = {pod["metadata"]["name"]: await stage.create(pod) for pod in pods}
        waiting = {pod["metadata"]["name"] for pod in (MISSPELT, TOO_LARGE, WAITS)}
        await stage.await_decided(uids[name] for name in waiting)
        for name in uids.keys() - waiting:  # one may be refused at first, while another holds capacity that it does not need
            await stage.await_bound(uids[name], name)
        took = max(stage.calls.outcomes[uid].at for uid in uids.values()) - began
        self.figures["decided_s"] = round(took, 3)
        out.note(f"decided in {took * 1e3:.0f} ms, by {stage.calls.requests} requests over HTTP")
        self._table(*stage.decisions)
        bound = {decision.pod for decision in stage.decisions if decision.node}
        out.check(f"{len(bound)} are bound, and 3 are not", bound == uids.keys() - waiting)
        cards = {one.name: {gpu.uuid for gpu in one.gpus} for one in stage.decision("several-containers").containers}
        reused = bool(cards["prepare"]) and cards["prepare"] <= cards["train"]
        out.check("several-containers: its init container uses a card of the container after it", reused)

    async def _pods_wait(self) -> None:
        out, stage = self._out, self._stage
        out.step("Why three wait: the reasons that kube-scheduler shows, and the nearest misses of GET /v1/why")
        for pod in (MISSPELT, TOO_LARGE, WAITS):
            name = pod["metadata"]["name"]
            outcome = stage.outcome(name)
            reasons = [*outcome.may_fit.values(), *outcome.never.values()]
            lines = [f"{reasons.count(reason)} of {len(reasons)} nodes: {reason}" for reason in dict.fromkeys(reasons)]
            nearest = (await stage.why(name)).get("nodes", ())
            out.shown(name, [*lines, *(f"{node['node']}: {node['detail']}" for node in nearest if node.get("detail"))])
        misspelt, large = stage.outcome("misspelt"), stage.outcome("too-large")
        named = all("lading.dev/gpu-mem" in reason for reason in misspelt.never.values())
        out.check("misspelt: the reason names the resource that does not exist", named and not misspelt.may_fit)
        never = len(large.never) == len(PROFILES) and not large.may_fit
        out.check("too-large: it can never fit, and no preemption is tried for it", never)

    async def _a_pod_ends(self) -> None:
        out, stage = self._out, self._stage
        ends, waits = stage.decision(ENDS), stage.decision("next-run")
        out.step(f"{ENDS} ends, and next-run gets its devices")
        await stage.client.delete(PODS.path(NAMESPACE, ENDS), uid=ends.uid)
        at = await stage.await_bound(waits.uid, "next-run")
        took = at - stage.agents.released[ends.uid]
        self.figures["bound_after_release_s"] = round(took, 3)
        self._table(stage.decision("next-run"))
        out.note(f"bound {took * 1e3:.0f} ms after its node reported that the devices are free")
        freed = {gpu.bdf for container in ends.containers for gpu in container.gpus}
        given = {gpu.bdf for container in stage.decision("next-run").containers for gpu in container.gpus}
        out.check(f"next-run has the GPUs that {ENDS} had", given == freed)

    async def _a_pod_is_urgent(self) -> None:
        out, stage = self._out, self._stage
        before = stage.decision("notebook")
        released = set(stage.agents.released)
        out.step(f"create pod urgent: it requests the card on {before.node} that notebook shares, with a higher priority")
        began = time.monotonic()
        uid = await stage.create(URGENT)
        took = await stage.await_bound(uid, "urgent") - began
        self.figures["bound_by_preemption_s"] = round(took, 3)
        self._table(stage.decision("urgent"))
        events = [f"{one['reason']}, pod {one['involvedObject']['name']}: {one['message']}" for one in stage.events()]
        out.shown("events", events)
        evicted = set(stage.agents.released) - released
        whole = tuple(GivenGpu(uuid=gpu.uuid, bdf=gpu.bdf) for gpu in before.containers[0].gpus)
        out.check("notebook was evicted, and no other pod", evicted == {before.uid})
        out.note(f"bound {took:.1f} s after it came")
        out.check("urgent has notebook's card, whole", stage.decision("urgent").containers[0].gpus == whole)

    async def _two_jobs_come(self) -> None:
        out, stage = self._out, self._stage
        out.step("Two jobs of two pods come for two free cards: first pod by pod, then as gangs")
        one_more = LAST_BUT_TWO["metadata"]["name"]
        await stage.await_bound(await stage.create(LAST_BUT_TWO), one_more)
        names = [pod["metadata"]["name"] for pod in jobs(gangs=False)]
        uids = [await stage.create(pod) for pod in jobs(gangs=False)]
        await stage.await_decided(uids)
        self._table(*map(stage.decision, names))
        out.check(
            "pod by pod: each job holds one card, waits for the other one, and can never start",
            self._started() == ["left-0", "right-0"],
        )
        for name, uid in zip(names, uids, strict=True):
            await stage.client.delete(PODS.path(NAMESPACE, name), uid=uid)
        await stage.await_ended(names)
        gangs = {pod["metadata"]["name"]: await stage.create(pod) for pod in jobs(gangs=True)}
        for name in ("left-0", "left-1"):
            await stage.await_bound(gangs[name], name)
        await stage.await_decided(gangs.values())
        self._table(*map(stage.decision, names))
        out.check("as gangs: left has started whole, and right holds nothing", self._started() == ["left-0", "left-1"])
        gang = (await stage.why("right-0")).get("gang", {})
        out.shown("right-0", [f"gang {gang.get('name')} is {gang.get('phase')}: {gang.get('said')} ({gang.get('reason')})"])
        for name in ("left-0", "left-1"):
            await stage.client.delete(PODS.path(NAMESPACE, name), uid=gangs[name])
        for name in ("right-0", "right-1"):
            await stage.await_bound(gangs[name], name)
        out.check("left ends, and right starts whole", self._started() == ["right-0", "right-1"])

    def _started(self) -> list[str]:
        """Return the pods of the two jobs that are bound."""
        pods = (decision for decision in self._stage.decisions if decision.pod.rpartition("-")[0] in JOBS)
        return sorted(decision.pod for decision in pods if decision.node)

    def _nodes(self) -> None:
        out, stage = self._out, self._stage
        decisions = stage.decisions
        marks = letters(decisions)
        out.step("Who holds what now: a letter is a pod, a card's bar is its memory")
        out.note("  ".join(f"{mark} {name}" for name, mark in marks.items()))
        for node, status in stage.reports.items():
            out.drawn(draw_node(node, status, decisions, marks))

    async def _checks(self) -> None:
        out, stage = self._out, self._stage
        out.step("Everything together")
        bound = [decision for decision in stage.decisions if decision.node]
        clashes = find_clashes(bound, stage.reports)
        if clashes:
            out.shown("held twice", clashes)
        out.check("no card is given beyond what it has, and no whole card or VF is shared", not clashes)
        taken = await stage.await_taken({decision.uid for decision in bound})
        out.check("every node took every assignment, signatures checked with central's public key", taken)

    def _table(self, *decisions: Decision) -> None:
        self._out.table(COLUMNS, [row for decision in decisions for row in decision_rows(decision)])


@contextlib.asynccontextmanager
async def staged(out: Terminal) -> AsyncIterator[Stage]:
    async with contextlib.AsyncExitStack() as ends:
        folder = ends.enter_context(kept.Workspace("lading-demo-central-", out))
        server = await ends.enter_async_context(ApiServer(first_version=1000))
        load(server.store)
        kubeconfig = write_kubeconfig(folder / "kubeconfig", server.url)
        key = SigningKey(folder)
        replica = Replica("central", folder=folder, kubeconfig=kubeconfig, key=key)
        ends.push_async_callback(asyncio.to_thread, replica.stop)
        began = time.monotonic()
        replica.start()
        await asyncio.to_thread(replica.wait_until, lambda: replica.leads, "its leadership")
        out.step("The cluster")
        out.note(
            f"lading-central leads {time.monotonic() - began:.1f} s after its start: pid {replica.pid}, http://127.0.0.1:{replica.port}"
        )
        access = open_access(kubeconfig)
        client = await ends.enter_async_context(KubeClient(access, user_agent="demo-central"))
        session = await ends.enter_async_context(aiohttp.ClientSession(headers=CONTENT))
        stage = Stage(server.store, client, session, replica, key)
        out.table(("NODE", "GPUS", "MODEL", "MEMORY", "VFS"), [node_row(*one) for one in stage.reports.items()])
        yield stage


def load(store: Store) -> None:
    """Load nodes, reports, PriorityClasses, and a lease that a former leader released: without one, a leader waits 15 s."""
    for node, profile in PROFILES.items():
        store.load(NODES.path(name=node), {"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
        store.load(NODE_DEVICES.path(name=node), {"status": msgspec.to_builtins(read_status(profile))})
    for one in read_documents("PriorityClass"):
        store.load(PRIORITY_CLASSES.path(name=one["metadata"]["name"]), one)
    store.load(LEASES.path(SYSTEM_NAMESPACE, CENTRAL), {"spec": {"leaseDurationSeconds": 1}})


def node_row(node: str, status: Status) -> tuple[str, ...]:
    sizes = sorted({gpu.usable_mib for gpu in status.gpus})
    return node, status.summary.gpus, status.summary.models, " ".join(map(gib, sizes)), status.summary.vfs or "-"


def print_next_steps(out: Terminal, stage: Stage) -> None:
    folder = stage.folder
    python = Path(os.path.relpath(sys.executable))
    lading, central = f"{python.with_name('kubectl-lading')}", f"--central {stage.page_url}"
    out.step("Left running, until it is stopped")
    out.commands(
        "things to try, from this folder",
        {
            f"export KUBECONFIG={folder / 'kubeconfig'}": "the simulated cluster, for the commands below",
            f"{lading} nodes": "how much of each node is free",
            f"{lading} node {next(iter(PROFILES))}": "the devices of one node, and the pods that hold them",
            f"{lading} why {TOO_LARGE['metadata']['name']} {central}": "why a pod waits",
            f"{lading} pod {URGENT['metadata']['name']}": "the devices of one pod",
            f"{lading} pods -A": "all pods that request devices",
            f"{lading} simulate -f {SAMPLES.relative_to(ROOT)}/whole-gpus.yaml {central}": "would one more pod fit now?",
            f"{lading} sysdump -o {folder}/sysdump {central}": "what a maintainer needs to see",
            f"tail -n 20 {stage.replica.log} {folder / kept.LOG}": "the logs; they are kept until the demo is stopped",
            f"{python} -m simnode.demo_central stop {folder}": "end it, and remove its folder",
        },
    )


async def run(out: Terminal, keep: kept.Kept | None = None) -> dict[str, Any]:
    out.title("Lading's scheduler extender without a cluster: four simulated nodes, and the real lading-central")
    async with staged(out) as stage:
        story = Story(out, stage)
        work = [asyncio.create_task(one) for one in (stage.agents.run(), stage.calls.run(), stage.attend())]
        telling = asyncio.create_task(story.run())
        try:
            await first_of(telling, *work)
            if out.failures:
                out.shown("the end of lading-central's log", tail(stage.replica.log).splitlines())
            if keep:
                print_next_steps(out, stage)
                out.verdict(NAME)
                keep.detach(stage.folder, bool(out.failures))
                await first_of(*work)
        finally:
            for task in (telling, *work):
                task.cancel()
            await asyncio.gather(telling, *work, return_exceptions=True)
        return {"decisions": stage.decisions, "figures": story.figures, "checks": out.checks}


async def first_of(*tasks: "asyncio.Task[None]") -> None:
    """Wait for the first task that ends. Raise what it raised."""
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="simnode.demo_central", description="The scheduler extender, without a cluster.")
    parser.add_argument(
        "-o", "--output", choices=("table", "json"), default="table", help="for people, or for machines [table]"
    )
    ending = parser.add_subparsers(dest="command", metavar="{stop}").add_parser("stop", help="end one that was left running")
    ending.add_argument("folder", type=Path)
    args = parser.parse_args(argv)
    if args.command == "stop":
        try:
            kept.stop(args.folder)
        except HostError as e:
            die(e)
        return
    keep = kept.fork() if kept.wanted() and args.output == "table" else None
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the cleanup runs
    out = Terminal(sys.stderr if args.output == "json" else sys.stdout)
    try:
        result = asyncio.run(run(out, keep))
    except LadingError as e:
        out.verdict(NAME, e)
        raise SystemExit(1) from e
    if args.output == "json":
        print(msgspec.json.format(msgspec.json.encode(result), indent=2).decode())
    out.verdict(NAME)
    raise SystemExit(bool(out.failures))


if __name__ == "__main__":
    main()

"""Run `make demo`: show and check the whole path of a node on one machine, with simulated devices and a real containerd.

    python -m simnode.demo                       runs it, cleans up, ends with `lading demo: ok`
    DEMO_KEEP=1 python -m simnode.demo           leaves everything running and prints commands to try
    python -m simnode.demo try DIR [KEY=VALUE…]  one more pod with these annotations, while it is left running
    python -m simnode.demo stop DIR              ends what was left running

For each pod the demo shows the state in its container: the environment, the device nodes, and the result of opening them. A
granted device gives success, or ENXIO (ENODEV) if the kernel has no driver for its number. Any other device gives EPERM, from
the device cgroup.
"""

import argparse
import contextlib
import os
import re
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from lading.errors import HostError, LadingError
from simnode import kept, leftovers
from simnode.build import SimNode, build
from simnode.containerd import PrivateContainerd, find_containerd
from simnode.cri import Container, Cri, CriError
from simnode.cuda import CudaDriver, install_fake_cuda
from simnode.daemons import LadingNode
from simnode.patience import tail
from simnode.terminal import Terminal

PROFILE = "demo-8gpu"
GRANTED = {"ok", "ENXIO", "ENODEV"}  # ENODEV is what the kernel's misc devices (rdma_cm) return for ENXIO
REFUSED = 3  # exit status of `try` for a pod that is refused, as of `lading-hooks render`
_NVIDIA_MAJOR = 195  # fixed: NV_MAJOR_DEVICE_NUMBER
_NO_CARD = 200  # a minor number that no card of the simulated node has
_LIST_DEVICES = "ls -l /dev/nvidia* /dev/nvidia-caps/* /dev/infiniband/* 2>/dev/null | grep ^c || true"
_POD = """apiVersion: v1
kind: Pod
metadata: {name: another, annotations: {lading.dev/gpus: "6,7", lading.dev/vfs: "1"}}
spec: {containers: [{name: main, image: cuda}]}
"""
_WORK_MS = 3000
_LEFT_WORK_MS = 24 * 3600 * 1000
_BY_HAND = {"lading.dev/gpus": "0,1", "lading.dev/vfs": "1"}
_SHARED = {
    name: {"lading.dev/gpus": f"2:memory=2Gi,core={core},isolation=tokens"} for name, core in (("seventy", 70), ("thirty", 30))
}
_ANY_PORT = {"metrics": "127.0.0.1:0"}  # so that several demos can run at once
_WALL = ["1024 MiB: 0", "1025 MiB: 2", "500 MiB: 0"]
_EVERY_CONTAINER = ("KUBERNETES_", "PATH", "HOSTNAME", "HOME", "TERM")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """Hold the devices and environment that a container sees."""

    env: dict[str, str]
    listing: list[str]  # lines of `ls -l`
    opened: dict[str, str]  # device path → ok, or an errno's name
    foreign: str  # the result of opening a card that was not granted, after mknod in the container

    @property
    def cards(self) -> set[str]:
        return {path for path in self.opened if path.removeprefix("/dev/nvidia").isdigit()}

    @property
    def uverbs(self) -> set[str]:
        return {path for path in self.opened if path.startswith("/dev/infiniband/uverbs")}


def view_container(container: Container, *, foreign_minor: int) -> Sight:
    listing = container.sh(_LIST_DEVICES).splitlines()
    paths = [line.split()[-1] for line in listing]
    container.sh(f"rm -f /tmp/foreign; mknod /tmp/foreign c {_NVIDIA_MAJOR} {foreign_minor}")
    *opened, foreign = container.try_open(*paths, "/tmp/foreign")  # noqa: S108 -- in the container
    env = {name: value for name, value in container.env().items() if not name.startswith(_EVERY_CONTAINER)}
    return Sight(env=env, listing=listing, opened=dict(zip(paths, opened, strict=True)), foreign=foreign)


@dataclass(slots=True, kw_only=True)
class LogWindow:
    """Read the new lines of some logs since the last read."""

    logs: Sequence[Path]
    _observed: dict[Path, int] = field(default_factory=dict)

    def new_lines(self) -> list[str]:
        out = []
        for log in self.logs:
            lines = log.read_text(errors="replace").splitlines() if log.exists() else []
            out += [f"{log.stem}: {line}" for line in lines[self._observed.get(log, 0) :]]
            self._observed[log] = len(lines)
        return out


class Demo:
    def __init__(self, terminal: Terminal, client: Cri, node: SimNode, driver: CudaDriver, logs: LogWindow) -> None:
        self._terminal = terminal
        self._cri = client
        self._driver = driver
        self._minors = [gpu.minor for _, gpu in node.profile.gpus]
        self._logs = logs

    def plain_pod(self) -> None:
        out = self._terminal
        out.step("A plain pod: no annotation, but it asks for every GPU, as CUDA images do: NVIDIA_VISIBLE_DEVICES=all")
        with self._cri.pod("plain") as pod:
            container = pod.run_container("main", env={"NVIDIA_VISIBLE_DEVICES": "all"})
            sight = self._show(container, foreign_minor=self._minors[0])
            out.check("it has no GPU and no RDMA device", not sight.opened)
            out.check("NVIDIA_VISIBLE_DEVICES no longer says all", sight.env.get("NVIDIA_VISIBLE_DEVICES") != "all")
            out.check("opening a card that it made a node for is EPERM", sight.foreign == "EPERM")

    def annotated_pod(self) -> None:
        out = self._terminal
        annotations = _BY_HAND
        out.step("A pod annotated by hand: two GPUs by index, and one free RDMA VF")
        out.shown("annotations", (f"{key}: {value!r}" for key, value in annotations.items()))
        with self._cri.pod("by-hand", annotations=annotations) as pod:
            sight = self._show(pod.run_container("train"), foreign_minor=self._minors[7])
            cards = {f"/dev/nvidia{minor}" for minor in self._minors[:2]}
            out.check(f"its cards are {' and '.join(sorted(cards))}: indexes 0 and 1, by minor number", sight.cards == cards)
            out.check("it has one verbs device", len(sight.uverbs) == 1)
            outcomes = set(sight.opened.values())
            out.check("each granted device can be opened, where a driver is behind it", bool(outcomes) and outcomes <= GRANTED)
            out.check("opening the eighth card, which was not granted, is EPERM", sight.foreign == "EPERM")

    def refused_pod(self) -> None:
        out = self._terminal
        annotations = {"lading.dev/gpus": "0,12"}
        out.step("A pod with a wrong annotation: this node has no GPU 12")
        out.shown("annotations", (f"{key}: {value!r}" for key, value in annotations.items()))
        refusal, containers = refused(self._cri, "wrong", annotations)
        out.shown("what the pod's events would say", [] if refusal is None else [f"{refusal.code.name}: {refusal.details}"])
        out.shown("log", self._logs.new_lines())
        named = refusal is not None and re.match(r"(?s)lading: .*\b12\b", refusal.details) is not None
        out.check("it was refused, and the refusal names the 12", named)
        out.check("the runtime never heard of its container", containers == 0)

    def shared_card(self) -> None:
        out = self._terminal
        out.step("Two pods share one card, 70 : 30, with the isolation tokens; while one is idle, the other gets all of it")
        with contextlib.ExitStack() as stack:
            containers = {}
            for name, annotations in _SHARED.items():
                out.shown(f"annotations of {name}", (f"{key}: {value!r}" for key, value in annotations.items()))
                pod = stack.enter_context(self._cri.pod(name, annotations=annotations))
                containers[name] = pod.run_container(**self._driver.container())
            memory = containers["seventy"].sh("gpu-work memory 1024 1025 500").splitlines()
            out.shown("gpu-work memory: cuMemAlloc of 1024, 1025 and 500 MiB; 2 is CUDA_ERROR_OUT_OF_MEMORY", memory)
            out.check("what is more than its 2 GiB is refused, what is not is allocated", memory[:3] == _WALL)
            out.check("CUDA reports the share as the card's memory", memory[3] == "524 of 2048 MiB are free")
            with ThreadPoolExecutor() as threads:
                both = dict(zip(containers, threads.map(_work_ms, containers.values()), strict=True))
            out.shown(f"both at once, for {_WORK_MS} ms", (_bar(name, ms) for name, ms in both.items()))
            out.check("both worked at the same time", min(both.values()) > 0)
            out.note(f"of the time that the card worked, seventy had {both['seventy'] / max(1, sum(both.values())):.0%}")
            alone = {name: _work_ms(container) for name, container in containers.items()}
            out.shown(f"each alone, for {_WORK_MS} ms", (_bar(name, ms) for name, ms in alone.items()))
            out.note(f"alone, the slower one had {min(alone.values()) / _WORK_MS:.0%} of the card")
            out.note("these are figures, not checks: a busy machine makes them smaller, and less exact")
            out.shown("log", self._logs.new_lines())

    def _show(self, container: Container, *, foreign_minor: int) -> Sight:
        sight = view_container(container, foreign_minor=foreign_minor)
        show(self._terminal, sight, self._logs)
        return sight


def _work_ms(container: Container) -> float:
    """Launch kernels of 5 ms for _WORK_MS; return for how long the card worked for it."""
    return float(container.sh(f"gpu-work run {_WORK_MS} 5000").split()[0])


def _bar(name: str, ms: float) -> str:
    return f"{name:8} {'█' * round(40 * ms / _WORK_MS):40} {ms:5.0f} ms"


def show(out: Terminal, sight: Sight, logs: LogWindow) -> None:
    out.shown("environment", (f"{name}={value}" for name, value in sorted(sight.env.items())))
    out.shown("ls -l", sight.listing)
    opened = [f"{path}  {outcome}" for path, outcome in sight.opened.items()]
    if {"ENXIO", "ENODEV"} & set(sight.opened.values()):
        opened.append(
            "ENXIO, ENODEV: the cgroup allows it, but no driver is behind a simulated device; a device not granted is EPERM"
        )
    out.shown("open()", [*opened, f"a card not granted, after mknod  {sight.foreign}"])
    out.shown("log", logs.new_lines())


def refused(client: Cri, name: str, annotations: dict[str, str]) -> tuple[CriError | None, int]:
    """Make a pod with one container. Return the refusal, if any, and how many containers of it the runtime had."""
    try:
        pod = client.run_pod(name, annotations=annotations)
    except CriError as e:
        return e, 0
    refusal = None
    try:
        pod.create_container()
    except CriError as e:
        refusal = e
    containers = len(client.list_containers(pod_id=pod.id))
    pod.remove()
    return refusal, containers


def run(out: Terminal) -> None:
    binaries = find_containerd()
    if binaries is None:
        raise HostError("cannot start the demo: there is no containerd", hint="run: python -m simnode.install")
    out.title("Lading on one machine: a simulated node with 8 GPUs and 8 RDMA NICs, a real containerd and runc")
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(kept.Workspace("lading-demo-", out))
        node = build(PROFILE, folder / "node")
        runtime = stack.enter_context(PrivateContainerd(folder / "ctd", binaries))
        driver = install_fake_cuda(node)
        daemons = LadingNode(
            folder, node=node, runtime=runtime, tokens=True, hooks_settings=_ANY_PORT, proxy_settings=_ANY_PORT
        )
        lading = stack.enter_context(daemons)
        logs = LogWindow(logs=lading.logs)
        client = stack.enter_context(lading.client())
        out.step("The node")
        out.shown(
            "running",
            [
                f"containerd {runtime.version}, {runtime.snapshotter}  pid {runtime.pid}  {runtime.socket}",
                f"lading-hooks          pid {lading.hooks.pid}  {lading.hooks.socket}",
                f"lading-shares         pid {lading.shares.pid}  {lading.shares.socket}",
                f"lading-runtimeproxy   pid {lading.proxy.pid}  {lading.proxy.socket}   <- a kubelet would be pointed here",
            ],
        )
        out.shown("log", logs.new_lines())
        out.check("the proxy passes the runtime's version on", client.version().runtime_name == "containerd")
        demo = Demo(out, client, node, driver, logs)
        for pod in (demo.plain_pod, demo.annotated_pod, demo.refused_pod, demo.shared_card):
            try:
                pod()
            except LadingError as e:
                out.check(f"{pod.__name__.replace('_', ' ')}: {e}", holds=False)
        if out.failures:
            for log in (*lading.logs, runtime.log):
                out.shown(f"the end of {log.name}", tail(log).splitlines())
        if kept.wanted():
            leave_pods(client, driver)
            print_next_steps(out, folder, lading)
            stack.pop_all()


def leave_pods(client: Cri, driver: CudaDriver) -> None:
    """Start the pods that run on while the demo is left running, so that there is something to see."""
    client.run_pod("train", annotations=_BY_HAND).run_container()
    for name, annotations in _SHARED.items():
        container = client.run_pod(name, annotations=annotations).run_container(**driver.container())
        container.sh(f"gpu-work run {_LEFT_WORK_MS} 5000 >/dev/null 2>&1 &")


def print_next_steps(out: Terminal, folder: Path, lading: LadingNode) -> None:
    python = Path(os.path.relpath(sys.executable))
    command, hooks = f"{python} -m simnode.demo", python.with_name("lading-hooks")
    config, pod = f"--config {lading.hooks.config}", folder / "pod.yaml"
    pod.write_text(_POD)
    out.step("Left running, until it is stopped: the pods train, seventy and thirty")
    out.commands(
        "things to try, from this folder",
        {
            f"{hooks} ledger {config}": "who holds which device",
            f"{python.with_name('lading-shares')} status --config {lading.shares.config}": "the pods that share a card",
            f"{command} try {folder} lading.dev/gpus=3,4 lading.dev/vfs=1": "one more pod, and what it gets",
            f"{command} try {folder} lading.dev/gpus=5:memory=8Gi,core=30": "a pod with a share of a card",
            f"{command} try {folder} lading.dev/gpus=0": "a pod that is refused: train holds GPU 0",
            f"{hooks} audit {config}": "who held which device, and when",
            f"{hooks} render {config} -f {pod}": "what a pod would get, without starting it",
            f"tail -n 20 {lading.hooks.log} {lading.proxy.log}": "the logs; they are kept until the demo is stopped",
            f"{command} stop {folder}": "end it, and remove its folder",
        },
    )


def try_annotations(out: Terminal, folder: Path, pairs: Sequence[str]) -> bool:
    """Show one more pod, and return whether it was started; False if it was refused."""
    _find_demo(folder)
    annotations = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    if len(annotations) != len(pairs):
        raise HostError("cannot read the annotations: each is KEY=VALUE", hint="for example lading.dev/gpus=0,1")
    logs = LogWindow(logs=[folder / "hooks.log", folder / "runtimeproxy.log"])
    logs.new_lines()  # skips the lines that were there before
    out.step(" ".join(pairs) or "no annotation")
    with Cri(folder / "cri.sock") as client:
        try:
            with client.pod("try", annotations=annotations) as pod:
                show(out, view_container(pod.run_container(), foreign_minor=_NO_CARD), logs)
        except CriError as refusal:
            out.shown(f"{refusal.method} was refused", [f"{refusal.code.name}: {refusal.details}"])
            out.shown("log", logs.new_lines())
            return False
    return True


def _find_demo(folder: Path) -> None:
    if not (folder / "cri.sock").is_socket():
        raise HostError(f"cannot find a demo in {folder}: no socket is there", hint="DEMO_KEEP=1 leaves one running")


def stop(folder: Path) -> None:
    """End what a demo left running, found by its folder."""
    _find_demo(folder)
    binaries = find_containerd()
    if binaries is None:
        raise HostError("cannot stop the demo: its containerd is no longer installed")
    leftovers.end_processes(folder / "runtimeproxy.toml")
    leftovers.end_processes(folder / "hooks.toml")
    leftovers.end_processes(folder / "shares.toml")
    PrivateContainerd(folder / "ctd", binaries).stop()
    leftovers.remove_tree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(prog="simnode.demo", description="The node path on one machine, shown and checked.")
    commands = parser.add_subparsers(dest="command", metavar="{try,stop}")
    one_more = commands.add_parser("try", help="one more pod, on a demo that was left running with DEMO_KEEP=1")
    ending = commands.add_parser("stop", help="end a demo that was left running")
    for command in (one_more, ending):
        command.add_argument("folder", type=Path)
    one_more.add_argument("annotations", nargs="*", metavar="KEY=VALUE")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the cleanup runs
    out = Terminal()
    try:
        match args.command:
            case "try":
                if not try_annotations(out, args.folder, args.annotations):
                    raise SystemExit(REFUSED)
                return
            case "stop":
                stop(args.folder)
                return
        run(out)
    except LadingError as e:
        out.verdict("lading demo", e)
        raise SystemExit(1) from e
    out.verdict("lading demo")
    raise SystemExit(bool(out.failures))


if __name__ == "__main__":
    main()

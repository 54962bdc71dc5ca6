"""Measure CreateContainer with the GPU hook, by the proxy and by NRI, against the same container without Lading.

The runtime is the real containerd. Each round begins with another way. NRI has a second containerd of that version, because a
plugin is asked for every container of its runtime. Each container is new to the hook (another name in the same pod), so that it
decides, writes its ledger and answers each time; the direct request carries the devices and the environment that the hook adds.
`fixed` is the proxy with a hook that repeats the GPU hook's first answer: the cost without a decision. Only CreateContainer is
timed; RemoveContainer follows at once.

`create_remove_cpu_ms`: the CPU time of each process for one CreateContainer and one RemoveContainer, including work after the
answer. Without Lading, that process is the runtime; `nri` is lading-hooks as a plugin, `nri_guard` the guard beside it.
"""

import asyncio
import contextlib
import json
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeVar

from google.protobuf.message import Message

from bench.figures import percentile
from bench.procfs import read_cpu_s
from bench.rig import Part, Rig, Size
from lading.grpc.client import ClientConnection
from protos.cri.runtime.v1 import api_pb2 as cri
from protos.hook.v1 import hook_pb2 as hook
from simnode.containerd import PrivateContainerd
from simnode.cri import Container, Cri, Pod
from simnode.kubelet import ContainerOptions, Device

R = TypeVar("R", bound=Message)
GUARDED: Final = {"lading.dev/gpus": "0,1"}
ENV: Final = "NVIDIA_VISIBLE_DEVICES"
LIMIT: Final = 1 << 20  # bytes of an answer
ANSWER_S: Final = 5.0
_REPORT_EVERY: Final = 50
_SETTLE_S: Final = 0.05  # time for the work that is done only after the caller has its answer


class TimedCri(Cri):
    """Record the seconds of each CreateContainer of this CRI client. The id of each image is requested only once."""

    def __init__(self, socket: Path, runtime: PrivateContainerd) -> None:
        super().__init__(socket, folder=runtime.layout.folder, cgroup_root=runtime.layout.cgroup_root)
        self.creates_s: list[float] = []
        self._images: dict[str, str] = {}

    def image_id(self, name: str) -> str:
        if name not in self._images:
            self._images[name] = super().image_id(name)
        return self._images[name]

    def call(
        self, method: str, request: Message, reply: type[R], *, service: str = "RuntimeService", deadline_s: float | None = None
    ) -> R:
        began = time.perf_counter()
        answer = super().call(method, request, reply, service=service, deadline_s=deadline_s)
        if method == "CreateContainer":
            self.creates_s.append(time.perf_counter() - began)
        return answer


def measure_creates(rig: Rig, size: Size) -> Part:
    with (
        rig.lading() as lading,
        rig.lading_by_nri() as by_nri,
        TimedCri(rig.runtime.socket, rig.runtime) as direct,
        TimedCri(lading.cri_socket, rig.runtime) as relay,
        TimedCri(by_nri.runtime.socket, by_nri.runtime) as nri,
        contextlib.ExitStack() as with_answer,
    ):
        guarded, plain = relay.run_pod("guarded", annotations=GUARDED), direct.run_pod("plain")
        asked = nri.run_pod("asked", annotations=GUARDED)
        first = guarded.create_container("first")
        same = as_adjusted(relay, first)
        first.remove()
        relay.creates_s.clear()
        hook_socket = with_answer.enter_context(rig.fixed_hook(asyncio.run(_answer_of(lading.hooks.socket, guarded))))
        registration = {
            "remote-endpoint": str(hook_socket),
            "runtime-hooks": ["PreCreateContainer"],
            "annotation-prefixes": ["lading.dev/"],
        }
        in_front = with_answer.enter_context(rig.relay(rig.direct, registration=registration))
        fixed = with_answer.enter_context(TimedCri(in_front.socket, rig.runtime))
        answered = fixed.run_pod("answered", annotations=GUARDED)
        ways: list[tuple[Pod, ContainerOptions]] = [(plain, same), (guarded, {}), (answered, {}), (asked, {})]
        for number in range(size.pairs):
            if number % _REPORT_EVERY == 0:
                rig.report(f"create_with_gpu_hook: round {number} of {size.pairs}")
            for way in range(len(ways)):
                pod, options = ways[(number + way) % len(ways)]
                pod.create_container(f"c{number}", **options).remove()
        clients = {"direct": direct, "relay": relay, "fixed": fixed, "nri": nri}
        figures = {name: {"p50_us": percentile(client.creates_s, 0.5) * 1e6} for name, client in clients.items()}
        adds_ms = {name: _adds_ms(client, direct) for name, client in clients.items() if client is not direct}
        cpu_ms = {
            **_cpu_ms({"direct": rig.runtime.pid}, plain, same, size.pairs),
            **_cpu_ms({"relay": lading.proxy.pid, "hooks": lading.hooks.pid}, guarded, {}, size.pairs),
            **_cpu_ms({"nri": by_nri.lading.hooks.pid, "nri_guard": by_nri.lading.guard.pid}, asked, {}, size.pairs),
        }
    notes = [
        f"create_with_gpu_hook: containerd {rig.runtime.version}; median of the rounds' differences to direct: "
        + ", ".join(f"{name} {adds:.2f} ms" for name, adds in adds_ms.items()),
        f"create_remove_cpu_ms: CPU of proxy and hooks to the runtime's own for a direct create and remove: "
        f"{(cpu_ms['relay'] + cpu_ms['hooks']) / cpu_ms['direct']:.2f} x",
    ]
    return Part({"create_with_gpu_hook": figures, "create_remove_cpu_ms": cpu_ms}, notes)


async def _answer_of(socket: Path, pod: Pod) -> bytes:
    """Ask lading-hooks about a container of the pod, as the proxy does, and return its answer."""
    metadata = pod.config.metadata
    sandbox = hook.PodSandbox(
        id=pod.id, uid=metadata.uid, name=metadata.name, namespace=metadata.namespace, annotations=pod.config.annotations
    )
    question = hook.AdjustRequest(stage="CREATE_CONTAINER", sandbox=sandbox, container=hook.Container(name="fixed"))
    connection = await ClientConnection.dial(str(socket), limit=LIMIT)
    answer = await connection.call(b"/lading.hook.v1.Hook/Adjust", question.SerializeToString(), timeout_s=ANSWER_S)
    connection.abort()
    return answer.content


def _adds_ms(client: TimedCri, direct: TimedCri) -> float:
    return statistics.median(took - d for took, d in zip(client.creates_s, direct.creates_s, strict=True)) * 1e3


def _cpu_ms(pids: Mapping[str, int], pod: Pod, options: ContainerOptions, rounds: int) -> dict[str, float]:
    """Return the milliseconds of CPU of each process for one container that is created and removed."""
    before = {name: read_cpu_s(pid) for name, pid in pids.items()}
    for number in range(rounds):
        pod.create_container(f"cpu{number}", **options).remove()
    time.sleep(_SETTLE_S)
    return {name: (read_cpu_s(pid) - before[name]) * 1e3 / rounds for name, pid in pids.items()}


def as_adjusted(client: Cri, container: Container) -> ContainerOptions:
    """Return the request fields that give the same container without Lading, read back from the runtime."""
    request = cri.ContainerStatusRequest(container_id=container.id, verbose=True)
    status = client.call("ContainerStatus", request, cri.ContainerStatusResponse)
    config = json.loads(status.info["info"])["config"]
    devices = [
        Device(host_path=Path(d["host_path"]), container_path=d["container_path"], permissions=d["permissions"])
        for d in config["devices"]
    ]
    return ContainerOptions(devices=devices, env={e["key"]: e["value"] for e in config["envs"] if e["key"] == ENV})

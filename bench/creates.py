"""CreateContainer with the GPU hook on the real containerd, against the same container made directly.

Pairs are interleaved, the first of a pair in turn direct and through the proxy. Each container is new to the hook (another name
in the same pod), so that it decides, writes its ledger and answers each time; the direct request carries the devices and the
environment that the hook adds. Only CreateContainer is timed; RemoveContainer follows at once.
"""

import json
import statistics
import time
from pathlib import Path
from typing import Final, TypeVar

from google.protobuf.message import Message

from bench.figures import percentile
from bench.rig import Rig
from bench.size import Part, Size
from protos.cri.runtime.v1 import api_pb2 as cri
from simnode.containerd import PrivateContainerd
from simnode.cri import Container, Cri
from simnode.kubelet import ContainerOptions, Device

R = TypeVar("R", bound=Message)
GUARDED: Final = {"lading.dev/gpus": "0,1"}
ENV: Final = "NVIDIA_VISIBLE_DEVICES"
_SAY_EVERY: Final = 50


class TimedCri(Cri):
    """A CRI client that records how many seconds each CreateContainer took."""

    def __init__(self, socket: Path, runtime: PrivateContainerd) -> None:
        super().__init__(socket, folder=runtime.layout.folder, cgroup_root=runtime.layout.cgroup_root)
        self.creates_s: list[float] = []

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
        TimedCri(rig.runtime.socket, rig.runtime) as direct,
        TimedCri(lading.cri_socket, rig.runtime) as relay,
    ):
        guarded, plain = relay.run_pod("guarded", annotations=GUARDED), direct.run_pod("plain")
        first = guarded.create_container("first")
        same = as_adjusted(relay, first)
        first.remove()
        relay.creates_s.clear()
        for number in range(size.pairs):
            if number % _SAY_EVERY == 0:
                rig.say(f"create_with_gpu_hook: pair {number} of {size.pairs}")
            pair = ((plain, same), (guarded, ContainerOptions()))
            for pod, options in pair if number % 2 else reversed(pair):
                pod.create_container(f"c{number}", **options).remove()
        adds_ms = statistics.median(r - d for r, d in zip(relay.creates_s, direct.creates_s, strict=True)) * 1e3
    figures = {
        name: {"p50_us": percentile(client.creates_s, 0.5) * 1e6} for name, client in (("direct", direct), ("relay", relay))
    }
    return Part({"create_with_gpu_hook": figures}, [f"create_with_gpu_hook: median of the pairs' differences {adds_ms:.2f} ms"])


def as_adjusted(client: Cri, container: Container) -> ContainerOptions:
    """Return what a direct request needs to give the same container as this one, read back from the runtime."""
    request = cri.ContainerStatusRequest(container_id=container.id, verbose=True)
    status = client.call("ContainerStatus", request, cri.ContainerStatusResponse)
    config = json.loads(status.info["info"])["config"]
    devices = [
        Device(host_path=Path(d["host_path"]), container_path=d["container_path"], permissions=d["permissions"])
        for d in config["devices"]
    ]
    return ContainerOptions(devices=devices, env={e["key"]: e["value"] for e in config["envs"] if e["key"] == ENV})

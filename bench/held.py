"""Measure what held calls cost other calls: while a hook never answers, and while a message of 15 MB goes through.

*Stuck hook.* Eight guarded CreateContainer calls wait for a hook that answers nothing, while one caller makes Version calls; a
round is measured idle, then stuck. `p99_us` is the median of the rounds' 99th percentiles.

*Stall.* CreateContainer calls of 15 MB, one after the other, are received, held, parsed, changed (`hide-unassigned`) and
forwarded to containerd. Measured inside the proxy: a heartbeat in its event loop (bench.heartbeat) asks to come back after a
millisecond; the figure is the latest that it came over all messages, whatever kept it: work on the loop, a thread that had the
interpreter, garbage collection, or the sender and containerd with the machine's CPUs. Nothing else is sent meanwhile.
From outside, as a note: a Version call every millisecond on a connection of its own during the same, the slowest less the
median one, through the proxy and past it. Those share the CPUs with the sender, containerd and the probe itself.
"""

import contextlib
import statistics
import time
from collections.abc import Iterator
from typing import Final

import grpc

from bench.caller import Caller, run_calls
from bench.calls import OPTIONS, VERSION, VERSION_REQUEST
from bench.creates import ENV, GUARDED
from bench.figures import percentile
from bench.heartbeat import read_stall_s
from bench.rig import Contender, Part, Rig, Size
from lading.errors import HostError
from protos.cri.runtime.v1 import api_pb2 as cri
from simnode.cri import Cri

CREATE: Final = "/runtime.v1.RuntimeService/CreateContainer"
WAITING: Final = 8
LARGE: Final = 15_000_000
PROBE_EVERY_S: Final = 0.001
_SETTLE_S: Final = 0.2


def measure_stuck_hook(rig: Rig, size: Size) -> Part:
    with rig.stuck_hook() as hook:
        registration = {
            "remote-endpoint": str(hook),
            "runtime-hooks": ["PreCreateContainer"],
            "annotation-prefixes": ["lading.dev/"],
            "deadlines": {"PreCreateContainer": 600},
        }
        with rig.relay(rig.direct, registration=registration) as relay, Cri(relay.socket) as client:
            pod = client.run_pod("guarded", annotations=GUARDED)
            request = cri.CreateContainerRequest(pod_sandbox_id=pod.id, sandbox_config=pod.config).SerializeToString()
            idle, stuck = [], []
            for number in range(size.rounds):
                rig.report(f"stuck_hook: round {number + 1} of {size.rounds}")
                idle.append(_p99_us(relay, size.calls))
                with _in_flight(relay, request, WAITING) as creates:
                    time.sleep(_SETTLE_S)  # until the hook has been asked
                    stuck.append(_p99_us(relay, size.calls))
                    if ended := [create.details() for create in creates if create.done()]:
                        raise HostError(f"cannot measure a stuck hook: {len(ended)} of its calls ended: {ended[0]}")
    figures = {"idle": {"p99_us": statistics.median(idle)}, "stuck": {"p99_us": statistics.median(stuck)}}
    return Part({"stuck_hook": figures})


def measure_stall(rig: Rig, size: Size) -> Part:
    registration = {
        "remote-endpoint": str(rig.folder / "absent.sock"),  # the pod does not match, so this hook is not called
        "runtime-hooks": ["PreCreateContainer"],
        "annotation-prefixes": ["lading.dev/"],
        "static-adjustments": {"hide-unassigned": {"env": {ENV: "void"}}},
    }
    request = render_large(LARGE)
    heartbeat = rig.folder / "heartbeat"
    with rig.relay(rig.direct, registration=registration, heartbeat=heartbeat) as relay:
        rig.report(f"loop_stall_max_ms: inside, {size.messages} messages of 15 MB")
        read_stall_s(relay.pid, heartbeat)  # time of the start
        _send(relay, request, size.messages)
        inside = read_stall_s(relay.pid, heartbeat)
        outside = {}
        for contender in (rig.direct, relay):
            rig.report(f"loop_stall_max_ms: outside, {contender.name}")
            probe = _probe(contender, request, size.messages)
            outside[contender.name] = (max(probe) - percentile(probe, 0.5)) * 1e3
    note = f"loop_stall_max_ms: from outside {outside['relay']:.1f} ms, and {outside['direct']:.1f} ms past the proxy"
    return Part({"loop_stall_max_ms": inside * 1e3}, [note])


def render_large(at_least: int) -> bytes:
    """Return a CreateContainer request of that size for a pod without annotations: most of it is environment."""
    config = cri.ContainerConfig(metadata=cri.ContainerMetadata(name="large"))
    value = b"x" * 10_000
    config.envs.extend(cri.KeyValue(key=f"PART_{number}", value=value) for number in range(at_least // len(value)))
    sandbox = cri.PodSandboxConfig(metadata=cri.PodSandboxMetadata(name="large", uid="large", namespace="default"))
    return cri.CreateContainerRequest(pod_sandbox_id="large", config=config, sandbox_config=sandbox).SerializeToString()


def _p99_us(contender: Contender, calls: int) -> float:
    caller = Caller(contender.socket, VERSION, VERSION_REQUEST)
    with contextlib.closing(caller):
        run_calls([caller], calls // 10)
        return percentile(run_calls([caller], calls), 0.99) * 1e6


@contextlib.contextmanager
def _in_flight(contender: Contender, request: bytes, calls: int) -> Iterator[list["grpc.CallFuture[bytes]"]]:
    """Start CreateContainer calls. At the end, cancel those that have not ended."""
    with grpc.insecure_channel(f"unix:{contender.socket}", options=OPTIONS) as channel:
        create: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(CREATE, bytes, bytes)
        futures = [create.future(request) for _ in range(calls)]
        yield futures
        for future in futures:
            future.cancel()  # type: ignore[no-untyped-call]  # in the stubs


def _send(contender: Contender, request: bytes, messages: int) -> None:
    for _ in range(messages):
        with _in_flight(contender, request, 1) as (create,):
            _check_reached(create)


def _check_reached(create: "grpc.CallFuture[bytes]") -> None:
    if create.code() is not grpc.StatusCode.NOT_FOUND:  # containerd read all of it, and does not know the sandbox
        raise HostError(f"cannot measure {CREATE}: it ended with {create.code()}: {create.details()}")


def _probe(contender: Contender, request: bytes, messages: int) -> list[float]:
    """Return the seconds of Version calls, one every millisecond, while `messages` such requests were sent one after the
    other."""
    caller = Caller(contender.socket, VERSION, VERSION_REQUEST)
    took = []
    with contextlib.closing(caller):
        run_calls([caller], 100)
        for _ in range(messages):
            with _in_flight(contender, request, 1) as (create,):
                due = time.perf_counter()
                while not create.done():
                    took += run_calls([caller], 1)
                    due += PROBE_EVERY_S
                    time.sleep(max(0.0, due - time.perf_counter()))
                _check_reached(create)
    return took

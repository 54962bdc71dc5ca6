"""Measure the latency, the throughput and the CPU of calls: Version, and a list of 2 MB.

* `p50_us`: one caller, one call at a time.
* `cpu_us`: of the proxy's process (direct: of the runtime's), with 16 connections of one call at a time: no two calls share a
  read, and no CPU is idle between them. A call of a single caller costs more, because the kernel then wakes an idle CPU with
  every message; a note beside the table says so.
* `calls_per_s`: 16 calls at a time on one connection, as a kubelet's are.
* `list_2mb`: by grpcio, one call at a time: for so many bytes, the client's flow control and CPU matter too.

Figures are medians over interleaved rounds.
"""

import statistics
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

import grpc

from bench.backend import LIST_BYTES, LIST_CONTAINERS
from bench.caller import Caller, run_calls
from bench.figures import percentile
from bench.procfs import read_cpu_s
from bench.rig import Contender, Part, Rig, Size
from protos.cri.runtime.v1 import api_pb2 as cri

OPTIONS: Final = (
    ("grpc.max_receive_message_length", 16 << 20),
    ("grpc.max_send_message_length", -1),
    ("grpc.default_authority", "localhost"),
)
VERSION: Final = "/runtime.v1.RuntimeService/Version"
VERSION_REQUEST: Final = cri.VersionRequest(version="0.1.0").SerializeToString()
_WARMING: Final = 5  # number of calls after which a client's windows have reached their final size


class Round(NamedTuple):
    p50_us: float
    cpu_us: float
    calls_per_s: float


def measure_calls(
    contender: Contender, method: str, request: bytes, calls: int, *, connections: int = 1, at_a_time: int = 1
) -> Round:
    callers = [Caller(contender.socket, method, request) for _ in range(connections)]
    try:
        run_calls(callers, connections * at_a_time)  # connections and tables exist, windows are announced
        cpu, began = read_cpu_s(contender.pid), time.perf_counter()
        took = run_calls(callers, calls, at_a_time=at_a_time)
        wall_s, cpu_s = time.perf_counter() - began, read_cpu_s(contender.pid) - cpu
    finally:
        for caller in callers:
            caller.close()
    return Round(percentile(took, 0.5) * 1e6, cpu_s / calls * 1e6, calls / wall_s)


def measure_lists(contender: Contender, calls: int) -> float:
    """Return the median in microseconds."""
    took = []
    with grpc.insecure_channel(f"unix:{contender.socket}", options=OPTIONS) as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(LIST_CONTAINERS, bytes, bytes)
        for number in range(_WARMING + calls):
            began = time.perf_counter()
            assert len(call(b"")) >= LIST_BYTES
            if number >= _WARMING:
                took.append(time.perf_counter() - began)
    return percentile(took, 0.5) * 1e6


def median(rounds: Sequence[Round]) -> Round:
    return Round(*(statistics.median(values) for values in zip(*rounds, strict=True)))


def measure_version(rig: Rig, size: Size) -> Part:
    with rig.relay(rig.direct) as relay, rig.grpc_aio(rig.direct) as grpc_aio:
        contenders = (rig.direct, relay, grpc_aio)
        alone = rig.interleave(
            "version, one caller", size.rounds, contenders, lambda c: measure_calls(c, VERSION, VERSION_REQUEST, size.calls)
        )
        busy = rig.interleave(
            "version, CPU",
            size.rounds,
            contenders,
            lambda c: measure_calls(c, VERSION, VERSION_REQUEST, size.calls * 2, connections=16),
        )
    lone = ", ".join(f"{name} {median(rounds).cpu_us:.0f}" for name, rounds in alone.items())
    return Part(
        {"version": {name: {"p50_us": median(alone[name]).p50_us, "cpu_us": median(busy[name]).cpu_us} for name in alone}},
        [f"version: µs CPU a call of a lone caller: {lone}"],
    )


def measure_concurrent(rig: Rig, size: Size) -> Part:
    with rig.relay(rig.direct) as relay, rig.grpc_aio(rig.direct) as grpc_aio:
        result = rig.interleave(
            "concurrent16",
            size.rounds,
            (rig.direct, relay, grpc_aio),
            lambda c: measure_calls(c, VERSION, VERSION_REQUEST, size.calls * 4, at_a_time=16),
        )
    middle = {name: median(rounds) for name, rounds in result.items()}
    cpu = ", ".join(f"{name} {figure.cpu_us:.0f}" for name, figure in middle.items())
    return Part(
        {"concurrent16": {name: {"calls_per_s": figure.calls_per_s} for name, figure in middle.items()}},
        [f"concurrent16: µs CPU a call: {cpu}"],
    )


def measure_list(rig: Rig, size: Size) -> Part:
    with rig.backend() as direct, rig.relay(direct) as relay, rig.grpc_aio(direct) as grpc_aio:
        result = rig.interleave(
            "list_2mb", size.rounds, (direct, relay, grpc_aio), lambda contender: measure_lists(contender, size.lists)
        )
    p50 = {name: {"p50_us": statistics.median(rounds)} for name, rounds in result.items()}
    aio = p50.pop("grpc_aio")["p50_us"]
    return Part({"list_2mb": p50}, [f"list_2mb: grpc_aio {aio:,.0f} µs"])

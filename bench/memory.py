"""Measure the proxy's memory: with 8 connections, after many calls, and after many questions to the GPU hook."""

from typing import Final

from bench.caller import Caller, run_calls
from bench.calls import VERSION, VERSION_REQUEST
from bench.creates import GUARDED
from bench.procfs import read_rss_mb
from bench.rig import Rig
from bench.size import Part, Size

CONNECTIONS: Final = 8
_AT_A_TIME: Final = 2
_STEPS: Final = 10


def measure_memory(rig: Rig, size: Size) -> Part:
    with rig.lading() as lading, lading.client() as client:
        pid = lading.proxy.pid
        callers = [Caller(lading.cri_socket, VERSION, VERSION_REQUEST) for _ in range(CONNECTIONS)]
        pod = client.run_pod("guarded", annotations=GUARDED)
        pod.create_container("first").remove()  # memory that the first held call loads belongs to the start
        run_calls(callers, CONNECTIONS)
        start_mb = read_rss_mb(pid)
        for step in range(_STEPS):
            rig.report(f"memory: {start_mb:.1f} MB at the start, {read_rss_mb(pid):.1f} MB now, calls {step} of {_STEPS}")
            run_calls(callers, size.calls_for_memory // _STEPS, at_a_time=_AT_A_TIME)
        after_calls_mb = read_rss_mb(pid)
        for number in range(size.creates_for_memory):
            if number % (size.creates_for_memory // _STEPS) == 0:
                rig.report(f"memory: {read_rss_mb(pid):.1f} MB now, container {number} of {size.creates_for_memory}")
            pod.create_container(f"c{number}").remove()
        after_creates_mb = read_rss_mb(pid)
        for caller in callers:
            caller.close()
    figures = {"start_mb": start_mb, "after_200k_calls_mb": after_calls_mb, "after_5k_creates_mb": after_creates_mb}
    return Part({"memory": figures}, [])

"""Expose every metric of the three daemons, from their real registries after something was counted, for tests of files that
name metrics.

exposed(folder)["lading_proxy_held_seconds_bucket"] == {"method", "le"}
"""

import asyncio
from collections import defaultdict
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry

import central.daemon.metrics
import hooks.daemon.metrics
import runtimeproxy.metrics
from hooks.attach.preparer import Operation
from hooks.ledger.share_bypass import How, ShareBypass
from hooks.ledger.store import Ledger
from hooks.model.assignment import GrantedDevices, GrantedGpu
from hooks.report.reporter import Reporter, connect
from lading.log import Log
from lading.reasons import Reason
from lading.vocabulary import PodUid
from runtimeproxy.call.calls import METHODS
from runtimeproxy.call.outcome import Refuse
from runtimeproxy.metrics import Gauges
from tests.fakes.holders import gpu_uuid, grant
from tests.fakes.led import Led, led
from tests.fakes.runtime import FakeRuntime
from tests.unit.hooks.daemon.test_metrics import Watch, a_node
from tests.unit.hooks.inventories import gpu, inventory

_SUFFIXES: Final = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}

Names = dict[str, set[str]]  # name of a series → the labels that were seen


def exposed(folder: Path, log: Log) -> Names:
    result: Names = defaultdict(set)
    asyncio.run(_of_central(folder, result))
    asyncio.run(_of_hooks(folder, log, result))
    _of_proxy(result)
    return dict(result)


def _read(registry: CollectorRegistry, into: Names) -> None:
    for family in registry.collect():
        for suffix in _SUFFIXES.get(family.type, ("",)):
            into[family.name + suffix].update()
        for sample in family.samples:
            into[sample.name].update(sample.labels)


async def _of_central(folder: Path, into: Names) -> None:
    async with led(folder) as one:
        await _wait_for_room(one)
        counts = one.leadership.scheduler.counts
        metrics = central.daemon.metrics.Metrics(
            counts, leadership=lambda: one.leadership, leads=lambda: True, transitions=lambda: 1
        )
        metrics.answered("filter", 200, 0.1)
        _read(metrics.registry, into)


async def _wait_for_room(one: Led) -> None:
    await one.put_pod("a", {"lading.dev/gpu": "9"})
    await one.schedule("a")
    await one.put_pod("b", {"lading.dev/gpu": "1"})
    await one.schedule("b")
    await one.pause()
    await one.leadership.statistics.scan()
    for _ in range(2):
        await one.leadership.gpu_hours.scan()


async def _of_hooks(folder: Path, log: Log, into: Names) -> None:
    with Ledger.open(folder / "node.db") as ledger:
        node = a_node(ledger, FakeRuntime(), folder, log)
        node.watch = Watch(inventory(gpus=(replace(gpu(0), used_mib=1, busy_percent=1),)))
        ledger.record(grant("p", "c", GrantedDevices(gpus=(GrantedGpu(uuid=gpu_uuid(0), memory_mib=1, core_percent=1),))))
        node.share_bypasses = (
            ShareBypass(pod=PodUid("p"), container="c", namespace="n", pod_name="a", card=gpu_uuid(0), how=How.MEMORY),
        )
        reporter = Reporter(node, node_name="n1", connect=partial(connect, ""), log=log, clock=lambda: 5.0)
        metrics = hooks.daemon.metrics.Metrics(node, reporter)
        metrics.moved(Operation.ATTACH, 1.0, succeeded=True)
        _read(metrics.registry, into)


def _of_proxy(into: Names) -> None:
    metrics = runtimeproxy.metrics.Metrics()
    metrics.call_ended(METHODS[b"/runtime.v1.RuntimeService/CreateContainer"], Refuse(9, "", Reason.DEVICE_HELD), 0.2)
    metrics.hook_answered("10.json", 2.0, Reason.HOOK_TIMEOUT)
    metrics.show(
        lambda: Gauges(
            connections=0,
            open_calls=0,
            connections_opened=0,
            connections_rejected=0,
            runtime_up=True,
            hooks_up={"10.json": True},
            lost_calls=0,
            log_dropped=0,
        )
    )
    _read(metrics.registry, into)

"""Show containers' current use of their shares: as JSON on a socket, as a table for people, and as metrics.

Only root can connect to the socket (lading/sockets.py); lading/sharestatus.py defines the JSON.
"""

import asyncio
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, cast

import msgspec
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from lading.scrape import Scraped, open_registry
from lading.sharestatus import ShareUse
from lading.sockets import serve
from shares.server import Usage

_MIB: Final = 1 << 20
_LABELS: Final = ("namespace", "pod", "container", "gpu")


def render(usage: Iterable[Usage]) -> bytes:
    return msgspec.json.encode([_use(one) for one in usage])


def _use(one: Usage) -> ShareUse:
    (gpu,) = (gpu for gpu in one.grant.gpus if gpu.uuid == one.uuid)
    return ShareUse(
        namespace=one.grant.namespace,
        pod=one.grant.pod_name,
        pod_uid=one.grant.pod,
        container=one.grant.container,
        gpu=one.uuid,
        request_percent=gpu.request_percent,
        limit_percent=gpu.limit_percent,
        held_s=round(one.held_ns / 1e9, 3),
        waited_s=round(one.waited_ns / 1e9, 3),
        has_turn=one.has_turn,
        waiters=one.waiters,
        turns=gpu.turns,
        memory_used_mib=-(-one.used_bytes // _MIB),
        memory_limit_mib=one.limit_bytes // _MIB,
        context_mib=-(-one.context_bytes // _MIB),
        processes=len(one.process_ids),
        process_ids=one.process_ids,
    )


async def answer(listener: socket.socket, usage: Callable[[], Sequence[Usage]]) -> asyncio.Server:
    """Answer each connection with the containers' use at that moment."""
    return await serve(lambda: _Answer(usage), listener)


class _Answer(asyncio.Protocol):
    def __init__(self, usage: Callable[[], Sequence[Usage]]) -> None:
        self._usage = usage

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        writer = cast("asyncio.WriteTransport", transport)
        writer.write(render(self._usage()))
        writer.close()


def render_table(uses: Sequence[ShareUse]) -> str:
    head = ("POD", "CONTAINER", "GPU", "COMPUTE", "HELD", "TURN", "MEMORY", "PROCESSES")
    rows = [
        (
            f"{use.namespace}/{use.pod}",
            use.container or "(all)",
            use.gpu[:12],
            f"{use.request_percent} to {use.limit_percent} %" if use.turns else f"by MPS, to {use.limit_percent} %",
            f"{use.held_s:.1f} s",
            "yes" if use.has_turn else "no",
            f"{use.memory_used_mib} of {use.memory_limit_mib} MiB",
            str(use.processes),
        )
        for use in uses
    ]
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in (head, *rows))
    return "\n".join(lines)


class Metrics:
    """Hold the daemon's metrics. A node has at most a few hundred containers with shares, and their series end with their
    grants."""

    def __init__(self, usage: Callable[[], Sequence[Usage]], refused: Callable[[], int]) -> None:
        self.registry = open_registry()
        self.registry.register(Scraped(lambda: _read(usage(), refused())))


def _read(usage: Sequence[Usage], refused: int) -> Iterator[Metric]:
    yield CounterMetricFamily(
        "lading_shares_refused",
        "Processes that a share was refused to, whose frames cannot be read, or that sent too many frames.",
        refused,
    )
    held = CounterMetricFamily(
        "lading_share_held_seconds",
        "Seconds for which a container had its card, since its grant or the server's start.",
        labels=_LABELS,
    )
    waited = CounterMetricFamily(
        "lading_share_waited_seconds",
        "Seconds for which a container waited for its turn of the card, since its grant or the server's start.",
        labels=_LABELS,
    )
    used = GaugeMetricFamily("lading_share_memory_bytes", "Memory of its card that a container uses.", labels=_LABELS)
    for one in usage:
        labels = [one.grant.namespace, one.grant.pod_name, one.grant.container, one.uuid]
        held.add_metric(labels, one.held_ns / 1e9)
        waited.add_metric(labels, one.waited_ns / 1e9)
        used.add_metric(labels, one.used_bytes)
    yield from (held, waited, used)

"""Point the Service at the leader: an EndpointSlice with one address, written by the replica that becomes leader.

A Service with a selector would send every other connection to a replica that answers 503, and leaving a standby unready would
stall a rollout. So the Service has no selector. A leader that lost the lease does not remove its address: the next leader
overwrites it, and until then a 503 is the right answer. The slice is written again at intervals, in case it was deleted.

Source: "Services without selectors"; discovery.k8s.io/v1 EndpointSlice; server-side apply.
"""

import asyncio
import ipaddress
import time
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn

from lading.health import Address
from lading.kube.backoff import Backoff
from lading.kube.client import KubeClient
from lading.kube.errors import KubeError
from lading.kube.resource import Resource
from lading.log import Event, Log
from lading.vocabulary import CENTRAL

ENDPOINT_SLICES: Final = Resource("discovery.k8s.io", "v1", "endpointslices")
PORT: Final = "extender"  # the Service's names for its ports
PAGE_PORT: Final = "page"
SCAN_S: Final = 0.2
AGAIN_S: Final = 60.0  # seconds between two writes of the EndpointSlice
_NOW: Final = float("-inf")


class Announcer:
    """Write the EndpointSlice. kube-scheduler reaches this replica at `address`, people at `page_port` of the same host.
    `leads` returns whether this replica answers now."""

    def __init__(
        self,
        client: KubeClient,
        *,
        namespace: str,
        service: str,
        address: Address,
        page_port: int | None = None,
        leads: Callable[[], bool],
        log: Log,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._client = client
        self._path = ENDPOINT_SLICES.path(namespace, service)
        self._body = render_slice(namespace, service, address, page_port)
        self._leads = leads
        self._log = log
        self._clock = clock
        self._sleep = sleep

    async def run(self) -> NoReturn:
        backoff, due = Backoff(), _NOW
        while True:
            await self._sleep(SCAN_S)
            if not self._leads():
                due = _NOW
            elif self._clock() >= due:
                due = self._clock() + await self._write(backoff)

    async def _write(self, backoff: Backoff) -> float:
        """Write the slice. Return the seconds until the next write."""
        try:
            await self._client.apply(self._path, self._body, manager=CENTRAL, force=True)
        except KubeError as e:
            self._log.warning(Event.ANNOUNCE_FAILED, str(e))
            return backoff.failed(at_least_s=e.retry_after_s)
        backoff.succeeded()
        return AGAIN_S


def render_slice(namespace: str, service: str, address: Address, page_port: int | None = None) -> dict[str, object]:
    family = ipaddress.ip_address(address.host).version
    ports = {PORT: address.port} | ({PAGE_PORT: page_port} if page_port else {})
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": service,
            "namespace": namespace,
            "labels": {
                "kubernetes.io/service-name": service,
                "endpointslice.kubernetes.io/managed-by": CENTRAL,
            },
        },
        "addressType": f"IPv{family}",
        "endpoints": [{"addresses": [address.host], "conditions": {"ready": True}}],
        "ports": [{"name": name, "port": port, "protocol": "TCP"} for name, port in ports.items()],
    }

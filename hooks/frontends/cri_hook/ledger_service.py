"""Serve `lading.hook.v1.Ledger` on the hook API's socket: an operator's requests to the daemon (`lading-hooks release`).

A request names a device. The answer lists the steps that a release would take, or has taken. Each forced release is logged with
the process and user that requested it.

Tests: tests/unit/hooks/daemon/test_ledger_commands.py
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from hooks.ledger.period import End, Ended
from hooks.node.node import Node
from hooks.node.release import Attachments, Outcome, carry_out, find_release, read_content
from lading.errors import ConfigError, RuntimeUnavailableError
from lading.grpc.server import CallError, Later, Method
from lading.http2.messages import GrpcStatus
from lading.log import Event, Log, printable
from lading.sockets import Peer
from protos.hook.v1 import hook_pb2

SERVICE: Final = "lading.hook.v1.Ledger"


@dataclass(slots=True)
class LedgerService:
    node: Node
    attachments: Attachments
    log: Log

    def methods(self, peer: Callable[[], Peer]) -> Mapping[bytes, Method]:
        """Return the methods by path; `peer` returns the process that connected."""

        def release(message: bytes) -> Later:
            try:
                request = hook_pb2.ReleaseRequest.FromString(message)
            except DecodeError as e:
                raise CallError(GrpcStatus.INVALID_ARGUMENT, "the message is no ReleaseRequest") from e
            return self._release(request, peer())

        return {f"/{SERVICE}/Release".encode(): release}

    async def _release(self, request: hook_pb2.ReleaseRequest, peer: Peer) -> bytes:
        node = self.node
        if (inventory := node.inventory) is None:
            raise CallError(GrpcStatus.UNAVAILABLE, "the devices have not been read yet")
        try:
            release = await find_release(request.device, inventory, lambda: read_content(node.ledger), node.lists)
        except ConfigError as e:
            raise CallError(GrpcStatus.NOT_FOUND, e.message) from e
        except RuntimeUnavailableError as e:
            raise CallError(
                GrpcStatus.UNAVAILABLE, f"nothing is released while the running containers are not known: {e.message}"
            ) from e
        outcome = Outcome(done=tuple(release.steps))
        if request.force:
            outcome = await carry_out(release, node.ledger, self.attachments, self.log, end=forced(peer, node.clock()))
            log_forced(self.log, release.device, outcome, peer)
            if node.watch is not None:
                node.watch.request_scan()  # rescan the released devices before the next pod requests them
        return hook_pb2.ReleaseResponse(
            device=release.device,
            steps=map(printable, outcome.done),
            in_use=map(printable, release.in_use),
            failed=map(printable, outcome.failed),
        ).SerializeToString()


def forced(peer: Peer, now: float) -> End:
    return End(at=int(now), how=Ended.FORCED, uid=peer.uid)


def log_forced(log: Log, device: str, outcome: Outcome, peer: Peer) -> None:
    words = "; ".join((*outcome.done, *outcome.failed)) or "nothing was released"
    log.warning(Event.RELEASE_FORCED, words, device=device, uid=peer.uid, pid=peer.pid)

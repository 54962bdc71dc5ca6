"""Call one hook server: check that its socket can be trusted, retry while the server restarts, queue its observations, and
track whether the server answers.

A call uses an idle connection, or else dials another. A call that times out closes its connection, so that the server learns of
the timeout. An idle connection that the server closes is forgotten at once.

A probe is an HTTP/2 greeting: a server that hangs still accepts connections, so only its own greeting counts. A question that
failed in the last minute outweighs it, because a server that greets and then answers garbage does not work.

Source: gRPC status codes; unix(7).
"""

import asyncio
import os
import stat
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lading.grpc.client import ClientConnection, Reply
from lading.http2.messages import GrpcStatus
from lading.liveness import HELLO, find_silence
from lading.log import Event, Log, printable
from lading.reasons import Reason
from protos.hook.v1 import hook_pb2 as hook

MAX_ANSWER_BYTES: Final = 4 << 20
# This many calls may be open at a time; kubelet makes a few. The accept queue of a server is about as long.
MAX_OPEN: Final = 64
MAX_IDLE: Final = 4  # connections
MAX_QUEUED: Final = 1024  # observations; a busy node makes a few a second
RESTART_WAIT_S: Final = 1.5  # seconds for which an unavailable server is tried again
RETRY_PAUSE_S: Final = 0.05
REMEMBER_S: Final = 60.0  # seconds for which a failed question counts

_ADJUST: Final = b"/lading.hook.v1.Hook/Adjust"
_OBSERVE: Final = b"/lading.hook.v1.Hook/Observe"
_STATUS_NAMES: Final[dict[int, str]] = {status: status.name for status in GrpcStatus}
# These statuses may mean a restart: a stopping server cancels its open calls, and the proxy never cancels a call it waits for.
_OF_A_RESTART: Final = frozenset({GrpcStatus.UNAVAILABLE, GrpcStatus.CANCELLED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Describe why a server gave no usable answer. `passing`: a retry may succeed in a moment."""

    reason: Reason
    message: str
    passing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Observation:
    hook: str
    payload: bytes
    deadline_s: float


class Endpoint:
    def __init__(self, path: str, log: Log, *, owner_uid: int) -> None:
        """Create an endpoint. `owner_uid`: the user whose socket is trusted besides root's."""
        self.path = path
        self._folder = str(Path(path).parent)
        self.dropped = 0  # observations that were not sent to the server
        self._trusted = {0, owner_uid}
        self._log = log
        self._idle: list[ClientConnection] = []
        self._busy: set[ClientConnection] = set()
        self._places = asyncio.Semaphore(MAX_OPEN)
        self._closed = False
        self._silence = "not probed yet"  # why the last probe got no answer; empty if it did, or if a question was answered
        self._failure: Failure | None = None  # result of the last question
        self._failed_at = 0.0
        self._queue: deque[_Observation] = deque()
        self._delivery: asyncio.Task[None] | None = None
        self._deaf = False  # the last observation failed: do not log failures again, and do not wait for the server

    async def adjust(self, request: hook.AdjustRequest, *, until: float, patient: bool) -> bytes | Failure:
        """Ask the server. `until` in loop.time(); `patient` waits for a restarting server. Sets the request's `deadline_ms`."""
        loop = asyncio.get_running_loop()
        patience = loop.time() + (RESTART_WAIT_S if patient else 0)
        away: Failure | None = None  # why the server could not be asked so far
        while (remaining_s := until - loop.time()) > 0:
            request.deadline_ms = int(remaining_s * 1000)
            answer = await self._call(_ADJUST, request.SerializeToString(), remaining_s)
            if isinstance(answer, bytes):
                return answer
            if not answer.passing or loop.time() + RETRY_PAUSE_S >= min(until, patience):
                # A timeout after a wait says nothing about the server, because the time left may be too short for an answer.
                return away if away is not None and answer.reason is Reason.HOOK_TIMEOUT else answer
            away = answer
            await asyncio.sleep(RETRY_PAUSE_S)  # the sleep may end after `until` on a busy machine
        return away or _late(self.path, 0.0)

    def observe(self, request: hook.ObserveRequest, *, name: str, deadline_s: float) -> None:
        """Queue an observation, sent in order; a full queue drops the oldest one. `name` is the registration's, for the log."""
        if len(self._queue) == MAX_QUEUED:
            self._queue.popleft()
            self._drop(name, f"more than {MAX_QUEUED} observations wait for {self.path}")
        self._queue.append(_Observation(hook=name, payload=request.SerializeToString(), deadline_s=deadline_s))
        if self._delivery is None or self._delivery.done():
            self._delivery = asyncio.get_running_loop().create_task(self._deliver())

    @property
    def silence(self) -> str:
        """Return why the server does not answer, or an empty text."""
        failed = self._failure and self._failed_at > asyncio.get_running_loop().time() - REMEMBER_S
        return self._silence or (self._failure.message if self._failure and failed else "")

    async def probe(self) -> None:
        self._silence = await find_silence(Path(self.path), hello=HELLO)

    def record(self, failure: Failure | None, *, name: str) -> None:
        """Record how a question ended. The first answer after a failure is logged, with the registration's `name`."""
        if failure:
            self._failed_at = asyncio.get_running_loop().time()
        else:
            self._silence = ""
            if self._failure:
                self._log.info(Event.HOOK_BACK, hook=name, endpoint=self.path)
        self._failure = failure

    async def close(self, *, grace_s: float | None) -> None:
        """End calls after `grace_s` seconds (None: at once), and drop queued observations. May be called twice."""
        if self._delivery is not None:
            self._delivery.cancel()
            await asyncio.gather(self._delivery, return_exceptions=True)
        self._queue.clear()
        self._closed = True
        for connection in self._idle:
            connection.abort()
        if grace_s and (open_calls := [connection.settled for connection in self._busy if connection.settled]):
            await asyncio.wait(open_calls, timeout=grace_s)
        for connection in list(self._busy):
            connection.abort()
        await asyncio.sleep(0)  # a turn of the loop, so that connection_lost runs for each connection

    async def _deliver(self) -> None:
        loop = asyncio.get_running_loop()
        while self._queue:
            observation = self._queue.popleft()
            patience = loop.time() + (0 if self._deaf else RESTART_WAIT_S)
            answer = await self._call(_OBSERVE, observation.payload, observation.deadline_s)
            while isinstance(answer, Failure) and answer.passing and loop.time() + RETRY_PAUSE_S < patience:
                await asyncio.sleep(RETRY_PAUSE_S)
                answer = await self._call(_OBSERVE, observation.payload, observation.deadline_s)
            if isinstance(answer, Failure):
                self._drop(observation.hook, answer.message)
            self._deaf = isinstance(answer, Failure)

    def _drop(self, name: str, cause: str) -> None:
        self.dropped += 1
        if not self._deaf:
            self._log.warning(Event.HOOK_FAILED, f"an observation was dropped: {cause}", hook=name, endpoint=self.path)
        self._deaf = True

    async def _call(self, method: bytes, payload: bytes, timeout_s: float) -> bytes | Failure:
        if distrust := self._distrust():
            return distrust
        try:
            async with asyncio.timeout(timeout_s), self._places:
                reply = await self._exchange(method, payload, timeout_s)
        except TimeoutError:
            return _late(self.path, timeout_s)
        except OSError as e:
            if self._closed:
                return Failure(reason=Reason.HOOK_UNAVAILABLE, message=f"{self.path} was unregistered while it was asked")
            return _unreachable(self.path, e)
        return reply.content if reply.status == GrpcStatus.OK else _failure(self.path, reply, timeout_s)

    async def _exchange(self, method: bytes, payload: bytes, timeout_s: float) -> Reply:
        """Make one call. Raises OSError."""
        if self._idle:
            connection = self._idle.pop()
        else:
            connection = await ClientConnection.dial(self.path, limit=MAX_ANSWER_BYTES, lost=self._forget)
        self._busy.add(connection)
        try:
            if self._closed:
                raise ConnectionAbortedError
            return await connection.call(method, payload, timeout_s=timeout_s)
        finally:
            self._busy.discard(connection)
            if connection.reusable and not self._closed and len(self._idle) < MAX_IDLE:
                self._idle.append(connection)
            else:
                connection.abort()

    def _forget(self, connection: ClientConnection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)

    def _distrust(self) -> Failure | None:
        """Return why the socket must not be used now: it is missing, or may belong to another user."""
        try:
            socket, parent = os.lstat(self.path), os.stat(self._folder)  # noqa: PTH116  a container waits, and Path is slow
        except OSError as e:
            return _unreachable(self.path, e)
        if not stat.S_ISSOCK(socket.st_mode):
            return _untrusted(self.path, "is not a socket")
        if socket.st_uid not in self._trusted:
            return _untrusted(self.path, f"belongs to uid {socket.st_uid}, not to root")
        if parent.st_uid not in self._trusted or (parent.st_mode & 0o022 and not parent.st_mode & stat.S_ISVTX):
            return _untrusted(self._folder, "can be written by others than root")
        return None


def _unreachable(path: str, error: OSError) -> Failure:
    return Failure(reason=Reason.HOOK_UNAVAILABLE, message=f"cannot reach {path}: {error.strerror}", passing=True)


def _failure(path: str, answer: Reply, timeout_s: float) -> Failure:
    details = printable(answer.message)[:200]
    match answer.status:
        case GrpcStatus.DEADLINE_EXCEEDED:
            return _late(path, timeout_s)
        case GrpcStatus.UNIMPLEMENTED:
            message = (
                f"{path} does not serve lading.hook.v1.Hook; "
                "koordlet's protocol, runtime.v1alpha1.RuntimeHookService, is not supported yet"
            )
            return Failure(reason=Reason.HOOK_INVALID, message=message)
        case GrpcStatus.RESOURCE_EXHAUSTED:
            return Failure(reason=Reason.HOOK_INVALID, message=f"{path} sent too large an answer: {details}")
        case status:
            return Failure(
                reason=Reason.HOOK_UNAVAILABLE,
                message=f"{path} answered {_STATUS_NAMES.get(status, status)}: {details}",
                passing=status in _OF_A_RESTART,
            )


def _late(path: str, seconds: float) -> Failure:
    return Failure(reason=Reason.HOOK_TIMEOUT, message=f"no answer from {path} within {seconds:.1f} s")


def _untrusted(path: str, problem: str) -> Failure:
    return Failure(reason=Reason.HOOK_INVALID, message=f"{path} {problem}")

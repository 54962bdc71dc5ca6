"""Test the hook API as its clients see it: `wire` serves, grpcio calls, over a socket of this test."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest

from hooks.frontends.cri_hook.service import SERVICE, ClosedService, HookServer, HookService
from hooks.model.assignment import Refusal
from hooks.model.container import Adjustment, Answer, Container, EnvVar, Sandbox
from lading.log import Log, LogfmtSink
from lading.reasons import Reason
from lading.sockets import Peer, listen
from protos.hook.v1 import hook_pb2 as hook
from tests.fakes.needs import need

OTHER_UID = 65534
X, Y = (Answer(adjustment=Adjustment(env=(EnvVar(name),))) for name in "XY")


def names(answer: hook.AdjustResponse) -> list[str]:
    return [env.name for env in answer.adjustment.env]


class Node:
    """Record each request, and answer as set by the test."""

    def __init__(self) -> None:
        self.answer: Answer | Refusal | Exception = X
        self.later = False  # whether the answer comes when `may_end` is set
        self.asked: list[tuple[str, ...]] = []
        self.may_end = asyncio.Event()  # set when the later answers may come
        self.vfs_in: set[str] = set()  # sandboxes

    def adjust_container(self, sandbox: Sandbox, container: Container) -> Answer | Refusal | Awaitable[Answer | Refusal]:
        self.asked.append(("adjust", sandbox.id, container.name))
        if self.later:
            return self._answer_later(sandbox)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def refused(self, sandbox: Sandbox, container: Container, refusal: Refusal) -> None:
        raise AssertionError("the proxy waits for the node's answer")

    def sandbox_created(self, sandbox: Sandbox) -> None:
        raise AssertionError("the proxy's hook API has no such stage")

    def compare_soon(self) -> None:
        raise AssertionError("the proxy calls; it is not connected to")

    async def _answer_later(self, sandbox: Sandbox) -> Answer | Refusal:
        answer = self.answer
        assert not isinstance(answer, Exception)
        self.asked.append(("attach", sandbox.id))
        await self.may_end.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        self.asked.append(("attached", sandbox.id))
        return answer

    def stopping(self, sandbox: Sandbox) -> Awaitable[None] | None:
        self.asked.append(("stopping", sandbox.id))
        return self._give_back(sandbox) if sandbox.id in self.vfs_in else None

    async def _give_back(self, sandbox: Sandbox) -> None:
        self.asked.append(("give back", sandbox.id))
        await self.may_end.wait()

    def stopped(self, sandbox: Sandbox) -> None:
        self.asked.append(("stopped", sandbox.id))

    def sandbox_removed(self, sandbox: Sandbox) -> None:
        self.asked.append(("removed", sandbox.id))


class Client:
    server: HookServer

    def __init__(self, path: Path) -> None:
        self.path = path
        self.channel = grpc.aio.insecure_channel(f"unix://{path}")

    async def adjust(self, request: hook.AdjustRequest) -> hook.AdjustResponse:
        return hook.AdjustResponse.FromString(await self.raw("Adjust", request.SerializeToString()))

    async def observe(self, request: hook.ObserveRequest) -> None:
        await self.raw("Observe", request.SerializeToString())

    async def raw(self, method: str, request: bytes) -> bytes:
        call = self.channel.unary_unary(f"/{SERVICE}/{method}", bytes, bytes)
        answer: bytes = await call(request, timeout=5)
        return answer


@asynccontextmanager
async def serving(path: Path, node: Node, rejected: Callable[[Peer], None] = lambda _: None) -> AsyncIterator[Client]:
    with listen(path, directory_mode=0o755, rejected=rejected) as listener:
        server = HookServer(HookService(node), Log(LogfmtSink()), listener=listener)
        await server.start()
        client = Client(path)
        client.server = server
        try:
            yield client
        finally:
            await client.channel.close(None)
            await server.close()


def ask(sockets: Path, node: Node, questions: Callable[[Client], Awaitable[None]]) -> None:
    async def run() -> None:
        async with serving(sockets / "h" / "hooks.sock", node) as client:
            await questions(client)

    asyncio.run(asyncio.wait_for(run(), 20))


SANDBOX, CONTAINER = hook.PodSandbox(id="s1"), hook.Container(id="c1", name="train")


def test_adjust_answers_what_was_decided(sockets: Path) -> None:
    node = Node()

    async def questions(client: Client) -> None:
        request = hook.AdjustRequest(stage=hook.CREATE_CONTAINER, sandbox=SANDBOX, container=CONTAINER)
        assert names(await client.adjust(request)) == ["X"]
        node.answer = Refusal(reason=Reason.DEVICE_HELD, message="cannot give GPU 0: …")
        refusal = (await client.adjust(request)).refusal
        assert (refusal.reason, refusal.message) == ("device-held", node.answer.message)

    ask(sockets, node, questions)
    assert node.asked == [("adjust", "s1", "train")] * 2


@pytest.mark.parametrize("stage", [hook.RUN_POD_SANDBOX, hook.STOP_POD_SANDBOX, hook.UPDATE_CONTAINER_RESOURCES, 99])
def test_any_other_stage_is_answered_with_nothing(sockets: Path, stage: hook.Stage) -> None:
    """Set, not absent: the proxy refuses an answer that says nothing. 99 is a newer proxy's."""
    node = Node()

    async def questions(client: Client) -> None:
        answer = await client.adjust(hook.AdjustRequest(stage=stage, sandbox=SANDBOX))
        assert answer.WhichOneof("result") == "adjustment"
        assert answer.adjustment == hook.Adjustment()

    ask(sockets, node, questions)
    assert node.asked == ([("stopping", "s1")] if stage == hook.STOP_POD_SANDBOX else [])


@pytest.mark.parametrize(
    ("stage", "told"),
    [
        (hook.CREATE_CONTAINER, []),
        (hook.STOP_POD_SANDBOX, [("stopped", "s1")]),
        (hook.REMOVE_POD_SANDBOX, [("removed", "s1")]),
        (hook.START_CONTAINER, []),
        (99, []),
    ],
)
def test_observe_tells_what_succeeded(sockets: Path, stage: hook.Stage, told: list[tuple[str, ...]]) -> None:
    node = Node()

    async def questions(client: Client) -> None:
        for status in (0, 5):
            await client.observe(hook.ObserveRequest(stage=stage, sandbox=SANDBOX, container=CONTAINER, grpc_status=status))

    ask(sockets, node, questions)
    assert node.asked == told


@pytest.mark.parametrize("method", ["Adjust", "Observe"])
def test_garbage_is_an_error_and_the_next_call_is_served(sockets: Path, method: str) -> None:
    async def questions(client: Client) -> None:
        with pytest.raises(grpc.aio.AioRpcError):
            await client.raw(method, b"\xff\xff\xff")
        assert (await client.adjust(hook.AdjustRequest(stage=hook.CREATE_CONTAINER))).HasField("adjustment")

    ask(sockets, Node(), questions)


def test_an_error_of_lading_is_an_error_and_no_answer(sockets: Path) -> None:
    node = Node()
    node.answer = RuntimeError("a bug")

    async def questions(client: Client) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as e:
            await client.adjust(hook.AdjustRequest(stage=hook.CREATE_CONTAINER))
        assert e.value.code() is grpc.StatusCode.UNKNOWN

    ask(sockets, node, questions)


def test_an_unknown_method(sockets: Path) -> None:
    async def questions(client: Client) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as e:
            await client.raw("Later", b"")
        assert e.value.code() is grpc.StatusCode.UNIMPLEMENTED

    ask(sockets, Node(), questions)


# answers that come later


CREATE = hook.AdjustRequest(stage=hook.CREATE_CONTAINER, sandbox=SANDBOX, container=CONTAINER)


async def until(true: Callable[[], bool]) -> None:
    while not true():  # noqa: ASYNC110  the fake node has no event to wait for, and the time is bounded by `ask`
        await asyncio.sleep(0)


def test_a_container_is_answered_when_its_vfs_are_attached_and_others_meanwhile(sockets: Path) -> None:
    node = Node()

    async def questions(client: Client) -> None:
        node.later = True
        slow = asyncio.create_task(client.adjust(CREATE))
        await until(lambda: ("attach", "s1") in node.asked)
        node.answer, node.later = Y, False
        assert names(await client.adjust(CREATE)) == ["Y"]
        assert not slow.done()
        node.may_end.set()
        assert names(await slow) == ["X"]

    ask(sockets, node, questions)


def test_what_needs_no_waiting_is_answered_without_a_task() -> None:
    """Check that a container which waits for nothing does not wait for the loop's next turn either."""
    adjust = HookService(Node()).methods()[f"/{SERVICE}/Adjust".encode()]
    stop = hook.AdjustRequest(stage=hook.STOP_POD_SANDBOX, sandbox=SANDBOX)
    assert all(isinstance(adjust(request.SerializeToString()), bytes) for request in (CREATE, stop))


def test_a_stop_waits_for_its_vfs_and_learns_of_at_once(sockets: Path) -> None:
    """Check that a CreateContainer right after the stop does not find the sandbox alive."""
    node = Node()
    node.vfs_in.add("s1")

    async def questions(client: Client) -> None:
        stop = hook.AdjustRequest(stage=hook.STOP_POD_SANDBOX, sandbox=SANDBOX)
        slow = asyncio.create_task(client.adjust(stop))
        await until(lambda: ("give back", "s1") in node.asked)
        assert node.asked == [("stopping", "s1"), ("give back", "s1")]
        assert not slow.done()
        node.may_end.set()
        assert (await slow).WhichOneof("result") == "adjustment"

    ask(sockets, node, questions)


@pytest.mark.parametrize("deleted", ["the call", "the connection"])
def test_work_goes_on_when_no_one_waits_for_its_answer(sockets: Path, deleted: str) -> None:
    node = Node()
    node.later = True

    async def questions(client: Client) -> None:
        other = Client(client.path)
        slow = asyncio.create_task(other.adjust(CREATE))
        await until(lambda: ("attach", "s1") in node.asked)
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        if deleted == "the connection":
            await other.channel.close(None)
        node.may_end.set()
        await until(lambda: ("attached", "s1") in node.asked)
        assert names(await client.adjust(CREATE)) == ["X"]
        await other.channel.close(None)

    ask(sockets, node, questions)


def test_a_later_error_of_lading_is_an_error_and_no_answer(sockets: Path) -> None:
    node = Node()
    node.later = True

    async def questions(client: Client) -> None:
        slow = asyncio.create_task(client.adjust(CREATE))
        await until(lambda: ("attach", "s1") in node.asked)
        node.answer = RuntimeError("a bug")
        node.may_end.set()
        with pytest.raises(grpc.aio.AioRpcError) as e:
            await slow
        assert e.value.code() is grpc.StatusCode.UNKNOWN

    ask(sockets, node, questions)


@pytest.mark.parametrize("in_time", [True, False])
def test_what_was_asked_before_the_end_is_answered(sockets: Path, monkeypatch: pytest.MonkeyPatch, in_time: bool) -> None:
    monkeypatch.setattr("lading.grpc.server.DRAIN_S", 5.0 if in_time else 0.0)
    node = Node()
    node.later = True
    left: list[asyncio.Task[hook.AdjustResponse]] = []

    async def questions(client: Client) -> None:
        left.append(asyncio.create_task(client.adjust(CREATE)))
        await until(lambda: ("attach", "s1") in node.asked)
        if in_time:
            asyncio.get_running_loop().call_soon(node.may_end.set)
        await client.server.close()
        await client.server.close()
        if in_time:
            assert names(await left[0]) == ["X"]
        else:
            with pytest.raises(grpc.aio.AioRpcError) as e:
                await left[0]
            assert e.value.code() is grpc.StatusCode.UNAVAILABLE

    ask(sockets, node, questions)


# Dials as another user, says the preface of HTTP/2, and prints what comes back: nothing, if it is cut off.
STRANGER = """
import os, socket, sys
os.setgroups([]); os.setgid({uid}); os.setuid({uid})
connection = socket.socket(socket.AF_UNIX)
connection.settimeout(5)
connection.connect(sys.argv[1])
try:
    connection.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n")
    print(len(connection.recv(100)))
except (BrokenPipeError, ConnectionResetError):
    print(0)
"""


def test_a_peer_with_another_uid_is_cut_off_and_others_are_served(sockets: Path) -> None:
    path = sockets / "h" / "hooks.sock"
    strangers: list[Peer] = []

    async def run() -> None:
        async with serving(path, Node(), strangers.append):
            await asyncio.to_thread(path.chmod, 0o666)
            code = STRANGER.format(uid=OTHER_UID)
            child = await asyncio.create_subprocess_exec(sys.executable, "-c", code, path, stdout=asyncio.subprocess.PIPE)
            printed, _ = await child.communicate()
            assert printed == b"0\n"
            assert [(peer.pid, peer.uid) for peer in strangers] == [(child.pid, OTHER_UID)]
            reader, writer = await asyncio.open_unix_connection(path)
            assert await reader.readexactly(9)  # the head of its SETTINGS
            writer.close()
            await writer.wait_closed()

    need(os.geteuid() == 0, "root, to be another user")
    sockets.chmod(0o755)
    asyncio.run(asyncio.wait_for(run(), 20))


def test_a_node_with_another_front_end_refuses_the_proxy_in_words(sockets: Path) -> None:
    async def run() -> None:
        with listen(sockets / "h" / "hooks.sock") as listener:
            server = HookServer(ClosedService(), Log(LogfmtSink()), listener=listener)
            await server.start()
            client = Client(sockets / "h" / "hooks.sock")
            for method in ("Adjust", "Observe"):
                with pytest.raises(grpc.aio.AioRpcError, match="front_end = nri") as error:
                    await client.raw(method, b"")
                assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            await client.channel.close(None)
            await server.close()

    asyncio.run(asyncio.wait_for(run(), 10))

"""Test the hook API as its clients see it: `wire` serves, grpcio calls, over a socket of this test."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest

from hooks.frontends.cri_hook.service import SERVICE, ClosedService, HookServer, HookService
from hooks.model.assignment import Refusal
from hooks.model.container import Adjustment, Answer, EnvVar
from lading.log import Log, LogfmtSink
from lading.reasons import Reason
from lading.sockets import Peer, listen
from protos.hook.v1 import hook_pb2 as hook
from tests.coroutines import until
from tests.fakes.needs import need
from tests.fakes.node_port import ScriptedNode

OTHER_UID = 65534
X, Y = (Answer(adjustment=Adjustment(env=(EnvVar(name),))) for name in "XY")


def names(answer: hook.AdjustResponse) -> list[str]:
    return [env.name for env in answer.adjustment.env]


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
async def serving(
    path: Path, service: HookService | ClosedService, rejected: Callable[[Peer], None] = lambda _: None
) -> AsyncIterator[Client]:
    with listen(path, directory_mode=0o755, rejected=rejected) as listener:
        server = HookServer(service, Log(LogfmtSink()), listener=listener)
        await server.start()
        client = Client(path)
        client.server = server
        try:
            yield client
        finally:
            await client.channel.close(None)
            await server.close()


@pytest.fixture
def node() -> ScriptedNode:
    node = ScriptedNode()
    node.answer = X
    return node


@pytest.fixture
async def client(short_folder: Path, node: ScriptedNode) -> AsyncIterator[Client]:
    async with serving(short_folder / "h" / "hooks.sock", HookService(node)) as client:
        yield client


SANDBOX, CONTAINER = hook.PodSandbox(id="s1"), hook.Container(id="c1", name="train")
CREATE = hook.AdjustRequest(stage=hook.CREATE_CONTAINER, sandbox=SANDBOX, container=CONTAINER)
STOP = hook.AdjustRequest(stage=hook.STOP_POD_SANDBOX, sandbox=SANDBOX)


@asynccontextmanager
async def fails(code: grpc.StatusCode) -> AsyncIterator[None]:
    with pytest.raises(grpc.aio.AioRpcError) as e:
        yield
    assert e.value.code() is code


async def test_adjust_answers_with_the_nodes_decision(node: ScriptedNode, client: Client) -> None:
    assert names(await client.adjust(CREATE)) == ["X"]
    node.answer = Refusal(reason=Reason.DEVICE_HELD, message="cannot give GPU 0: …")
    refusal = (await client.adjust(CREATE)).refusal
    assert (refusal.reason, refusal.message) == ("device-held", node.answer.message)
    assert (node.asked, node.container.name) == ([("adjust", "s1")] * 2, "train")


@pytest.mark.parametrize("stage", [hook.RUN_POD_SANDBOX, hook.STOP_POD_SANDBOX, hook.UPDATE_CONTAINER_RESOURCES, 99])
async def test_any_other_stage_is_answered_with_an_empty_adjustment(
    node: ScriptedNode, client: Client, stage: hook.Stage
) -> None:
    """Check that the adjustment is set, because the proxy refuses an answer without a result. Stage 99 is a newer proxy's."""
    answer = await client.adjust(hook.AdjustRequest(stage=stage, sandbox=SANDBOX))
    assert answer.WhichOneof("result") == "adjustment"
    assert answer.adjustment == hook.Adjustment()
    assert node.asked == ([("stopping", "s1")] if stage == hook.STOP_POD_SANDBOX else [])


@pytest.mark.parametrize(
    ("stage", "notified"),
    [
        (hook.CREATE_CONTAINER, []),
        (hook.STOP_POD_SANDBOX, [("stopped", "s1")]),
        (hook.REMOVE_POD_SANDBOX, [("removed", "s1")]),
        (hook.START_CONTAINER, []),
        (99, []),
    ],
)
async def test_observe_notifies_the_node_of_calls_that_succeeded(
    node: ScriptedNode, client: Client, stage: hook.Stage, notified: list[tuple[str, ...]]
) -> None:
    for status in (0, 5):
        await client.observe(hook.ObserveRequest(stage=stage, sandbox=SANDBOX, container=CONTAINER, grpc_status=status))
    assert node.asked == notified


@pytest.mark.parametrize(
    ("method", "request_", "code"),
    [
        ("Adjust", b"\xff\xff\xff", grpc.StatusCode.INVALID_ARGUMENT),
        ("Observe", b"\xff\xff\xff", grpc.StatusCode.INVALID_ARGUMENT),
        ("Later", b"", grpc.StatusCode.UNIMPLEMENTED),
    ],
)
async def test_an_unreadable_call_or_an_unknown_method_is_an_error_and_the_next_call_is_served(
    client: Client, method: str, request_: bytes, code: grpc.StatusCode
) -> None:
    async with fails(code):
        await client.raw(method, request_)
    assert (await client.adjust(CREATE)).HasField("adjustment")


async def test_an_internal_error_is_an_error_and_no_answer(node: ScriptedNode, client: Client) -> None:
    node.answer = RuntimeError("a bug")
    async with fails(grpc.StatusCode.UNKNOWN):
        await client.adjust(CREATE)


# answers that come later


async def test_a_container_is_answered_when_its_vfs_are_attached_and_others_meanwhile(
    node: ScriptedNode, client: Client
) -> None:
    node.prepares = True
    slow = asyncio.create_task(client.adjust(CREATE))
    await until(lambda: bool(node.asked))
    node.answer, node.prepares = Y, False
    assert names(await client.adjust(CREATE)) == ["Y"]
    assert not slow.done()
    node.answer = X
    node.may_end.set()
    assert names(await slow) == ["X"]


def test_a_call_without_preparation_is_answered_without_a_task(node: ScriptedNode) -> None:
    """Check that a container which waits for nothing does not wait for the loop's next turn either."""
    adjust = HookService(node).methods()[f"/{SERVICE}/Adjust".encode()]
    assert all(isinstance(adjust(request.SerializeToString()), bytes) for request in (CREATE, STOP))


async def test_a_stop_waits_for_its_vfs_and_the_node_is_notified_at_once(node: ScriptedNode, client: Client) -> None:
    """Check that a CreateContainer right after the stop does not find the sandbox alive."""
    node.prepares = True
    slow = asyncio.create_task(client.adjust(STOP))
    await until(lambda: bool(node.asked))
    assert node.asked == [("stopping", "s1")]
    assert not slow.done()
    node.may_end.set()
    assert (await slow).WhichOneof("result") == "adjustment"


@pytest.mark.parametrize("ends", ["the call", "the connection"])
async def test_preparation_goes_on_after_its_call_ended(node: ScriptedNode, client: Client, ends: str) -> None:
    node.prepares = True
    other = Client(client.path)
    slow = asyncio.create_task(other.adjust(CREATE))
    await until(lambda: bool(node.asked))
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow
    if ends == "the connection":
        await other.channel.close(None)
    node.may_end.set()
    await until(lambda: ("adjusted",) in node.asked)
    assert names(await client.adjust(CREATE)) == ["X"]
    await other.channel.close(None)


async def test_an_internal_error_during_preparation_is_an_error_and_no_answer(node: ScriptedNode, client: Client) -> None:
    node.prepares = True
    slow = asyncio.create_task(client.adjust(CREATE))
    await until(lambda: bool(node.asked))
    node.answer = RuntimeError("a bug")
    node.may_end.set()
    async with fails(grpc.StatusCode.UNKNOWN):
        await slow


@pytest.mark.parametrize("in_time", [True, False])
async def test_a_server_that_ends_answers_its_calls_or_ends_them_as_unavailable(
    node: ScriptedNode, client: Client, monkeypatch: pytest.MonkeyPatch, in_time: bool
) -> None:
    monkeypatch.setattr("lading.grpc.server.DRAIN_S", 5.0 if in_time else 0.0)
    node.prepares = True
    call = asyncio.create_task(client.adjust(CREATE))
    await until(lambda: bool(node.asked))
    if in_time:
        asyncio.get_running_loop().call_soon(node.may_end.set)
    await client.server.close()
    await client.server.close()
    if in_time:
        assert names(await call) == ["X"]
    else:
        async with fails(grpc.StatusCode.UNAVAILABLE):
            await call


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


async def test_a_peer_with_another_uid_is_cut_off_and_others_are_served(short_folder: Path, node: ScriptedNode) -> None:
    need(os.geteuid() == 0, "root, to be another user")
    short_folder.chmod(0o755)
    path = short_folder / "h" / "hooks.sock"
    strangers: list[Peer] = []
    async with serving(path, HookService(node), strangers.append):
        path.chmod(0o666)
        code = STRANGER.format(uid=OTHER_UID)
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", code, path, stdout=asyncio.subprocess.PIPE)
        printed, _ = await child.communicate()
        assert printed == b"0\n"
        assert [(peer.pid, peer.uid) for peer in strangers] == [(child.pid, OTHER_UID)]
        reader, writer = await asyncio.open_unix_connection(path)
        assert await reader.readexactly(9)  # the head of its SETTINGS
        writer.close()
        await writer.wait_closed()


async def test_a_node_with_another_front_end_refuses_the_proxy_and_names_the_setting(short_folder: Path) -> None:
    async with serving(short_folder / "h" / "hooks.sock", ClosedService()) as client:
        for method in ("Adjust", "Observe"):
            with pytest.raises(grpc.aio.AioRpcError, match="front_end = nri") as error:
                await client.raw(method, b"")
            assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION

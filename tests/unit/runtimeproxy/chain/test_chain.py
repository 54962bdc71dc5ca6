"""The chain against a real gRPC server on a Unix socket."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
import pytest

from lading.log import Event, Log
from lading.reasons import Reason
from protos.hook.v1 import hook_pb2 as hook
from runtimeproxy.call.calls import Stage
from runtimeproxy.call.outcome import Answers, CallRefusal
from runtimeproxy.chain.chain import Chain, Question
from runtimeproxy.chain.endpoint import MAX_ANSWER_BYTES, MAX_QUEUED
from runtimeproxy.chain.registrations import FailurePolicy, Registration
from tests.fakes.hook_server import KOORDLET, HookServer
from tests.fakes.records import Records

CREATE = Stage.CREATE_CONTAINER
SHORT = 0.5  # seconds; a deadline that a test waits for in full
LONG = 15.0  # one that no one should wait for


@pytest.fixture(autouse=True)
async def no_task_is_left() -> AsyncIterator[None]:
    yield
    # grpc's own server, in the same loop, may not have cleaned up yet
    servers = ("rpc_task", "HandleExceptions[")
    left = [task for task in asyncio.all_tasks() - {asyncio.current_task()} if not task.get_name().startswith(servers)]
    assert not left, left


@pytest.fixture
async def a(short_folder: Path) -> AsyncIterator[HookServer]:
    """Yield a hook server at the socket `a`."""
    async with HookServer(short_folder / "a") as server:
        yield server


@pytest.fixture
async def chain(log: Log) -> AsyncIterator[Chain]:
    chain = Chain(log)
    yield chain
    await chain.close()


def registration(
    path: Path, name: str = "10.json", *, policy: FailurePolicy = FailurePolicy.FAIL, deadline_s: float = 5
) -> Registration:
    return Registration(
        name=name,
        endpoint=str(path),
        hooks=frozenset({CREATE.pre, CREATE.post}),
        policy=policy,
        deadlines_s={CREATE.pre: deadline_s, CREATE.post: deadline_s},
    )


def question(of: Registration, pod: str = "p") -> Question:
    request = hook.AdjustRequest(stage=CREATE.name, sandbox=hook.PodSandbox(name=pod))
    return Question(registration=of, request=request)


def adjustment(value: str) -> hook.Adjustment:
    return hook.Adjustment(env=[hook.EnvUpsert(name=value, value=value)])


async def ask(
    chain: Chain, *of: Registration, deadline_s: float | None = None, keep_going: bool = False
) -> Answers | CallRefusal:
    deadline = None if deadline_s is None else asyncio.get_running_loop().time() + deadline_s
    return await chain.collect_answers(CREATE, [question(r) for r in of], deadline, keep_going=keep_going)


async def answered(chain: Chain, *of: Registration, deadline_s: float | None = None, keep_going: bool = False) -> Answers:
    answers = await ask(chain, *of, deadline_s=deadline_s, keep_going=keep_going)
    assert isinstance(answers, Answers)
    return answers


async def refused(chain: Chain, *of: Registration, deadline_s: float | None = None) -> CallRefusal:
    refusal = await ask(chain, *of, deadline_s=deadline_s)
    assert isinstance(refusal, CallRefusal)
    return refusal


async def test_hooks_are_asked_in_order_and_each_sees_the_original(short_folder: Path, chain: Chain) -> None:
    async with HookServer(short_folder / "a") as a, HookServer(short_folder / "b") as b:
        a.adjust(adjustment("A"))
        b.adjust(adjustment("B"))
        answers = await answered(
            chain, registration(short_folder / "a", "10.json"), registration(short_folder / "b", "20.json")
        )
        assert answers.adjustments == (("10.json", adjustment("A")), ("20.json", adjustment("B")))
        assert [r.sandbox for r in a.asked] == [r.sandbox for r in b.asked] == [hook.PodSandbox(name="p")]
        assert 0 < a.asked[0].deadline_ms <= 5000


async def test_a_refusal_ends_the_chain(short_folder: Path, records: Records, chain: Chain) -> None:
    async with HookServer(short_folder / "a") as a, HookServer(short_folder / "b") as b:
        a.refuse("device-held", "GPU-1 is held by\nns/other")
        refusal = await refused(chain, registration(short_folder / "a"), registration(short_folder / "b", "20.json"))
        assert (refusal.reason, refusal.hook) == ("device-held", "10.json")
        assert "GPU-1 is held by" in refusal.message
        assert "\n" not in refusal.message
        assert b.asked == []
    assert Event.HOOK_FAILED not in records.events()


async def test_a_refusal_without_a_usable_code_stays_a_refusal(short_folder: Path, a: HookServer, chain: Chain) -> None:
    a.refuse("No Code\n", "because")
    refusal = await refused(chain, registration(short_folder / "a", policy=FailurePolicy.IGNORE))
    assert (refusal.reason, refusal.message) == (Reason.HOOK_INVALID, "because")


async def test_teardown_asks_all_hooks_although_one_refuses(short_folder: Path, chain: Chain) -> None:
    async with HookServer(short_folder / "a") as a, HookServer(short_folder / "c") as c:
        a.refuse("device-held", "no")
        gone = registration(short_folder / "b", "20.json", deadline_s=SHORT)
        answers = await answered(
            chain, registration(short_folder / "a"), gone, registration(short_folder / "c", "30.json"), keep_going=True
        )
        assert {n: r.reason for n, r in answers.forgiven.items()} == {
            "10.json": "device-held",
            "20.json": Reason.HOOK_UNAVAILABLE,
        }
        assert len(c.asked) == 1


async def test_a_hanging_hook_costs_its_deadline(short_folder: Path, records: Records, a: HookServer, chain: Chain) -> None:
    a.hang()
    started = asyncio.get_running_loop().time()
    refusal = await refused(chain, registration(short_folder / "a", deadline_s=SHORT))
    assert refusal.reason == Reason.HOOK_TIMEOUT
    assert "10.json" in refusal.message
    assert SHORT <= asyncio.get_running_loop().time() - started < LONG / 3
    assert records.fields(Event.HOOK_TIMEOUT)[0]["hook"] == "10.json"


async def test_the_chain_takes_at_most_half_of_what_the_caller_has(short_folder: Path, chain: Chain) -> None:
    async with HookServer(short_folder / "a") as a, HookServer(short_folder / "b") as b:
        a.hang()
        of = [registration(short_folder / n, f"{n}.json", policy=FailurePolicy.IGNORE, deadline_s=LONG) for n in ("a", "b")]
        started = asyncio.get_running_loop().time()
        answers = await answered(chain, *of, deadline_s=2 * SHORT)
        assert asyncio.get_running_loop().time() - started < LONG / 3
        assert a.asked[0].deadline_ms <= 1000 * SHORT
        assert {r.reason for r in answers.forgiven.values()} == {Reason.HOOK_TIMEOUT}
        assert b.asked == []


async def test_no_time_left_is_a_timeout_at_once(short_folder: Path, a: HookServer, chain: Chain) -> None:
    refusal = await refused(chain, registration(short_folder / "a"), deadline_s=-1)
    assert refusal.reason == Reason.HOOK_TIMEOUT
    assert a.asked == []


async def test_policy_ignore_goes_on_at_once_and_logs_it(short_folder: Path, records: Records, chain: Chain) -> None:
    async with HookServer(short_folder / "b") as b:
        b.adjust(adjustment("B"))
        gone = registration(short_folder / "a", policy=FailurePolicy.IGNORE, deadline_s=LONG)
        started = asyncio.get_running_loop().time()
        answers = await answered(chain, gone, registration(short_folder / "b", "20.json"))
        assert asyncio.get_running_loop().time() - started < LONG / 3
        assert answers.adjustments == (("20.json", adjustment("B")),)
        assert answers.forgiven["10.json"].reason == Reason.HOOK_UNAVAILABLE
    assert records.fields(Event.HOOK_IGNORED)[0]["reason"] == Reason.HOOK_UNAVAILABLE


async def test_a_server_that_restarts_is_waited_for_and_its_return_is_logged(
    short_folder: Path, records: Records, chain: Chain
) -> None:
    mine = registration(short_folder / "a")
    async with HookServer(short_folder / "a"):
        assert isinstance(await ask(chain, mine), Answers)
    failed = await answered(chain, registration(short_folder / "a", policy=FailurePolicy.IGNORE))
    assert "10.json" in failed.forgiven
    waiting = asyncio.create_task(ask(chain, mine))
    await asyncio.sleep(0)
    async with HookServer(short_folder / "a") as again:
        assert isinstance(await waiting, Answers)
        assert len(again.asked) == 1
    assert records.events().count(Event.HOOK_BACK) == 1


async def test_a_server_that_dies_while_it_is_asked_is_asked_again(short_folder: Path, chain: Chain) -> None:
    first = HookServer(short_folder / "a")
    async with first:
        first.hang()
        waiting = asyncio.create_task(ask(chain, registration(short_folder / "a")))
        await first.arrived.wait()
        await first.stop()
    async with HookServer(short_folder / "a") as second:
        assert isinstance(await waiting, Answers)
        assert second.asked[0].sandbox.name == "p"


LARGE = hook.AdjustResponse(adjustment=adjustment("x" * MAX_ANSWER_BYTES)).SerializeToString()


@pytest.mark.parametrize(
    "answer",
    [b"", b"\xff\xff", hook.AdjustRequest(traceparent="x").SerializeToString(), LARGE],
    ids=["empty", "no protobuf", "another message", "too large"],
)
async def test_an_answer_that_is_unreadable_or_too_large_is_invalid(
    short_folder: Path, records: Records, a: HookServer, chain: Chain, answer: bytes
) -> None:
    a.answer_bytes(answer)
    assert (await refused(chain, registration(short_folder / "a"))).reason == Reason.HOOK_INVALID
    assert records.fields(Event.HOOK_INVALID)[0]["hook"] == "10.json"


async def test_koordlets_protocol_is_rejected_by_name(short_folder: Path, chain: Chain) -> None:
    async with HookServer(short_folder / "a", service=KOORDLET):
        refusal = await refused(chain, registration(short_folder / "a"))
    assert refusal.reason == Reason.HOOK_INVALID
    assert KOORDLET in refusal.message


@pytest.mark.parametrize("code", [grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.PERMISSION_DENIED])
async def test_a_server_that_fails_is_unavailable_and_not_asked_twice(
    short_folder: Path, code: grpc.StatusCode, a: HookServer, chain: Chain
) -> None:
    a.fail(code)
    refusal = await refused(chain, registration(short_folder / "a"))
    assert refusal.reason == Reason.HOOK_UNAVAILABLE
    assert code.name in refusal.message
    assert len(a.asked) == 1


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED])
async def test_a_server_that_goes_away_while_it_is_asked_is_asked_again(
    short_folder: Path, code: grpc.StatusCode, a: HookServer, chain: Chain
) -> None:
    """A server that stops ends its calls with one of these two codes; its gRPC library decides which."""
    a.fail(code)
    asking = asyncio.create_task(ask(chain, registration(short_folder / "a")))
    await a.arrived.wait()
    a.adjust(adjustment("A"))
    answers = await asking
    assert isinstance(answers, Answers)
    assert len(a.asked) > 1


def file(path: Path) -> None:
    path.write_text("")


def link(path: Path) -> None:
    listen(path.with_name("real"))
    path.symlink_to(path.with_name("real"))


def socket_in_a_folder_for_all(path: Path) -> None:
    listen(path)
    path.parent.chmod(0o777)


def socket_of_another_user(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a socket to another user")
    listen(path)
    os.chown(path, 65534, 65534)


def listen(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


@pytest.mark.parametrize("make", [file, link, socket_in_a_folder_for_all, socket_of_another_user])
async def test_a_path_that_is_no_private_socket_is_refused(
    short_folder: Path, chain: Chain, make: Callable[[Path], None]
) -> None:
    make(short_folder / "a")
    assert (await refused(chain, registration(short_folder / "a"))).reason == Reason.HOOK_INVALID


def observation(pod: str) -> hook.ObserveRequest:
    return hook.ObserveRequest(stage=CREATE.name, sandbox=hook.PodSandbox(name=pod))


async def observed(server: HookServer, count: int) -> list[str]:
    while len(server.observed) < count:
        server.arrived.clear()
        await server.arrived.wait()
    return [request.sandbox.name for request in server.observed]


async def test_observations_arrive_in_order(short_folder: Path, a: HookServer, chain: Chain) -> None:
    for i in range(20):
        chain.observe(registration(short_folder / "a"), CREATE, observation(str(i)))
    assert await observed(a, 20) == [str(i) for i in range(20)]
    chain.observe(registration(short_folder / "a"), CREATE, observation("later"))
    assert (await observed(a, 21))[-1] == "later"


async def test_a_full_queue_drops_the_oldest_and_logs_it_once(
    short_folder: Path, records: Records, a: HookServer, chain: Chain
) -> None:
    a.hang()
    chain.observe(registration(short_folder / "a"), CREATE, observation("first"))
    await observed(a, 1)
    for i in range(MAX_QUEUED + 3):
        chain.observe(registration(short_folder / "a"), CREATE, observation(str(i)))
    a.release()
    assert (await observed(a, MAX_QUEUED + 1))[:3] == ["first", "3", "4"]
    await chain.close()
    assert records.events().count(Event.HOOK_FAILED) == 1


async def test_closing_drops_queued_observations_and_leaves_no_task(short_folder: Path, a: HookServer, chain: Chain) -> None:
    a.hang()
    for i in range(3):
        chain.observe(registration(short_folder / "a"), CREATE, observation(str(i)))
    await observed(a, 1)
    await chain.close()  # and again at the end of the test
    assert len(a.observed) == 1


async def test_a_removed_registration_lets_its_question_finish(short_folder: Path, a: HookServer, chain: Chain) -> None:
    a.hang()
    waiting = asyncio.create_task(ask(chain, registration(short_folder / "a")))
    await a.arrived.wait()
    chain.use(())
    a.release()
    assert isinstance(await waiting, Answers)


async def test_closing_the_chain_ends_a_question_with_a_refusal_not_a_cancellation(
    short_folder: Path, a: HookServer, chain: Chain
) -> None:
    a.hang()
    waiting = asyncio.create_task(ask(chain, registration(short_folder / "a")))
    await a.arrived.wait()
    await chain.close()
    refusal = await waiting
    assert isinstance(refusal, CallRefusal)
    assert refusal.reason == Reason.HOOK_UNAVAILABLE


async def test_a_caller_that_gives_up_cancels_the_question(short_folder: Path, a: HookServer, chain: Chain) -> None:
    a.hang()
    waiting = asyncio.create_task(ask(chain, registration(short_folder / "a")))
    await a.arrived.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_servers_are_probed_when_they_are_registered_and_forgotten_with_their_registration(
    short_folder: Path, chain: Chain
) -> None:
    probing = asyncio.create_task(chain.keep_probing())
    async with HookServer(short_folder / "a"):
        for path, name in ((short_folder / "a", "10.json"), (short_folder / "b", "20.json")):
            chain.use((registration(path, name),))
            assert chain.silences() == {name: "not probed yet"}
            while chain.silences() == {name: "not probed yet"}:  # noqa: ASYNC110  a few turns of the loop
                await asyncio.sleep(0)
            assert chain.silences() == {
                name: "" if name == "10.json" else f"cannot connect to {path}: No such file or directory"
            }
    probing.cancel()
    await asyncio.gather(probing, return_exceptions=True)

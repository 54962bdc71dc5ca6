"""The chain against a real gRPC server on a Unix socket."""

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

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
from tests.fakes.hook_server import HOOK, KOORDLET, HookServer
from tests.unit.runtimeproxy.conftest import Records

CREATE = Stage.CREATE_CONTAINER
SHORT = 0.5  # seconds; a deadline that a test waits for in full
LONG = 15.0  # one that no one should wait for
T = TypeVar("T")


def go(body: Coroutine[Any, Any, T]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(20):
            result = await body
        # but for what grpc's own server, here in the same loop, has not yet cleaned up
        left = [
            t
            for t in asyncio.all_tasks() - {asyncio.current_task()}
            if not t.get_name().startswith(("rpc_task", "HandleExceptions["))
        ]
        assert not left, left
        return result

    return asyncio.run(bounded())


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


def refused_by(
    path: Path,
    log: Log,
    script: Callable[[HookServer], object] = lambda _: None,
    *,
    policy: FailurePolicy = FailurePolicy.FAIL,
    service: str = HOOK,
) -> CallRefusal:
    """Return the refusal of a chain with one hook, whose server answers by `script`."""

    async def body() -> Answers | CallRefusal:
        chain = Chain(log)
        async with HookServer(path, service=service) as server:
            script(server)
            result = await ask(chain, registration(path, policy=policy))
            await chain.close()
        return result

    refusal = go(body())
    assert isinstance(refusal, CallRefusal)
    return refusal


def test_hooks_are_asked_in_order_and_each_sees_the_original(sockets: Path, log: Log) -> None:
    async def body() -> None:
        chain = Chain(log)
        async with HookServer(sockets / "a") as a, HookServer(sockets / "b") as b:
            a.adjust(adjustment("A"))
            b.adjust(adjustment("B"))
            answers = await ask(chain, registration(sockets / "a", "10.json"), registration(sockets / "b", "20.json"))
            assert isinstance(answers, Answers)
            assert answers.adjustments == (("10.json", adjustment("A")), ("20.json", adjustment("B")))
            assert [r.sandbox for r in a.asked] == [r.sandbox for r in b.asked] == [hook.PodSandbox(name="p")]
            assert 0 < a.asked[0].deadline_ms <= 5000
            await chain.close()

    go(body())


def test_a_refusal_ends_the_chain(sockets: Path, log: Log, records: Records) -> None:
    async def body() -> None:
        chain = Chain(log)
        async with HookServer(sockets / "a") as a, HookServer(sockets / "b") as b:
            a.refuse("device-held", "GPU-1 is held by\nns/other")
            refusal = await ask(chain, registration(sockets / "a"), registration(sockets / "b", "20.json"))
            assert isinstance(refusal, CallRefusal)
            assert (refusal.reason, refusal.hook) == ("device-held", "10.json")
            assert "GPU-1 is held by" in refusal.message
            assert "\n" not in refusal.message
            assert b.asked == []
            await chain.close()

    go(body())
    assert Event.HOOK_FAILED not in records.events()


def test_a_refusal_without_a_usable_code_stays_a_refusal(sockets: Path, log: Log) -> None:
    refusal = refused_by(sockets / "a", log, lambda a: a.refuse("No Code\n", "because"), policy=FailurePolicy.IGNORE)
    assert (refusal.reason, refusal.message) == (Reason.HOOK_INVALID, "because")


def test_teardown_asks_all_of_them(sockets: Path, log: Log) -> None:
    async def body() -> None:
        chain = Chain(log)
        async with HookServer(sockets / "a") as a, HookServer(sockets / "c") as c:
            a.refuse("device-held", "no")
            gone = registration(sockets / "b", "20.json", deadline_s=SHORT)
            answers = await ask(
                chain, registration(sockets / "a"), gone, registration(sockets / "c", "30.json"), keep_going=True
            )
            assert isinstance(answers, Answers)
            assert {n: r.reason for n, r in answers.forgiven.items()} == {
                "10.json": "device-held",
                "20.json": Reason.HOOK_UNAVAILABLE,
            }
            assert len(c.asked) == 1
            await chain.close()

    go(body())


def test_a_hanging_hook_costs_its_deadline(sockets: Path, log: Log, records: Records) -> None:
    async def body() -> None:
        chain = Chain(log)
        async with HookServer(sockets / "a") as a:
            a.hang()
            started = asyncio.get_running_loop().time()
            refusal = await ask(chain, registration(sockets / "a", deadline_s=SHORT))
            assert isinstance(refusal, CallRefusal)
            assert refusal.reason == Reason.HOOK_TIMEOUT
            assert "10.json" in refusal.message
            assert SHORT <= asyncio.get_running_loop().time() - started < LONG / 3
            await chain.close()

    go(body())
    assert records.fields(Event.HOOK_TIMEOUT)[0]["hook"] == "10.json"


def test_the_chain_takes_at_most_half_of_what_the_caller_has(sockets: Path, log: Log) -> None:
    async def body() -> None:
        chain = Chain(log)
        async with HookServer(sockets / "a") as a, HookServer(sockets / "b") as b:
            a.hang()
            of = [registration(sockets / n, f"{n}.json", policy=FailurePolicy.IGNORE, deadline_s=LONG) for n in ("a", "b")]
            started = asyncio.get_running_loop().time()
            answers = await ask(chain, *of, deadline_s=2 * SHORT)
            assert asyncio.get_running_loop().time() - started < LONG / 3
            assert a.asked[0].deadline_ms <= 1000 * SHORT
            assert isinstance(answers, Answers)
            assert {r.reason for r in answers.forgiven.values()} == {Reason.HOOK_TIMEOUT}
            assert b.asked == []
            await chain.close()

    go(body())


def test_no_time_left_is_a_timeout_at_once(sockets: Path, log: Log) -> None:
    async def body() -> None:
        chain = Chain(log)
        async with HookServer(sockets / "a") as a:
            refusal = await ask(chain, registration(sockets / "a"), deadline_s=-1)
            assert isinstance(refusal, CallRefusal)
            assert refusal.reason == Reason.HOOK_TIMEOUT
            assert a.asked == []
            await chain.close()

    go(body())


def test_policy_ignore_goes_on_at_once_and_says_so(sockets: Path, log: Log, records: Records) -> None:
    async def body() -> None:
        chain = Chain(log)
        async with HookServer(sockets / "b") as b:
            b.adjust(adjustment("B"))
            gone = registration(sockets / "a", policy=FailurePolicy.IGNORE, deadline_s=LONG)
            started = asyncio.get_running_loop().time()
            answers = await ask(chain, gone, registration(sockets / "b", "20.json"))
            assert asyncio.get_running_loop().time() - started < LONG / 3
            assert isinstance(answers, Answers)
            assert answers.adjustments == (("20.json", adjustment("B")),)
            assert answers.forgiven["10.json"].reason == Reason.HOOK_UNAVAILABLE
            await chain.close()

    go(body())
    assert records.fields(Event.HOOK_IGNORED)[0]["reason"] == Reason.HOOK_UNAVAILABLE


def test_a_server_that_restarts_is_waited_for_and_its_return_is_said(sockets: Path, log: Log, records: Records) -> None:
    async def body() -> None:
        chain = Chain(log)
        mine = registration(sockets / "a")
        async with HookServer(sockets / "a"):
            assert isinstance(await ask(chain, mine), Answers)
        failed = await ask(chain, registration(sockets / "a", policy=FailurePolicy.IGNORE))
        assert isinstance(failed, Answers)
        assert "10.json" in failed.forgiven
        waiting = asyncio.create_task(ask(chain, mine))
        await asyncio.sleep(0)
        async with HookServer(sockets / "a") as again:
            assert isinstance(await waiting, Answers)
            assert len(again.asked) == 1
        await chain.close()

    go(body())
    assert records.events().count(Event.HOOK_BACK) == 1


def test_a_server_that_dies_while_it_is_asked_is_asked_again(sockets: Path, log: Log) -> None:
    async def body() -> None:
        chain = Chain(log)
        first = HookServer(sockets / "a")
        async with first:
            first.hang()
            waiting = asyncio.create_task(ask(chain, registration(sockets / "a")))
            await first.arrived.wait()
            await first.stop()
        async with HookServer(sockets / "a") as second:
            assert isinstance(await waiting, Answers)
            assert second.asked[0].sandbox.name == "p"
        await chain.close()

    go(body())


@pytest.mark.parametrize("answer", [b"", b"\xff\xff", hook.AdjustRequest(traceparent="x").SerializeToString()])
def test_an_answer_that_says_nothing_is_invalid(sockets: Path, log: Log, records: Records, answer: bytes) -> None:
    assert refused_by(sockets / "a", log, lambda a: a.answer_bytes(answer)).reason == Reason.HOOK_INVALID
    assert records.fields(Event.HOOK_INVALID)[0]["hook"] == "10.json"


def test_an_answer_has_a_bounded_size(sockets: Path, log: Log) -> None:
    large = adjustment("x" * MAX_ANSWER_BYTES)
    assert refused_by(sockets / "a", log, lambda a: a.adjust(large)).reason == Reason.HOOK_INVALID


def test_koordlets_protocol_is_rejected_by_name(sockets: Path, log: Log) -> None:
    refusal = refused_by(sockets / "a", log, service=KOORDLET)
    assert refusal.reason == Reason.HOOK_INVALID
    assert KOORDLET in refusal.message


@pytest.mark.parametrize("code", [grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.PERMISSION_DENIED])
def test_a_server_that_fails_is_unavailable_and_not_asked_twice(sockets: Path, log: Log, code: grpc.StatusCode) -> None:
    async def body() -> None:
        chain = Chain(log)
        async with HookServer(sockets / "a") as a:
            a.fail(code)
            refusal = await ask(chain, registration(sockets / "a"))
            assert isinstance(refusal, CallRefusal)
            assert refusal.reason == Reason.HOOK_UNAVAILABLE
            assert code.name in refusal.message
            assert len(a.asked) == 1
            await chain.close()

    go(body())


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED])
def test_a_server_that_goes_away_while_it_is_asked_is_asked_again(sockets: Path, log: Log, code: grpc.StatusCode) -> None:
    """A server that stops ends its calls with one of these two codes; its gRPC library decides which."""

    async def body() -> None:
        chain = Chain(log)
        async with HookServer(sockets / "a") as a:
            a.fail(code)
            asking = asyncio.create_task(ask(chain, registration(sockets / "a")))
            await a.arrived.wait()
            a.adjust(adjustment("A"))
            answers = await asking
            assert isinstance(answers, Answers)
            assert len(a.asked) > 1
            await chain.close()

    go(body())


def refused_socket(path: Path, log: Log) -> str:
    async def body() -> Answers | CallRefusal:
        chain = Chain(log)
        result = await ask(chain, registration(path))
        await chain.close()
        return result

    refusal = go(body())
    assert isinstance(refusal, CallRefusal)
    return refusal.reason


def test_a_file_that_is_no_socket_is_refused(sockets: Path, log: Log) -> None:
    (sockets / "a").write_text("")
    assert refused_socket(sockets / "a", log) == Reason.HOOK_INVALID


def test_a_link_to_a_socket_is_refused(sockets: Path, log: Log) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(sockets / "real"))
        (sockets / "a").symlink_to(sockets / "real")
        assert refused_socket(sockets / "a", log) == Reason.HOOK_INVALID


def test_a_folder_that_others_can_write_is_refused(sockets: Path, log: Log) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(sockets / "a"))
        sockets.chmod(0o777)
        assert refused_socket(sockets / "a", log) == Reason.HOOK_INVALID


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a socket to another user")
def test_another_users_socket_is_refused(sockets: Path, log: Log) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(sockets / "a"))
        os.chown(sockets / "a", 65534, 65534)
        assert refused_socket(sockets / "a", log) == Reason.HOOK_INVALID


def observation(pod: str) -> hook.ObserveRequest:
    return hook.ObserveRequest(stage=CREATE.name, sandbox=hook.PodSandbox(name=pod))


async def told(server: HookServer, count: int) -> list[str]:
    while len(server.observed) < count:
        server.arrived.clear()
        await server.arrived.wait()
    return [request.sandbox.name for request in server.observed]


def test_observations_arrive_in_order(sockets: Path, log: Log) -> None:
    async def body() -> None:
        chain = Chain(log)
        async with HookServer(sockets / "a") as a:
            for i in range(20):
                chain.observe(registration(sockets / "a"), CREATE, observation(str(i)))
            assert await told(a, 20) == [str(i) for i in range(20)]
            chain.observe(registration(sockets / "a"), CREATE, observation("later"))
            assert (await told(a, 21))[-1] == "later"
            await chain.close()

    go(body())


def test_a_full_queue_drops_the_oldest_and_says_it_once(sockets: Path, log: Log, records: Records) -> None:
    async def body() -> None:
        chain = Chain(log)
        mine = registration(sockets / "a")
        async with HookServer(sockets / "a") as a:
            a.hang()
            chain.observe(mine, CREATE, observation("first"))
            await told(a, 1)
            for i in range(MAX_QUEUED + 3):
                chain.observe(mine, CREATE, observation(str(i)))
            a.release()
            assert (await told(a, MAX_QUEUED + 1))[:3] == ["first", "3", "4"]
            await chain.close()

    go(body())
    assert records.events().count(Event.HOOK_FAILED) == 1


def test_closing_drops_what_waits_and_leaves_no_task(sockets: Path, log: Log) -> None:
    async def body() -> None:
        chain = Chain(log)
        async with HookServer(sockets / "a") as a:
            a.hang()
            for i in range(3):
                chain.observe(registration(sockets / "a"), CREATE, observation(str(i)))
            await told(a, 1)
            await chain.close()
            await chain.close()
            assert len(a.observed) == 1

    go(body())


def test_an_endpoint_that_is_no_longer_registered_is_let_go(sockets: Path, log: Log) -> None:
    async def body() -> None:
        chain = Chain(log)
        async with HookServer(sockets / "a") as a:
            a.hang()
            waiting = asyncio.create_task(ask(chain, registration(sockets / "a")))
            await a.arrived.wait()
            chain.use(())
            a.release()
            assert isinstance(await waiting, Answers)
            await chain.close()

    go(body())


def test_closing_the_chain_ends_a_question_with_a_refusal_not_a_cancellation(sockets: Path, log: Log) -> None:
    async def body() -> None:
        chain = Chain(log)
        async with HookServer(sockets / "a") as a:
            a.hang()
            waiting = asyncio.create_task(ask(chain, registration(sockets / "a")))
            await a.arrived.wait()
            await chain.close()
            refusal = await waiting
            assert isinstance(refusal, CallRefusal)
            assert refusal.reason == Reason.HOOK_UNAVAILABLE

    go(body())


def test_a_caller_that_gives_up_cancels_the_question(sockets: Path, log: Log) -> None:
    async def body() -> None:
        chain = Chain(log)
        async with HookServer(sockets / "a") as a:
            a.hang()
            waiting = asyncio.create_task(ask(chain, registration(sockets / "a")))
            await a.arrived.wait()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await chain.close()

    go(body())


def test_servers_are_probed_when_they_are_registered_and_forgotten_with_their_registration(sockets: Path, log: Log) -> None:
    async def body() -> None:
        chain = Chain(log)
        probing = asyncio.create_task(chain.keep_probing())
        async with HookServer(sockets / "a"):
            for path, name in ((sockets / "a", "10.json"), (sockets / "b", "20.json")):
                chain.use((registration(path, name),))
                assert chain.silences() == {name: "not probed yet"}
                while chain.silences() == {name: "not probed yet"}:  # noqa: ASYNC110  a few turns of the loop
                    await asyncio.sleep(0)
                assert chain.silences() == {
                    name: "" if name == "10.json" else f"cannot connect to {path}: No such file or directory"
                }
        probing.cancel()
        await asyncio.gather(probing, return_exceptions=True)
        await chain.close()

    go(body())

"""The guard over a real socket, with a scripted runtime; and the command that runs it."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from hooks.frontends.nri.conversation import NriCallError
from hooks.frontends.nri.guard import GuardRules
from hooks.frontends.nri.guard_plugin import GuardLock, GuardPlugin, find_guard
from hooks.frontends.nri.link import NriLink
from hooks.main import main
from lading.http2.messages import GrpcStatus
from lading.log import Log
from protos.nri.v1alpha1 import nri_pb2 as nri
from tests.fakes.nri_runtime import Connected, NriRuntime

RULES = GuardRules(prefixes=("lading.dev/",), hidden={"VISIBLE": "void"})
GUARDED = {"lading.dev/gpus": "0"}


@pytest.fixture
def guarding(sockets: Path, log: Log) -> Callable[[Callable[[Connected], Awaitable[None]]], None]:
    async def whole(act: Callable[[Connected], Awaitable[None]]) -> None:
        async with asyncio.timeout(20), NriRuntime(sockets / "nri.sock") as runtime:
            link = NriLink(socket=sockets / "nri.sock", plugin=GuardPlugin(rules=RULES), log=log)
            task = asyncio.create_task(link.keep_connected())
            await act(await runtime.plugin())
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    return lambda act: asyncio.run(whole(act))


Guarding = Callable[[Callable[[Connected], Awaitable[None]]], None]


def request(of_pod: dict[str, str], of_container: dict[str, str], *env: str) -> nri.ContainerRequest:
    container = nri.Container(name="train", annotations=of_container, env=env)
    return nri.ContainerRequest(pod=nri.PodSandbox(id="s", annotations=of_pod), container=container)


async def create(plugin: Connected, what: nri.ContainerRequest) -> nri.ContainerAdjustment:
    return (await plugin.ask("CreateContainer", what, nri.CreateContainerResponse)).adjust


def test_it_is_asked_last_and_before_a_container_is_created_or_started(guarding: Guarding) -> None:
    async def act(plugin: Connected) -> None:
        assert await plugin.configure("1.7.24") == 0b101000
        assert (await plugin.registered).plugin_idx == "99"

    guarding(act)


def test_a_guarded_container_passes_only_with_an_answer(guarding: Guarding) -> None:
    async def act(plugin: Connected) -> None:
        await plugin.configure("1.7.24")
        assert await create(plugin, request(GUARDED, {"lading.dev/grant": ""})) == nri.ContainerAdjustment()
        with pytest.raises(NriCallError, match="lading: ungranted: ") as error:
            await create(plugin, request(GUARDED, {}))
        assert error.value.status == GrpcStatus.UNAVAILABLE

    guarding(act)


@pytest.mark.parametrize("by_method", [False, True], ids=["StateChange", "own method"])
def test_a_container_that_was_created_without_an_answer_is_not_started(guarding: Guarding, by_method: bool) -> None:
    async def start(plugin: Connected, what: nri.ContainerRequest) -> None:
        if by_method:
            await plugin.ask("StartContainer", what, nri.Empty)
        else:
            event = nri.StateChangeEvent(event=nri.START_CONTAINER, pod=what.pod, container=what.container)
            await plugin.ask("StateChange", event, nri.Empty)

    async def act(plugin: Connected) -> None:
        await plugin.configure("2.1.9")
        await start(plugin, request(GUARDED, {"lading.dev/grant": ""}))
        await start(plugin, request({}, {}))
        with pytest.raises(NriCallError, match="lading: ungranted: "):
            await start(plugin, request(GUARDED, {}))

    guarding(act)


def test_a_plain_container_passes_and_sees_no_cards(guarding: Guarding) -> None:
    async def act(plugin: Connected) -> None:
        await plugin.configure("2.1.9")
        assert await create(plugin, request({}, {}, "A=1")) == nri.ContainerAdjustment()
        adjusted = await create(plugin, request({}, {}, "VISIBLE=all"))
        assert [(env.key, env.value) for env in adjusted.env] == [("VISIBLE", "void")]

    guarding(act)


def test_it_is_seen_to_guard_only_while_the_runtime_asks_it(sockets: Path, log: Log) -> None:
    async def act() -> None:
        lock = GuardLock(sockets / "guard.lock")
        changes: asyncio.Queue[bool] = asyncio.Queue()

        def changed(guards: bool) -> None:
            lock.show(guards)
            changes.put_nowait(guards)

        async with NriRuntime(sockets / "nri.sock") as runtime:
            link = NriLink(socket=sockets / "nri.sock", plugin=GuardPlugin(rules=RULES), log=log, changed=changed)
            task = asyncio.create_task(link.keep_connected())
            plugin = await runtime.registered()
            assert await changes.get()
            assert find_guard(sockets / "guard.lock") == ""
            plugin.drop()
            assert not await changes.get()
            assert find_guard(sockets / "guard.lock") != ""
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        lock.close()

    asyncio.run(asyncio.wait_for(act(), 20))


def test_there_is_nothing_to_guard_where_the_proxy_is_the_way_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "hooks.toml"
    config.write_text('front_end = "cri-hook"\n')
    with pytest.raises(SystemExit) as end:
        main(["nri-guard", "--config", str(config)])
    assert end.value.code == 2
    assert "front_end = cri-hook" in capsys.readouterr().err

"""Test the plugin over a real socket, with a scripted runtime on one side and a scripted node on the other."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hooks.frontends.nri.conversation import NriCallError
from hooks.frontends.nri.front_end import LadingPlugin, NriFrontEnd
from hooks.frontends.nri.link import BUDGET_S, NriLink
from hooks.frontends.nri.sieve import MAX_KEPT
from hooks.frontends.nri.wire import render_pieces
from hooks.model.assignment import Refusal
from hooks.model.container import Adjustment, Answer, Device, EnvVar
from lading.http2.messages import GrpcStatus
from lading.log import Event, Log
from lading.reasons import Reason
from lading.vocabulary import SandboxId
from protos.nri.v1alpha1 import nri_pb2 as nri
from tests.coroutines import until
from tests.fakes.node_port import ScriptedNode
from tests.fakes.nri_runtime import Connected, NriRuntime
from tests.fakes.records import Records

GUARDED = {"lading.dev/gpus": "0"}
NULL = Path("/dev/null").stat()
BASE = 0b10000101111  # the sandbox runs, stops, is removed; a container is to be created, to be started; it is removed


@dataclass
class Rig:
    runtime: NriRuntime
    node: ScriptedNode
    front_end: NriFrontEnd
    log: Records
    netns: dict[SandboxId, str]
    calls: list[tuple[str, float]]
    ended: set[str]  # sandboxes that the runtime does not have any more


@pytest.fixture
async def rig(short_folder: Path, log: Log, records: Records) -> AsyncIterator[Rig]:
    node, netns, calls, ended = ScriptedNode(), dict[SandboxId, str](), list[tuple[str, float]](), set[str]()

    async def has_ended(sandbox: SandboxId) -> bool:
        return sandbox in ended

    async with NriRuntime(short_folder / "nri.sock") as runtime:
        plugin = LadingPlugin(node=node, netns=netns, log=log, has_ended=has_ended)
        link = NriLink(
            socket=short_folder / "nri.sock", plugin=plugin, log=log, answered=lambda method, took: calls.append((method, took))
        )
        front_end = NriFrontEnd(link=link, plugin=plugin, find_guard=lambda: "no guard")
        await front_end.start()
        try:
            yield Rig(runtime, node, front_end, records, netns, calls, ended)
        finally:
            node.may_end.set()
            await front_end.close()


def pod(**annotations: str) -> nri.PodSandbox:
    message = nri.PodSandbox(id="s", uid="u", name="p", namespace="ns", annotations=annotations)
    message.linux.namespaces.add(type="network", path="/run/netns/s")
    return message


def container(**annotations: str) -> nri.Container:
    return nri.Container(id="c", name="train", annotations=annotations, env=["A=1"])


async def create(plugin: Connected) -> nri.ContainerAdjustment:
    request = nri.ContainerRequest(pod=pod(), container=container())
    return (await plugin.ask("CreateContainer", request, nri.CreateContainerResponse)).adjust


async def refused(plugin: Connected) -> NriCallError:
    with pytest.raises(NriCallError) as error:
        await create(plugin)
    return error.value


async def change(plugin: Connected, event: nri.Event) -> None:
    """Call as a runtime does before NRI 0.12."""
    await plugin.ask("StateChange", nri.StateChangeEvent(event=event, pod=pod()), nri.Empty)


# ---- registration


async def test_the_plugin_registers_and_subscribes_to_the_events_that_the_node_needs(rig: Rig) -> None:
    plugin = await rig.runtime.plugin()
    assert await plugin.configure("2.1.9") == BASE
    registered = await plugin.registered
    assert (registered.plugin_name, registered.plugin_idx) == ("lading", "50")
    await until(lambda: not rig.front_end.link.problem)
    assert Event.NRI_CONNECTED in rig.log.events()
    assert rig.front_end.conditions() == {"nri": "", "nri-guard": "no guard"}


@pytest.mark.parametrize(("version", "more"), [("1.7.24", 0), ("2.1.9", 0), ("2.3.4", 1 << 13)])
async def test_the_plugin_subscribes_to_no_event_that_the_runtime_does_not_know(version: str, more: int, rig: Rig) -> None:
    """Check the subscription: a runtime rejects a plugin with an unknown event."""
    assert await (await rig.runtime.plugin()).configure(version) == BASE | more


async def test_a_list_in_parts_is_taken_whole_and_compared_once(rig: Rig) -> None:
    await (await rig.runtime.plugin()).configure("2.1.9", pod(), parts=3)
    assert rig.netns == {"s": "/run/netns/s"}
    assert rig.node.asked == [("compare",)]


async def test_a_list_of_large_pods_in_one_message_is_taken(rig: Rig) -> None:
    """Check a list as containerd 1.7 sends it, which does not split it; a pod's annotations may have 256 KiB."""
    pods = [pod(large="x" * (250 << 10)) for _ in range(64)]
    for number, one in enumerate(pods):
        one.id = str(number)
    plugin = await rig.runtime.plugin()
    await plugin.configure("1.7.24", *pods)
    assert len(rig.netns) == len(pods)
    assert not plugin.closed.is_set()


async def test_a_plugin_that_answers_too_late_to_the_list_connects_again(rig: Rig) -> None:
    """Check that a plugin connects again if its answer to the list of pods was late: containerd then keeps the connection open,
    and does not call the plugin."""
    plugin = await rig.runtime.plugin()
    await plugin.configure("1.7.24", parts=0)
    late = nri.SynchronizeRequest(pods=[pod()])
    await plugin.ask("Synchronize", late, nri.SynchronizeResponse, timeout_s=0.2, pause_s=0.2)
    await plugin.closed.wait()
    assert Event.NRI_CONNECTED not in rig.log.events()
    assert "plugin_request_timeout" in rig.front_end.link.problem
    again = await rig.runtime.plugin()
    await again.configure("1.7.24", parts=0)
    await again.ask("Synchronize", late, nri.SynchronizeResponse, timeout_s=20, pause_s=0.2)
    await until(lambda: not rig.front_end.link.problem)


async def test_a_plugin_that_is_always_late_waits_longer_each_time_and_logs_it_once(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a node that is too slow does not send its list of pods for ever, five times a second."""
    monkeypatch.setattr("hooks.frontends.nri.link._RETRY_S", 0.02)
    monkeypatch.setattr("hooks.frontends.nri.link._LONGEST_RETRY_S", 0.6)
    loop, late, waits = asyncio.get_running_loop(), nri.SynchronizeRequest(pods=[pod()]), list[float]()
    plugin = await rig.runtime.plugin()
    for pause_s in (0.05, 0.06, 0.07, 0.08, 0.09):
        await plugin.configure("1.7.24", parts=0)
        await plugin.ask("Synchronize", late, nri.SynchronizeResponse, timeout_s=0.05, pause_s=pause_s)
        await plugin.closed.wait()
        closed = loop.time()
        plugin = await rig.runtime.plugin()
        waits.append(loop.time() - closed)
    assert waits[2] > 0.12  # 0.04, 0.08, 0.16, 0.32, 0.6
    assert waits[3] > 0.25
    assert waits[4] > 0.5
    assert rig.log.events() == [Event.NRI_LOST]
    await plugin.configure("1.7.24", pod())
    await until(lambda: not rig.front_end.link.problem)
    dropped = loop.time()
    plugin.drop()
    await rig.runtime.plugin()
    assert loop.time() - dropped < 0.5  # a runtime that called the plugin is found again at once


@pytest.fixture
def short_wait_for_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hooks.frontends.nri.link._SPEAKS_S", 0.1)


@pytest.mark.usefixtures("short_wait_for_an_answer")
async def test_a_runtime_that_accepted_the_plugin_may_send_its_list_later(rig: Rig) -> None:
    plugin = await rig.runtime.plugin()
    await plugin.registered
    await asyncio.sleep(0.3)
    await plugin.configure("1.7.24", pod())
    await until(lambda: not rig.front_end.link.problem)


async def test_a_call_that_is_too_large_is_refused_and_the_plugin_is_asked_on(rig: Rig) -> None:
    """Check that the connection stays open for the other containers."""
    plugin = await rig.runtime.registered()
    request = nri.ContainerRequest(pod=pod(), container=nri.Container(env=["A=" + "x" * MAX_KEPT]))
    with pytest.raises(NriCallError) as error:
        await plugin.ask("CreateContainer", request, nri.CreateContainerResponse)
    assert error.value.status == GrpcStatus.RESOURCE_EXHAUSTED
    await create(plugin)


async def test_a_runtime_that_is_restarted_is_found_again(rig: Rig) -> None:
    plugin = await rig.runtime.registered()
    await until(lambda: not rig.front_end.link.problem)
    plugin.drop()
    await until(lambda: bool(rig.front_end.link.problem))
    assert rig.front_end.conditions()["nri"] == "the runtime closed the connection"
    await rig.runtime.registered()
    await until(lambda: not rig.front_end.link.problem)
    assert rig.node.asked == [("compare",), ("compare",)]
    assert rig.log.events() == [Event.NRI_CONNECTED, Event.NRI_LOST, Event.NRI_CONNECTED]


async def test_a_runtime_that_refuses_the_plugin_is_asked_again_and_the_reason_is_shown(rig: Rig) -> None:
    rig.runtime.refuse_registration = "no plugins here"
    await rig.runtime.plugin()
    await until(lambda: "no plugins here" in rig.front_end.link.problem)
    rig.runtime.refuse_registration = ""
    await rig.runtime.registered()


async def test_a_connection_with_bytes_that_are_no_nri_is_closed(rig: Rig) -> None:
    plugin = await rig.runtime.registered()
    plugin.send(render_pieces(9, b"x"))
    await plugin.closed.wait()
    await rig.runtime.registered()
    assert "connection 9" in rig.log.text()


async def test_an_unknown_method_is_unimplemented(rig: Rig) -> None:
    """Check the code by which a runtime falls back to StateChange."""
    plugin = await rig.runtime.registered()
    with pytest.raises(NriCallError) as error:
        await plugin.ask("PostStartContainer", nri.ContainerRequest(), nri.Empty)
    assert error.value.status == GrpcStatus.UNIMPLEMENTED
    await plugin.ask("Shutdown", nri.Empty(), nri.Empty)
    assert [method for method, _ in rig.calls[-2:]] == ["other", "Shutdown"]


# ---- containers


async def test_a_container_gets_the_nodes_adjustment(rig: Rig) -> None:
    plugin = await rig.runtime.registered()
    rig.node.answer = Answer(adjustment=Adjustment(env=(EnvVar("X", "1"),), annotations={"lading.dev/grant": "g"}))
    adjustment = await create(plugin)
    assert [(env.key, env.value) for env in adjustment.env] == [("X", "1")]
    assert dict(adjustment.annotations) == {"lading.dev/grant": "g"}
    assert rig.node.asked[-1] == ("adjust", "s")
    assert rig.node.sandbox.uid == "u"
    assert rig.node.container.env == (EnvVar("A", "1"),)


async def test_a_device_gets_the_numbers_that_it_has_on_the_host(rig: Rig) -> None:
    plugin = await rig.runtime.registered()
    rig.node.answer = Answer(adjustment=Adjustment(devices=(Device("/dev/x", "/dev/null", "rw"),)))
    (device,) = (await create(plugin)).linux.devices
    result = NULL.st_rdev
    assert (device.path, device.major, device.minor) == ("/dev/x", os.major(result), os.minor(result))


@pytest.mark.parametrize("path", ["/dev/absent", "/dev/stdin", "/etc/passwd"])
async def test_a_container_is_refused_if_a_path_is_no_device_node_any_more(path: str, rig: Rig) -> None:
    plugin = await rig.runtime.registered()
    rig.node.answer = Answer(adjustment=Adjustment(devices=(Device("/dev/x", path, "rw"),)))
    error = await refused(plugin)
    assert error.message.startswith(f"lading: {Reason.DEVICE_NODE_INVALID}: cannot give {path}")


async def test_a_refusal_is_an_error_with_its_reason(rig: Rig) -> None:
    plugin = await rig.runtime.registered()
    rig.node.answer = Refusal(reason=Reason.DEVICE_HELD, message="it is held")
    error = await refused(plugin)
    assert (error.status, error.message) == (GrpcStatus.FAILED_PRECONDITION, "lading: device-held: it is held")


@pytest.mark.parametrize("prepares", [False, True])
async def test_an_internal_error_refuses_the_container_and_quotes_nothing(prepares: bool, rig: Rig) -> None:
    plugin = await rig.runtime.registered()
    rig.node.answer, rig.node.prepares = ValueError("secret"), prepares
    asked = asyncio.create_task(refused(plugin))
    await until(lambda: ("adjust", "s") in rig.node.asked)
    rig.node.may_end.set()
    assert (await asked).status in {GrpcStatus.INTERNAL, GrpcStatus.UNAVAILABLE}
    rig.node.answer, rig.node.prepares = Answer(adjustment=Adjustment()), False
    await create(plugin)
    assert "secret" not in rig.log.text()
    assert "ValueError at" in rig.log.text()


async def test_a_call_waits_for_preparation_only_within_its_budget(rig: Rig) -> None:
    """Check that the preparation continues, so that the retry finds it done."""
    plugin = await rig.runtime.registered()
    rig.node.prepares = True
    error = await refused(plugin)
    assert error.status == GrpcStatus.UNAVAILABLE
    assert error.message.startswith(f"lading: {Reason.NOT_PREPARED}: ")
    assert ("refused", "s", "train", Reason.NOT_PREPARED) in rig.node.asked
    rig.node.may_end.set()
    await until(lambda: ("adjusted",) in rig.node.asked)
    await create(plugin)
    (slow, _) = [took for method, took in rig.calls if method == "CreateContainer"]
    assert slow >= BUDGET_S


async def test_preparation_that_is_done_within_the_budget_is_waited_for(rig: Rig) -> None:
    plugin = await rig.runtime.registered()
    rig.node.prepares = True
    rig.node.answer = Answer(adjustment=Adjustment(env=(EnvVar("X"),)))
    asked = asyncio.create_task(create(plugin))
    await until(lambda: ("adjust", "s") in rig.node.asked)
    rig.node.may_end.set()
    assert [env.key for env in (await asked).env] == ["X"]


async def test_preparation_goes_on_when_the_runtime_disconnects(rig: Rig) -> None:
    plugin = await rig.runtime.registered()
    rig.node.prepares = True
    await refused(plugin)
    plugin.drop()
    await rig.runtime.registered()
    rig.node.may_end.set()
    await until(lambda: ("adjusted",) in rig.node.asked)


# ---- sandboxes


async def test_a_sandbox_is_never_refused_and_its_preparation_is_not_waited_for(rig: Rig) -> None:
    plugin = await rig.runtime.registered()
    rig.node.prepares = True
    await change(plugin, nri.RUN_POD_SANDBOX)
    assert rig.netns == {"s": "/run/netns/s"}
    assert rig.node.asked[-1] == ("created", "s")
    rig.node.may_end.set()
    await until(lambda: rig.node.asked[-1] == ("prepared",))


@pytest.mark.parametrize("by_method", [False, True], ids=["StateChange", "own method"])
async def test_the_node_is_notified_of_each_step_of_a_sandbox(by_method: bool, rig: Rig) -> None:
    plugin = await rig.runtime.registered()
    for name, event in (
        ("RunPodSandbox", nri.RUN_POD_SANDBOX),
        ("StopPodSandbox", nri.STOP_POD_SANDBOX),
        ("RemovePodSandbox", nri.REMOVE_POD_SANDBOX),
    ):
        if by_method:
            await plugin.ask(name, nri.PodSandboxRequest(pod=pod()), nri.Empty)
        else:
            await change(plugin, event)
    assert rig.node.asked[1:] == [("created", "s"), ("stopping", "s"), ("stopped", "s"), ("removed", "s")]
    assert rig.netns == {}


@pytest.mark.parametrize(
    ("of_pod", "ended"), [({}, set()), ({"lading.dev/gpus": "0"}, {"s"}), ({"lading.dev/gpus": "0"}, set())]
)
async def test_when_a_container_of_a_guarded_pod_is_removed_its_sandbox_is_checked(
    of_pod: dict[str, str], ended: set[str], rig: Rig
) -> None:
    """Check that the end of the sandbox is noticed: for one from before a restart of containerd there is no other event."""
    plugin = await rig.runtime.registered()
    rig.ended |= ended
    event = nri.StateChangeEvent(event=nri.REMOVE_CONTAINER, pod=pod(**of_pod), container=container())
    await plugin.ask("StateChange", event, nri.Empty)
    await rig.front_end.plugin.drain()
    assert rig.node.asked[1:] == ([("stopping", "s"), ("stopped", "s")] if ended else [])


async def test_a_stop_waits_for_devices_within_its_budget_and_they_come_back_later(rig: Rig) -> None:
    plugin = await rig.runtime.registered()
    rig.node.prepares = True
    await change(plugin, nri.STOP_POD_SANDBOX)
    assert rig.node.asked[-1] == ("stopping", "s")
    rig.node.may_end.set()
    await until(lambda: rig.node.asked[-2:] == [("undone",), ("stopped", "s")])


# ---- validation, where the runtime has it


@pytest.mark.parametrize(
    ("of_pod", "adjusted", "rejected"),
    [
        ({"lading.dev/gpus": "0"}, {"lading.dev/grant": "g"}, False),
        ({"lading.dev/gpus": "0"}, {}, True),
        ({}, {}, False),
        ({"lading.dev/grant": "g"}, {"lading.dev/grant": "g"}, True),
    ],
    ids=["granted", "lost while it was asked", "plain", "forged"],
)
async def test_a_validated_container_of_a_guarded_pod_needs_a_grant(
    of_pod: dict[str, str], adjusted: dict[str, str], rejected: bool, rig: Rig
) -> None:
    plugin = await rig.runtime.registered("2.3.4")
    request = nri.ValidateContainerAdjustmentRequest(
        pod=pod(**of_pod), container=container(), adjust=nri.ContainerAdjustment(annotations=adjusted)
    )
    result = await plugin.ask("ValidateContainerAdjustment", request, nri.ValidateContainerAdjustmentResponse)
    assert (result.reject, result.reason.startswith("lading: ")) == (rejected, rejected)


@pytest.mark.parametrize(
    ("of_pod", "of_container", "words"),
    [
        ({}, {}, ""),
        ({"lading.dev/gpus": "0"}, {"lading.dev/grant": ""}, ""),
        ({"lading.dev/gpus": "0"}, {}, "lading: ungranted: "),
    ],
)
async def test_a_container_that_was_created_without_an_answer_is_not_started(
    of_pod: dict[str, str], of_container: dict[str, str], words: str, rig: Rig
) -> None:
    plugin = await rig.runtime.registered()
    event = nri.StateChangeEvent(event=nri.START_CONTAINER, pod=pod(**of_pod), container=container(**of_container))
    with pytest.raises(NriCallError, match=words) if words else contextlib.nullcontext():
        await plugin.ask("StateChange", event, nri.Empty)


async def test_the_front_end_answers_calls_under_way_before_it_ends(rig: Rig) -> None:
    plugin = await rig.runtime.registered()
    rig.node.prepares = True
    asked = asyncio.create_task(create(plugin))
    await until(lambda: ("adjust", "s") in rig.node.asked)
    closing = asyncio.create_task(rig.front_end.close())
    rig.node.may_end.set()
    await asked
    await closing
    await plugin.closed.wait()


# ---- no runtime


async def never(_: SandboxId) -> bool:
    return False


async def test_a_node_without_nri_reports_the_missing_socket(short_folder: Path, log: Log, records: Records) -> None:
    plugin = LadingPlugin(node=ScriptedNode(), netns={}, log=log, has_ended=never)
    link = NriLink(socket=short_folder / "absent.sock", plugin=plugin, log=log)
    front_end = NriFrontEnd(link=link, plugin=plugin, find_guard=lambda: "")
    assert front_end.conditions()["nri"] == "it has not connected yet"
    await front_end.start()
    await until(lambda: "absent.sock" in front_end.conditions()["nri"])
    await front_end.close()
    assert "No such file or directory" in records.text()

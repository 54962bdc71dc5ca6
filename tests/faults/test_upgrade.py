"""Upgrade and downgrade both daemons while a pod uses its devices: the pod is not affected.

A process in the container opens its card and its VF every 50 ms, from before the first restart until after the last restart.
The result of each attempt is in the container's log. Meanwhile kubelet creates and ends other pods whenever the proxy runs.

Between the two restarts of an upgrade the daemons have different versions. So each present daemon is also tested with a daemon
that uses the hook API as released, and as a later version may extend it.
"""

from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc
import pytest

from hooks.model.grant import Grant
from lading.reasons import Reason
from lading.vocabulary import MANUAL_GPUS, MANUAL_VFS
from simnode.cri import Container, CriError
from simnode.daemons import Daemon
from tests.fakes.raw_server import Call
from tests.faults.conftest import StartLading, StartOnContainerd
from tests.faults.rig import GUARDED, ScriptedHooks, proxy_in, register, running
from tests.golden.hook_schemas import LATER_FIELD, RELEASED, Schema, later, released
from tests.hostile.runtime import InMemoryRuntime
from tests.node.site import Site, eventually, refusal_of

OTHER_VERSIONS: Final = [
    *(pytest.param(released(version), id=version) for version in RELEASED),
    pytest.param(later(), id="later"),
]

# `try-open` prints an errno for each path: 6 (ENXIO) and 19 (ENODEV) are what a granted device without a driver says.
_LOOP: Final = "while true; do try-open {paths} | tr '\\n' ' '; echo; usleep 50000; done"
GRANTED: Final = {"0", "6", "19"}
COMPARED_S: Final = 90.0  # a comparison with the runtime's lists comes every 60 s


def replaced(daemon: Daemon) -> None:
    """Upgrade as a package manager does: the new daemon starts when the old one has ended."""
    daemon.restart()


def crashed(daemon: Daemon) -> None:
    daemon.kill()
    daemon.start()


def granted(site: Site) -> list[Grant]:
    """Return the grants without the containers that the last comparison with the runtime's lists found."""
    return [replace(grant, containers=()) for grant in site.grants()]


def opened(container: Container) -> Counter[tuple[str, ...]]:
    return Counter(tuple(line.split()) for line in container.logs().splitlines())


@pytest.mark.node
@pytest.mark.long
def test_a_pod_uses_its_devices_throughout_an_upgrade_and_back(start_on_containerd: StartOnContainerd) -> None:
    site = start_on_containerd()
    lading = site.lading
    pod = site.kubelet.run_pod("throughout", annotations={MANUAL_GPUS: "0", MANUAL_VFS: "1"})
    paths = (site.card(0), "/dev/infiniband/uverbs*")
    container = pod.run_container(command=["sh", "-c", _LOOP.format(paths=" ".join(paths))])

    def used(before: int) -> None:
        assert sum(opened(container).values()) >= before + 10

    def others_are_over() -> None:
        # A proxy that is killed may not have told lading-hooks of the removal: then the next comparison with the runtime does.
        assert granted(site) == held

    eventually(lambda: used(0))
    held = granted(site)
    there = ((replaced, lading.hooks), (replaced, lading.proxy))
    back = ((crashed, lading.proxy), (crashed, lading.hooks))
    for end, daemon in (*there, *back):
        before = sum(opened(container).values())
        end(daemon)
        site.reconnect()
        eventually(partial(used, before))
        eventually(others_are_over, within_s=COMPARED_S)
        assert site.see(container).gpus == (site.gpu(0),)
        eventually(lambda: created_and_removed(site))
    outcomes = opened(container)
    print(f"measured: {sum(outcomes.values())} rounds of opening {len(next(iter(outcomes)))} devices: {dict(outcomes)}")
    assert len(outcomes) == 1
    (outcome,) = outcomes
    assert len(outcome) == len(paths)
    assert set(outcome) <= GRANTED


def created_and_removed(site: Site) -> None:
    """Create another pod meanwhile, which gets a different card, and remove it."""
    with site.kubelet.pod("meanwhile", annotations={MANUAL_GPUS: "1"}) as pod:
        assert site.see(pod.run_container()).gpus == (site.gpu(1),)


# ---- the two daemons are of two versions


def extended(message: Any) -> Any:
    """Return the message with a field of a later version."""
    if LATER_FIELD in message.DESCRIPTOR.fields_by_name:
        setattr(message, LATER_FIELD, "more")
    return message


@pytest.mark.parametrize("schema", OTHER_VERSIONS)
def test_hooks_of_today_serve_a_proxy_of_another_version(start_lading: StartLading, schema: Schema) -> None:
    lading = start_lading()
    stages = schema.file.enum_type[0].value
    sandbox = extended(schema.message("PodSandbox")(id="s1", name="pod", namespace="default", uid="u1", annotations=GUARDED))
    container = extended(schema.message("Container")(name="main"))
    with grpc.insecure_channel(f"unix:{lading.hooks.socket}") as channel:

        def ask(method: str, **fields: object) -> bytes:
            message = schema.message("AdjustRequest" if method == "Adjust" else "ObserveRequest")
            request = extended(message(sandbox=sandbox, container=container, **fields)).SerializeToString()
            answer: bytes = channel.unary_unary(f"/lading.hook.v1.Hook/{method}", bytes, bytes)(request, timeout=10)
            return answer

        def granted() -> Any:
            answer = schema.message("AdjustResponse").FromString(ask("Adjust", stage=4, deadline_ms=2000))
            assert answer.WhichOneof("result") == "adjustment", answer  # at first nothing is reconciled
            return answer.adjustment

        adjustment = eventually(granted)
        assert "/dev/nvidiactl" in {device.container_path for device in adjustment.devices}
        for stage in stages:  # also those that only the other version has
            ask("Observe", stage=stage.number, grpc_status=0)
            assert schema.message("AdjustResponse").FromString(ask("Adjust", stage=stage.number)).WhichOneof("result")


@pytest.mark.parametrize("schema", OTHER_VERSIONS)
def test_a_proxy_of_today_asks_hooks_of_another_version(runtime: InMemoryRuntime, short_folder: Path, schema: Schema) -> None:
    asked: list[Any] = []

    def answer(call: Call) -> bytes:
        asked.append(schema.message("AdjustRequest").FromString(call.request))
        env = extended(schema.message("EnvUpsert")(name=ScriptedHooks.MARK, value="1"))
        adjustment = extended(schema.message("Adjustment")(env=[env]))
        reply: bytes = schema.message("AdjustResponse")(adjustment=adjustment).SerializeToString()
        return reply

    proxy = proxy_in(short_folder, runtime.path)
    with ScriptedHooks(short_folder / "hooks.sock") as hooks:
        hooks.says = answer
        register(short_folder, hooks.path, runtime_hooks=["PreCreateContainer"])
        with running(proxy), runtime.client(via=proxy.socket) as kubelet:
            pod = kubelet.run_pod("pod", annotations=GUARDED)
            assert hooks.marked(runtime.created[pod.create_container().id])
            assert [(request.stage, request.sandbox.uid) for request in asked] == [(4, pod.spec.uid)]
            # An answer of a kind that only a later version knows is none: it fails closed.
            hooks.says = lambda _: later().message("AdjustResponse")(another_answer="what is this").SerializeToString()
            with pytest.raises(CriError) as refused:
                pod.create_container(attempt=1)
            assert refusal_of(refused.value).reason is Reason.HOOK_INVALID

"""Check that no exception about one object ends a task of central: other objects are handled, and this one is tried again.

Two ways to break an object. Each entry of the event loop raises for every object whose name has `poison` in it; and objects
have fields that no sane client would write. Whatever happens, all tasks of the leadership run on, and a good pod is bound.
"""

import asyncio
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from copy import deepcopy
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from central.api.decoded import Unreadable
from central.api.pod_groups import GANG_KINDS
from central.controllers import (
    admission_checks,
    events,
    evict,
    gangs,
    gpu_hours,
    informer,
    make_room,
    patience,
    quotas,
    requeue,
    share_bypass,
    statistics,
    take_back,
)
from central.controllers import device_health as health
from central.controllers.share_bypass import Bypassed
from central.daemon.leadership import Leadership
from central.decide.gangs import GangPlanner
from central.decide.scheduler import Scheduler
from central.request.model import Policy
from central.state import observed_pods
from central.state.quotas import Quotas
from lading.log import Event
from lading.vocabulary import GANG, GANG_MIN, RESOURCE_GANG_MEMBER
from tests.fakes.kube_objects import (
    Json,
    budget,
    budget_path,
    devices,
    devices_path,
    elastic_quota,
    grant,
    node,
    node_path,
    pod,
    pod_path,
    quota_path,
)
from tests.fakes.kueue import Kueue
from tests.fakes.led import Led, led, rare_scans
from tests.fakes.simulated_time import run_simulated

POISON = "poison"

# Each entry of the loop: where an object is handled.
ENTRIES: tuple[tuple[type, str], ...] = (
    (informer.PodFeed, "_record"),
    (informer.PodFeed, "removed"),
    (informer.PodFeed, "verify"),
    (informer.DevicesFeed, "changed"),
    (informer.NodeFeed, "changed"),
    (informer.NodeFeed, "_facts_of"),
    (informer.BudgetFeed, "changed"),
    (observed_pods.ObservedPods, "changed"),
    (gangs.GangFeed, "changed"),
    (gangs.GangFeed, "_end"),
    (gangs.GangObjectFeed, "changed"),
    (share_bypass.BypassFeed, "changed"),
    (gpu_hours.UseFeed, "changed"),
    (quotas.QuotaFeed, "_read"),
    (admission_checks.PlaceFeed, "changed"),
    (admission_checks.WorkloadFeed, "changed"),
    (admission_checks.NamedFeed, "changed"),
    (gangs.GangKeeper, "_follow"),
    (gangs.GangKeeper, "_plan"),
    (GangPlanner, "planning"),
    (make_room.RoomMaker, "_evict_for"),
    (make_room.RoomMaker, "_keep_room"),
    (requeue.Requeuer, "_touch_while_refused"),
    (Scheduler, "fits_on"),
    (Scheduler, "placement"),
    (evict.Evictor, "_plan_new"),
    (evict.Evictor, "_carry_out"),
    (evict.Evictor, "_end"),
    (patience.Patience, "_keep"),
    (health.Warner, "_find_changes_on"),
    (health.Warner, "_write_condition"),
    (share_bypass.BypassEnder, "_end"),
    (admission_checks.AdmissionChecks, "_answer"),
    (take_back.TakeBack, "_take_back"),
    (quotas.QuotaWriter, "_write"),
    (Quotas, "_read_pod"),
    (statistics.ClusterStatistics, "_count_node"),
    (gpu_hours.GpuHours, "_count"),
    (events.EventRecorder, "_send"),
    (Leadership, "_unassigned"),
)


class Injected(Exception):  # noqa: N818  as an error in central's code
    """Simulate an error in central's code for a poisoned object."""


@contextmanager
def injected(entries: Sequence[tuple[type, str]], raised: Counter[str]) -> Iterator[None]:
    """Have these entries raise for every object with a poisoned name."""

    def raising(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            # If an object could not be decoded or handled, only its name remains: no code reads more of the object.
            if POISON in repr(args[1:]) and not any(isinstance(one, Unreadable) for one in args):
                raised[name] += 1
                raise Injected(name)
            return original(*args, **options)

        return call

    with ExitStack() as stack:
        for owner, name in entries:
            stack.enter_context(patch.object(owner, name, raising(f"{owner.__name__}.{name}", getattr(owner, name))))
        yield


async def put_poison(one: Led, kueue: Kueue) -> None:
    """Put one object of each kind that central handles, with a poisoned name."""
    await one.server.put(node_path("n-poison"), node("n-poison"))
    text = devices("n-poison", 1, unhealthy="Xid 79", grants=[grant("uid-poison", "n-poison", 0)])
    await one.server.put(devices_path("n-poison"), text)
    await one.server.put(pod_path("poison"), pod("poison", {"lading.dev/gpu": "2"}, priority=10))
    await one.server.put(pod_path("poison-bound"), pod("poison-bound", node="n-poison", scheduler="default-scheduler"))
    await one.server.put(pod_path("poison-odd"), pod("poison-odd", {"lading.dev/gpu": "-1"}))
    gang = {GANG: "poison", GANG_MIN: "2"}
    for number in range(2):
        await one.server.put(pod_path(f"poison-{number}"), pod(f"poison-{number}", annotations=gang))
    lone = pod("poison-lone", {RESOURCE_GANG_MEMBER: "1"}, annotations={GANG: "poison-lone", GANG_MIN: "2"})
    await one.server.put(pod_path("poison-lone"), lone)
    await one.server.put(budget_path("poison"), budget("poison", {"app": "poison"}))
    await one.server.put(quota_path("poison"), elastic_quota("poison", {"lading.dev/gpu": "1"}, {"lading.dev/gpu": "2"}))
    await one.server.put(
        GANG_KINDS[0].resource.path("default", "poison"), {"metadata": {"name": "poison"}, "spec": {"minMember": 2}}
    )
    await kueue.install()
    await kueue.submit("poison", {"main": (1, 1)})


async def check_that_others_go_on(one: Led) -> None:
    """Add a node with a card, and check that a pod is placed there."""
    assert not [task for task in one.leadership.tasks if task.done()]
    assert one.leadership.ready
    await one.put_node("n2")
    await one.put_pod("good")
    await one.pause(3)
    assert one.filter("good", "n1", "n2")
    assert await one.schedule("good") == ""
    assert one.bound_to("good") in {"n1", "n2"}
    assert not [task for task in one.leadership.tasks if task.done()]


def live(story: Callable[[Led], Any], policy: Policy) -> None:
    async def whole() -> None:
        async with led(Path(folder), patience_s=1.0, bypassed=Bypassed.END, quota_delay_s=1.0, policy=policy) as one:
            await story(one)

    with tempfile.TemporaryDirectory() as folder:
        run_simulated(whole())


@pytest.mark.parametrize("listed", [True, pytest.param(False, marks=pytest.mark.long)], ids=["listed", "watched"])
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry[0].__name__}.{entry[1]}")
def test_an_exception_at_any_entry_is_about_one_object(entry: tuple[type, str], listed: bool) -> None:
    raised: Counter[str] = Counter()

    async def story(one: Led) -> None:
        with injected([entry], raised):
            if not listed:
                await put_poison(one, Kueue(one))
            else:
                await one.leadership.end()
                await put_poison(one, Kueue(one))
                await one.begin()
            for name in ("poison", "poison-0", "poison-1", "poison-lone"):
                with suppress(Injected):  # the extender answers 500
                    one.filter(name)
            await one.pause(5)
            await one.server.remove(pod_path("poison-bound"))
            await check_that_others_go_on(one)
            counts = one.leadership.faults.counts
            assert (counts.total() > 0) == (raised.total() > 0)
            logged = [fields for event, fields in one.records.seen if event is Event.HANDLING_FAILED]
            assert all("Injected" in fields["traceback"] for fields in logged)
            assert bool(logged) == (raised.total() > 0)
        if not listed:
            return  # how it ends does not depend on how it began, and minutes of simulated time are slow
        with rare_scans():
            await one.pause(130)
            before = counts.total()
            await one.pause(130)
        assert (counts.total(), one.leadership.faults.set_aside().total()) == (before, 0)

    live(story, Policy.FRAGMENTATION)


ODD: Any = st.sampled_from(
    [
        "", "x" * 300, -1, 2**62, 2**70, None, [], {}, [None], {"": None}, 1.5, "1e400", "9" * 5000, "-5", "NaN", "\u202e",
        True, ["a"] * 500, {"a": "b"}, "0x10", "1Ei", "2026-13-45T99:99:99Z", "0001-01-01T00:00:00Z",
    ]
)  # fmt: skip


def paths_of(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the places of all values inside, but for what identifies the object."""
    if at in {("metadata", "name"), ("metadata", "namespace")}:
        return []
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    result = [path for key, one in inner for path in paths_of(one, (*at, key))]
    return [*result, at] if at and at != ("metadata",) else result


def other_quota() -> Json:
    """Return a quota other than that of the good pod, because pods of an unreadable quota are refused."""
    made = elastic_quota("poison", {"lading.dev/gpu": "1"}, {"lading.dev/gpu": "2"})
    made["metadata"]["namespace"] = "other"
    return made


@st.composite
def broken(draw: st.DrawFn) -> tuple[str, Json]:
    """Draw an object of any kind with some invalid fields."""
    gang = {GANG: "poison", GANG_MIN: "2"}
    path, made = draw(
        st.sampled_from(
            [
                (node_path("poison"), node("poison", labels={"a": "b"}, taints=["a=b:NoSchedule"], allocatable={"cpu": "4"})),
                (devices_path("poison"), devices("poison", 2, 2, unhealthy="Xid", grants=[grant("uid-a", "poison", 0)])),
                (pod_path("poison"), pod("poison", annotations=gang, labels={"a": "b"}, requests={"cpu": "1"})),
                (pod_path("poison"), pod("poison", {RESOURCE_GANG_MEMBER: "1"}, annotations=gang, priority=3)),
                (pod_path("poison"), pod("poison", node="n9", annotations=gang, unschedulable=True, grace_s=3)),
                (budget_path("poison"), budget("poison", {"app": "a"}, 1)),
                (quota_path("poison", "other"), other_quota()),
                (GANG_KINDS[0].resource.path("default", "poison"), {"metadata": {"name": "poison"}, "spec": {"minMember": 2}}),
            ]
        )
    )
    made = deepcopy(made)
    for where in draw(st.lists(st.sampled_from(paths_of(made)), min_size=1, max_size=3, unique=True)):
        at: Any = made
        try:
            for key in where[:-1]:
                at = at[key]
            at[where[-1]] = deepcopy(draw(ODD))  # a later odd value may be put inside this one
        except (KeyError, IndexError, TypeError):
            continue  # another odd value is there already
    return path, made


@settings(max_examples=25, deadline=None, suppress_health_check=[*HealthCheck])
@given(
    st.lists(broken(), min_size=1, max_size=6),
    st.lists(st.sampled_from(ENTRIES), max_size=4, unique=True),
    st.sampled_from([*Policy]),
    st.booleans(),
)
def test_odd_objects_stop_nothing(
    objects: Sequence[tuple[str, Json]], entries: Sequence[tuple[type, str]], policy: Policy, listed: bool
) -> None:
    async def story(one: Led) -> None:
        with injected(entries, Counter()):
            if listed:
                await one.leadership.end()
            for path, made in objects:
                await one.server.put(path, made)
                await asyncio.sleep(0)
            if listed:
                await one.begin()
            await one.pause(5)
            await check_that_others_go_on(one)

    live(story, policy)

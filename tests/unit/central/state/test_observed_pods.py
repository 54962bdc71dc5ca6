"""Test which pod decides a call: that of the watch, in the version that was sent or a newer one."""

import asyncio
from collections.abc import Mapping

from central.api.cached_objects import Ident
from central.request.pod import Pod
from central.state.observed_pods import ObservedPods
from lading.vocabulary import PodUid
from tests.fakes.kube_objects import NAMESPACE, WHOLE, decoded, pod
from tests.fakes.simulated_time import run_simulated
from tests.unit.central.world import uid_of


def version(number: int, limits: Mapping[str, str] = WHOLE, *, node: str = "") -> Pod:
    return decoded(pod("a", limits, version=number, node=node))


def found(observed_pods: ObservedPods, sent: Pod) -> Pod | None:
    return run_simulated(observed_pods.find(sent))


def seen_pods(*settled: str) -> ObservedPods:
    return ObservedPods(lambda uid: uid in map(uid_of, settled))


def test_a_request_gets_the_pod_of_the_watch_and_nothing_of_its_own_copy() -> None:
    observed = seen_pods()
    observed.changed(version(5))
    answer = found(observed, version(5, {"lading.dev/gpu": "8"}))
    assert answer is not None
    assert answer.spec == version(5).spec


def test_a_pod_that_the_watch_does_not_show_is_none() -> None:
    assert found(seen_pods(), version(5)) is None


async def test_a_request_waits_for_the_version_that_it_names() -> None:
    observed = seen_pods()
    observed.changed(version(5))
    requested = asyncio.create_task(observed.find(version(7)))
    await asyncio.sleep(0)
    observed.changed(version(6))
    await asyncio.sleep(0)
    assert not requested.done()
    observed.changed(version(7, {"lading.dev/gpu": "2"}))
    assert await requested == version(7, {"lading.dev/gpu": "2"})


def test_a_version_that_never_comes_is_answered_with_what_is_there() -> None:
    observed = seen_pods()
    observed.changed(version(5))
    assert found(observed, version(10**9)) == version(5)


async def test_a_settled_pod_is_not_waited_for() -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert await seen_pods("a").find(version(5)) is None
    assert loop.time() == began


def test_a_pod_that_is_bound_or_deleted_waits_no_more() -> None:
    observed = seen_pods()
    observed.changed(version(5))
    observed.changed(version(6, node="n1"))
    assert len(observed) == 0
    observed.changed(version(7))
    observed.removed(Ident(NAMESPACE, "a", PodUid(uid_of("a"))), "8")
    assert len(observed) == 0


def test_a_list_that_lacks_a_pod_ends_it() -> None:
    observed = seen_pods()
    observed.changed(version(5))
    observed.replaced([], "9")
    assert len(observed) == 0

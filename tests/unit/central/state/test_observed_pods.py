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


def found(seen: ObservedPods, sent: Pod) -> Pod | None:
    return run_simulated(seen.find(sent))


def seen_pods(*settled: str) -> ObservedPods:
    return ObservedPods(lambda uid: uid in map(uid_of, settled))


def test_a_request_gets_the_pod_of_the_watch_and_nothing_of_its_own_copy() -> None:
    seen = seen_pods()
    seen.changed(version(5))
    answer = found(seen, version(5, {"lading.dev/gpu": "8"}))
    assert answer is not None
    assert answer.spec == version(5).spec


def test_a_pod_that_the_watch_does_not_show_is_none() -> None:
    assert found(seen_pods(), version(5)) is None


def test_a_request_waits_for_the_version_that_it_names() -> None:
    seen = seen_pods()
    seen.changed(version(5))

    async def story() -> None:
        requested = asyncio.create_task(seen.find(version(7)))
        await asyncio.sleep(0)
        seen.changed(version(6))
        await asyncio.sleep(0)
        assert not requested.done()
        seen.changed(version(7, {"lading.dev/gpu": "2"}))
        assert await requested == version(7, {"lading.dev/gpu": "2"})

    asyncio.run(story())


def test_a_version_that_never_comes_is_answered_with_what_is_there() -> None:
    seen = seen_pods()
    seen.changed(version(5))
    assert found(seen, version(10**9)) == version(5)


def test_a_settled_pod_is_not_waited_for() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await seen_pods("a").find(version(5)) is None
        assert loop.time() == began

    run_simulated(story())


def test_a_pod_that_is_bound_or_gone_waits_no_more() -> None:
    seen = seen_pods()
    seen.changed(version(5))
    seen.changed(version(6, node="n1"))
    assert len(seen) == 0
    seen.changed(version(7))
    seen.removed(Ident(NAMESPACE, "a", PodUid(uid_of("a"))), "8")
    assert len(seen) == 0


def test_a_list_that_lacks_a_pod_ends_it() -> None:
    seen = seen_pods()
    seen.changed(version(5))
    seen.replaced([], "9")
    assert len(seen) == 0

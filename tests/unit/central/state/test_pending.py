"""Test which pods wait: the newest version of each, the refused ones by their request, and their order."""

from central.request.model import DeviceRequest
from central.request.parse import parse_request
from central.state.pending import Pending, PendingPods, pending_of
from tests.fakes.kube_objects import decoded, pod, share


def pending(name: str, version: int = 1, **options: object) -> Pending:
    limits = options.pop("limits", {"lading.dev/gpu": "1"})
    shown = decoded(pod(name, limits, version=version, **options))  # type: ignore[arg-type]
    ask = parse_request(shown)
    assert isinstance(ask, DeviceRequest)
    return pending_of(shown, ask)


def names(pods: PendingPods, ask: DeviceRequest) -> list[str]:
    return [one.name for one in pods.refused_with(ask)]


def test_the_newer_version_counts_and_keeps_what_is_known_of_the_pod() -> None:
    pods = PendingPods()
    first = pods.add(pending("a", 2))
    pods.refused(first, 5.0)
    first.gen, first.requeued_in = 3, 4
    newer = pods.add(pending("a", 3))
    assert pods.get(first.uid) is newer
    assert (newer.gen, newer.refused_at, newer.requeued_in, newer.resource_version) == (3, 5.0, 4, "3")
    assert pods.add(pending("a", 2)) is newer
    assert names(pods, newer.request) == ["a"]


def test_a_pod_that_asks_for_something_else_is_refused_with_that() -> None:
    pods = PendingPods()
    first = pods.add(pending("a", 2))
    pods.refused(first, 5.0)
    other = pods.add(pending("a", 3, limits=share("1Gi")))
    assert (names(pods, first.request), names(pods, other.request)) == ([], ["a"])
    assert pods.refused_requests() == [other.request]


def test_first_the_important_then_the_old() -> None:
    pods = PendingPods()
    added = [
        pods.add(pending("a-young", created="2026-11-21T02:00:00Z")),
        pods.add(pending("z-old", created="2026-11-21T01:00:00Z")),
        pods.add(pending("high", created="2026-11-21T03:00:00Z", priority=5)),
    ]
    for one in added:
        pods.refused(one, 1.0)
    assert names(pods, added[0].request) == ["high", "z-old", "a-young"]


def test_a_pod_that_fits_or_is_removed_is_refused_no_more() -> None:
    pods = PendingPods()
    a, b = pods.add(pending("a")), pods.add(pending("b"))
    pods.refused(a, 1.0)
    pods.refused(b, 1.0)
    assert (pods.get_refused(a.uid), pods.get_refused(b.uid)) == (a, b)
    pods.fitted(a)
    pods.remove(b.uid)
    pods.remove(b.uid)
    assert (pods.get_refused(a.uid), pods.get_refused(b.uid)) == (None, None)
    assert (pods.refused_requests(), a.refused_at, [one.name for one in pods]) == ([], None, ["a"])


def test_preemption_policy_never() -> None:
    assert not pending("a", never=True).may_preempt
    assert pending("a").may_preempt

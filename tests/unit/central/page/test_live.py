"""Test the cluster as JSON: the whole, and the changes since a revision. Unchanged nodes are neither sent nor built again."""

import asyncio
from typing import Any

import msgspec
import pytest

from central.api.cached_objects import Ident
from central.controllers.gangs import GangFeed
from central.page import live as module
from central.page.live import EVERY_S, Live
from central.view.build import node_view, totals
from central.view.model import NodeView, Totals
from lading.vocabulary import ASSIGNMENT_SIGNATURE as SIGNATURE
from lading.vocabulary import GANG, GANG_MIN, GpuUuid
from tests.fakes.kube_objects import gpu_uuid
from tests.unit.central.page.shown import Shown, names, said
from tests.unit.central.world import uid_of


def as_sent(shown: Shown, name: str) -> Any:
    return msgspec.json.decode(msgspec.json.encode(node_view(shown.world.ledger, shown.reports.get(name), name)))


@pytest.fixture
def shown() -> Shown:
    return Shown()


def test_the_whole_is_every_nodes_view_and_their_totals(shown: Shown) -> None:
    for name in ("n1", "n2", "n3"):
        shown.world.node(name, 2, 4)
    shown.world.bind("a", "n2")
    answer = shown.whole()
    assert {node["name"]: node for node in answer["nodes"]} == {name: as_sent(shown, name) for name in ("n1", "n2", "n3")}
    views = [msgspec.convert(node, NodeView) for node in answer["nodes"]]
    assert msgspec.convert(answer["totals"], Totals) == totals(views)
    assert (answer["totals"]["gpus"], answer["totals"]["gpus_held"], answer["totals"]["nodes"]) == (6, 1, 3)


def test_an_empty_cluster_has_no_nodes() -> None:
    answer = Shown().whole()
    assert (answer["nodes"], answer["pending"], answer["totals"]["nodes"]) == ([], [], 0)


def test_changes_since_a_revision_have_the_changed_nodes_alone(shown: Shown) -> None:
    for name in ("n1", "n2"):
        shown.world.node(name, 1)
    revision = shown.whole()["revision"]
    assert shown.since(revision)["nodes"] == []
    assert shown.since(revision)["revision"] == revision
    shown.world.bind("a", "n2")
    answer = shown.since(revision)
    assert (names(answer), answer["after"], answer["gone"]) == ({"n2"}, revision, [])
    assert answer["totals"]["gpus_held"] == 1
    assert shown.since(answer["revision"])["nodes"] == []


def test_totals_follow_every_change(shown: Shown) -> None:
    shown.world.node("n1", 2, 2)
    shown.world.node("n2", 1)
    shown.whole()
    shown.world.bind("a", "n1")
    shown.world.readiness("n2", False)
    shown.whole()
    shown.world.deleted("a")
    answer = shown.whole()
    assert msgspec.convert(answer["totals"], Totals) == totals([msgspec.convert(node, NodeView) for node in answer["nodes"]])


def test_why_something_is_held_is_news_too(shown: Shown) -> None:
    shown.world.node("n1", 1)
    shown.world.show("a")
    shown.world.filter("a", "n1")
    (node,) = shown.whole()["nodes"]
    assert node["gpus"][0]["holders"][0]["claims"] == ["predicted"]
    revision = shown.live.revision
    shown.world.bind("a", "n1")  # the same card: no room is another by it
    (node,) = shown.since(revision)["nodes"]
    assert node["gpus"][0]["holders"][0]["claims"] == ["bound"]


def test_a_report_is_news_where_the_ledger_keeps_nothing_of_it(shown: Shown) -> None:
    shown.world.node("n1", 1)
    shown.world.node("n2", 1)
    revision = shown.whole()["revision"]
    shown.world.report("n1", 1, cordon="gpu-nobodys")
    (node,) = shown.since(revision)["nodes"]
    assert (node["name"], node["cordon"]) == ("n1", "gpu-nobodys")
    assert any("gpu-nobodys" in problem for problem in node["problems"])


def test_a_node_that_is_away_is_news(shown: Shown) -> None:
    shown.world.node("n1", 1)
    revision = shown.whole()["revision"]
    shown.world.readiness("n1", False)
    answer = shown.since(revision)
    assert [(node["name"], node["state"]) for node in answer["nodes"]] == [("n1", "unreachable")]
    assert answer["totals"]["nodes_not_ready"] == 1


def test_a_heartbeat_is_none(shown: Shown) -> None:
    shown.world.node("n1", 1)
    revision = shown.whole()["revision"]
    shown.world.report("n1", 1)
    shown.world.readiness("n1", True)
    assert shown.since(revision)["revision"] == revision


def test_a_node_that_is_deleted(shown: Shown) -> None:
    shown.world.node("n1", 1)
    shown.world.node("n2", 1)
    shown.world.bind("a", "n2")
    revision = shown.whole()["revision"]
    for name in ("n1", "n2"):
        shown.world.devices_feed.removed(Ident("", name, ""), str(shown.world.next_version()))
    answer = shown.since(revision)
    assert answer["gone"] == ["n1"]  # a pod still holds devices of the other node
    assert [(node["name"], node["state"]) for node in answer["nodes"]] == [("n2", "no-report")]
    assert msgspec.convert(answer["totals"], Totals).gpus == 0
    assert names(shown.whole()) == {"n2"}


@pytest.mark.parametrize(
    "revision",
    ["", "nonsense", "{name}.", "{name}.-1", "{name}.99", "another.0", "{name}.\u0660", "{name}." + "9" * 5000, "{name}.00"],
)
def test_an_unknown_revision_has_no_changes(shown: Shown, revision: str) -> None:
    shown.world.node("n1", 1)
    shown.whole()
    own = shown.live.revision.partition(".")[0]
    assert shown.live.since(revision.format(name=own)) is None
    assert shown.live.since(f"{own}.0") is not None


def test_another_term_has_other_revisions(shown: Shown) -> None:
    assert shown.live.revision != shown.make_live().revision


def test_the_number_of_scans_is_bounded(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    shown.world.node("n1", 1)
    shown.caught_up()
    observed: list[str] = []
    real = Live._view

    def view(self: Live, name: str) -> NodeView | None:
        observed.append(name)
        return real(self, name)

    monkeypatch.setattr(Live, "_view", view)
    shown.world.bind("a", "n1")
    shown.caught_up(after_s=EVERY_S / 2)
    assert observed == []
    shown.caught_up(after_s=EVERY_S)
    shown.caught_up(after_s=EVERY_S)
    assert observed == ["n1"]  # and never again without a reason


def test_a_change_during_a_scan_is_found_by_the_next_scan(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("n1", "n2"):
        shown.world.node(name, 1)

    class Interrupting:
        """Let other tasks of the loop run between two nodes."""

        def __init__(self, *args: object, **options: object) -> None:
            self.left = [lambda: shown.world.bind("a", "n1"), lambda: shown.world.bind("b", "n2")]

        async def pause(self) -> None:
            if self.left:
                self.left.pop()()

    monkeypatch.setattr(module, "Slices", Interrupting)
    shown.caught_up()
    monkeypatch.undo()
    held = {node["name"] for node in shown.whole()["nodes"] if node["gpus"][0]["state"] == "held"}
    assert held == {"n1", "n2"}


async def test_simultaneous_requests_share_one_scan(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    shown.world.node("n1", 1)
    scans: list[str] = []
    real = Live._view

    def view(self: Live, name: str) -> NodeView | None:
        scans.append(name)
        return real(self, name)

    monkeypatch.setattr(Live, "_view", view)
    await asyncio.gather(*(shown.live.catch_up() for _ in range(8)))
    assert scans == ["n1"]


# ---- pods that wait


def waiting(answer: dict[str, Any]) -> dict[str, dict[str, int]]:
    return {pod["pod"]: pod.get("reasons", {}) for pod in answer["pending"]}


def test_pods_that_wait_and_the_codes_of_their_reasons(shown: Shown) -> None:
    for name in ("n1", "n2"):
        shown.world.node(name, 1)
        shown.world.bind(f"on-{name}", name)
    shown.world.show("a")
    shown.world.filter("a")
    shown.world.show("b", {"lading.dev/gpu": "4"})
    answer = shown.whole()
    assert waiting(answer) == {"a": {"too-few-free-gpus": 2}, "b": {}}  # no one has asked about b yet
    assert {"too-few-free-gpus", "fits"} <= answer["sentences"].keys()


def test_passing_time_alone_is_no_change_of_waiting_pods(shown: Shown) -> None:
    shown.world.node("n1", 1)
    shown.world.bind("holds", "n1")
    shown.world.show("a")
    shown.world.filter("a")
    answer = shown.whole()
    revision = answer["revision"]
    later = shown.since(revision)
    assert (later["revision"], "pending" in later) == (revision, False)
    assert shown.whole()["pending"][0]["refused_s"] > answer["pending"][0]["refused_s"]
    shown.world.deleted("a")
    answer = shown.since(revision)
    assert (answer["pending"], answer["pending_count"], answer["nodes"]) == ([], 0, [])


def test_the_first_of_many_waiting_pods_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("central.page.waiting.MOST", 3)
    monkeypatch.setattr("central.page.waiting._CHUNK", 2)
    shown = Shown()
    for number in range(7):
        shown.world.show(f"p{number}", priority=number)
    answer = shown.whole()
    assert [pod["pod"] for pod in answer["pending"]] == ["p6", "p5", "p4"]
    assert answer["pending_count"] == 7


def test_a_waiting_pod_is_shown_with_its_place_in_line_and_one_of_a_gang_with_that_of_its_gang(shown: Shown) -> None:
    shown.world.node("n1", 1)
    shown.world.bind("holds", "n1")
    requested: dict[str, dict[str, Any]] = {"a": {"priority": 2}, "b": {}, "c": {"annotations": {GANG: "g", GANG_MIN: "1"}}}
    for name, text in requested.items():
        pod = shown.world.show(name, **text)
        GangFeed(shown.world.scheduler.starts, shown.world.ledger).changed(pod)
        shown.world.filter(name)
    pending = {pod["pod"]: pod for pod in shown.whole()["pending"]}
    assert pending["b"]["line"] == "2nd of 2 pods in line; ahead: default/a (of higher priority)"
    assert pending["c"]["gang"].startswith("default/g is queued:")
    assert pending["c"]["gang"].endswith("1st of 1 gang in line")
    assert "gang" not in pending["b"]
    assert "line" not in pending["c"]


def test_nothing_that_is_secret_is_in_it(shown: Shown) -> None:
    shown.world.node("n1", 1)
    shown.world.bind("a", "n1")
    assigned = shown.world.pods["a"]["metadata"]["annotations"]
    shown.world.show("a", node="n1", annotations=assigned | {SIGNATURE: "ed25519:k1:c2VjcmV0", "password": "hunter2"})
    shown.world.show("b", annotations={"password": "hunter2"})
    text = msgspec.json.encode(shown.whole()).decode()
    assert str(uid_of("a")) in text
    assert GpuUuid(gpu_uuid("n1", 0)) in text
    assert not [word for word in ("c2VjcmV0", "hunter2", "assignment", "signature") if word in text]


def test_a_scan_that_failed_is_made_again(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    shown.world.node("n1", 1)
    with monkeypatch.context() as broken:
        broken.setattr(module, "node_view", lambda *args: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            shown.caught_up()
    assert names(shown.whole()) == {"n1"}


def test_keys_of_the_answer(shown: Shown) -> None:
    whole = set(shown.whole())
    assert whole == {"revision", "version", "totals", "sentences", "pending", "pending_count", "nodes"}
    changes = said(shown.live.since(shown.live.revision))
    assert set(changes) == {"revision", "after", "totals", "gone", "nodes"}

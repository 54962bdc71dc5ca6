"""Test the simulated API server's store: versions, conflicts, snapshots, and an event for every change."""

from typing import Any

import msgspec
import pytest

from lading.kube.resource import NODE_DEVICES, NODES, PODS
from simnode.api_store import PRIORITY_CLASSES, Call, Object, RefusedError, Store, merge

POD = PODS.path("default", "train")
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"


def ask(store: Store, method: str, path: str, body: Any = None, *, kind: str = "", **query: str) -> Any:
    return msgspec.json.decode(store.answer(Call(method=method, path=path, query=query, content_type=kind, body=body))[1])


def refusal(store: Store, method: str, path: str, body: Any = None, *, kind: str = "", **query: str) -> tuple[int, str]:
    before = len(store.log)
    with pytest.raises(RefusedError) as e:
        ask(store, method, path, body, kind=kind, **query)
    assert len(store.log) == before
    return e.value.status, e.value.reason


def events(store: Store, collection: str, version: int = 0) -> list[tuple[str, str]]:
    lines = store.changes(collection, version).take().splitlines()
    result = [msgspec.json.decode(line) for line in lines]
    return [(one["type"], one["object"]["metadata"]["name"]) for one in result]


def binding(pod: Object, **metadata: str) -> Object:
    return {"metadata": {"uid": pod["metadata"]["uid"], "annotations": {"a": "b"}, **metadata}, "target": {"name": "n1"}}


@pytest.fixture
def store() -> Store:
    return Store()


def test_each_change_has_the_next_version_and_an_event(store: Store) -> None:
    pod = ask(store, "POST", PODS.path("default"), {"metadata": {"name": "train", "uid": "mine"}})
    assert pod["metadata"]["uid"] != "mine"
    ask(store, "PATCH", f"{POD}/status", {"status": {"phase": "Running"}})
    ask(store, "POST", f"{POD}/binding", binding(pod))
    ask(store, "DELETE", POD, {"gracePeriodSeconds": 0})
    assert [change.version for change in store.log] == [101, 102, 103, 104]
    assert [kind for kind, _ in events(store, "/api/v1/pods")] == ["ADDED", "MODIFIED", "MODIFIED", "DELETED"]
    assert events(store, PODS.path("default"), 103) == [("DELETED", "train")]
    assert events(store, NODES.path()) == []
    assert events(store, PODS.path("other")) == []


def test_a_patch_that_changes_nothing_is_none(store: Store) -> None:
    store.put(POD, {"status": {"phase": "Running"}})
    assert ask(store, "PATCH", f"{POD}/status", {"status": {"phase": "Running"}})["metadata"]["resourceVersion"] == "101"
    assert len(store.log) == 1


def test_creating_an_existing_object_is_a_conflict(store: Store) -> None:
    store.put(POD, {})
    assert refusal(store, "POST", PODS.path("default"), {"metadata": {"name": "train"}}) == (409, "AlreadyExists")


@pytest.mark.parametrize("wrong", [{"uid": "another"}, {"resourceVersion": "1"}])
def test_a_call_for_another_uid_or_version_is_a_conflict(store: Store, wrong: dict[str, str]) -> None:
    pod = store.put(POD, {})
    assert refusal(store, "PATCH", POD, {"metadata": wrong, "spec": {"a": 1}}) == (409, "Conflict")
    assert refusal(store, "DELETE", POD, {"preconditions": wrong}) == (409, "Conflict")
    assert refusal(store, "POST", f"{POD}/binding", binding(pod, **wrong)) == (409, "Conflict")
    assert refusal(store, "POST", f"{POD}/eviction", {"deleteOptions": {"preconditions": wrong}}) == (409, "Conflict")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("GET", POD), ("DELETE", POD), ("PATCH", f"{POD}/status"), ("POST", f"{POD}/binding")),
        *(("POST", f"{POD}/eviction"), ("POST", f"{POD}/log"), ("GET", "/versions")),
    ],
)
def test_a_call_for_an_absent_object_is_not_found(method: str, path: str) -> None:
    assert refusal(Store(), method, path, {"metadata": {}}) == (404, "NotFound")


def test_a_pod_is_bound_once_and_not_while_it_ends(store: Store) -> None:
    pod = store.put(POD, {})
    ask(store, "POST", f"{POD}/binding", binding(pod))
    bound = store.objects[POD]
    assert (bound["spec"]["nodeName"], bound["metadata"]["annotations"]) == ("n1", {"a": "b"})
    assert refusal(store, "POST", f"{POD}/binding", binding(pod)) == (409, "Conflict")
    other = store.put(PODS.path("default", "b"), {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
    assert refusal(store, "POST", PODS.path("default", "b", "binding"), binding(other)) == (409, "Conflict")


def test_a_pod_that_runs_ends_in_two_steps_one_that_waits_at_once(store: Store) -> None:
    store.put(POD, {"spec": {"nodeName": "n1"}})
    ask(store, "POST", f"{POD}/eviction", {})
    version = store.last
    assert store.objects[POD]["metadata"]["deletionTimestamp"]
    ask(store, "DELETE", POD)  # told again
    assert store.last == version
    ask(store, "DELETE", POD, {"gracePeriodSeconds": 0})
    assert POD not in store.objects
    store.put(POD, {})
    ask(store, "POST", f"{POD}/eviction", {})
    assert POD not in store.objects


def test_a_budget_that_lets_no_one_go(store: Store) -> None:
    store.put(POD, {})
    store.evictable = False
    assert refusal(store, "POST", f"{POD}/eviction", {}) == (429, "TooManyRequests")


def test_a_status_is_patched_alone_and_its_conditions_by_type(store: Store) -> None:
    store.put(POD, {"spec": {"a": 1}, "status": {"conditions": [{"type": "A", "status": "True"}]}})
    change = {"spec": {"a": 2}, "status": {"conditions": [{"type": "B", "status": "True"}, {"type": "A", "status": "False"}]}}
    pod = ask(store, "PATCH", f"{POD}/status", change, kind=STRATEGIC)
    assert pod["spec"] == {"a": 1}
    assert [(one["type"], one["status"]) for one in pod["status"]["conditions"]] == [("A", "False"), ("B", "True")]
    pod = ask(store, "PATCH", f"{POD}/status", {"status": {"conditions": []}})
    assert pod["status"]["conditions"] == []


def test_an_applied_status_is_one_value_of_an_object_that_is_there(store: Store) -> None:
    path = NODE_DEVICES.path(name="n1")
    body = {"status": {"grants": [1], "gpus": [2]}}
    owner = {"kind": APPLY, "fieldManager": "hooks"}
    assert refusal(store, "PATCH", f"{path}/status", body, **owner) == (404, "NotFound")
    store.put(path, {"metadata": {"annotations": {"a": "b"}}})
    ask(store, "PATCH", f"{path}/status", body, **owner)
    now = ask(store, "PATCH", f"{path}/status", {"status": {"gpus": [2]}}, **owner)
    assert now["status"] == {"gpus": [2]}
    assert now["metadata"]["annotations"] == {"a": "b"}
    another = {"kind": APPLY, "fieldManager": "somebody"}
    assert refusal(store, "PATCH", f"{path}/status", body, **another) == (409, "Conflict")
    assert ask(store, "PATCH", f"{path}/status", body, **another, force="true")["status"] == body["status"]


def test_pages_are_of_one_moment(store: Store) -> None:
    for name in "cab":
        store.put(PODS.path(f"ns-{name}", name), {})
    first = ask(store, "GET", PODS.path(), limit="2")
    store.put(PODS.path("ns-d", "d"), {})
    token = first["metadata"]["continue"]
    second = ask(store, "GET", PODS.path(), limit="2", **{"continue": token})
    assert [one["metadata"]["name"] for one in (*first["items"], *second["items"])] == ["a", "b", "c"]
    assert first["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"] == "103"
    assert second["metadata"]["continue"] == ""
    assert refusal(store, "GET", PODS.path(), **{"continue": "forgotten"}) == (410, "Expired")


def test_a_loaded_object_is_listed_without_an_event() -> None:
    store = Store(first_version=1000)
    store.load(NODES.path(name="n1"), {"metadata": {"uid": "u", "resourceVersion": "7"}})
    listed = ask(store, "GET", NODES.path())
    assert [one["metadata"]["uid"] for one in listed["items"]] == ["u"]
    assert listed["metadata"]["resourceVersion"] == "999"
    assert store.log == []


def test_versions_that_were_forgotten(store: Store) -> None:
    store.put(POD, {})
    store.compact()
    store.changes(PODS.path(), store.last)
    with pytest.raises(RefusedError) as e:
        store.changes(PODS.path(), store.last - 1)
    assert e.value.status == 410


def test_a_merge_patch() -> None:
    """Check the examples of RFC 7396, appendix A."""
    assert merge({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}) == {"a": {"b": "d"}}
    assert merge({"a": [{"b": "c"}]}, {"a": [1]}) == {"a": [1]}
    assert merge({}, {"a": {"bb": {"ccc": None}}}) == {"a": {"bb": {}}}


def test_an_apply_to_a_kind_of_kueue_changes_only_the_entries_that_it_names() -> None:
    store, path = Store(), "/apis/kueue.x-k8s.io/v1beta2/namespaces/default/workloads/train"
    checks = [{"name": "a", "state": "Pending", "retryCount": 1}, {"name": "b", "state": "Ready"}]
    store.put(path, {"status": {"conditions": [{"type": "QuotaReserved"}], "admissionChecks": checks}})
    change = {"metadata": {}, "status": {"admissionChecks": [{"name": "a", "state": "Ready"}]}}
    store.answer(Call(method="PATCH", path=f"{path}/status", content_type=APPLY, query={"fieldManager": "m"}, body=change))
    assert store.objects[path]["status"] == {
        "conditions": [{"type": "QuotaReserved"}],
        "admissionChecks": [{"name": "a", "state": "Ready", "retryCount": 1}, {"name": "b", "state": "Ready"}],
    }


def test_a_new_pod_waits_with_the_priority_of_its_class(store: Store) -> None:
    store.load(PRIORITY_CLASSES.path(name="high"), {"value": 7})
    for name, priority in (("high", 7), ("system-node-critical", 2_000_001_000), (None, 0)):
        pod = ask(
            store,
            "POST",
            PODS.path(str(priority)),
            {"metadata": {"name": "a"}, "spec": {"priorityClassName": name} if name else {}},
        )
        assert pod["spec"]["priority"] == priority
        assert pod["status"] == {"phase": "Pending"}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"priorityClassName": "none"}, 'pods "a" is forbidden: no PriorityClass with name none was found'),
        ({"priority": 7}, 'pods "a" is forbidden: the integer value of priority (7) must not be provided in pod spec'),
    ],
)
def test_admission_refuses_a_priority_without_its_class(spec: Object, message: str) -> None:
    with pytest.raises(RefusedError) as refused:
        ask(Store(), "POST", PODS.path("default"), {"metadata": {"name": "a"}, "spec": spec})
    assert (refused.value.status, refused.value.reason) == (403, "Forbidden")
    assert refused.value.message.startswith(message)


def test_a_missing_object_is_named() -> None:
    with pytest.raises(RefusedError, match='pods "train" not found'):
        ask(Store(), "GET", POD)
    assert ask(Store(), "GET", "/version")["gitVersion"].startswith("v1.")

"""Test how a pod names its gang in each dialect, and which names are refused."""

from typing import Any

import msgspec
import pytest

from central.api.pod_groups import GANG_KINDS, GangObject, PodGroup
from central.request.gang import GangDialect, GangKey, Match, Membership, Mode, Terms, parse_membership
from central.request.model import MalformedRequest
from lading.vocabulary import GANG, GANG_MIN, GANG_MODE, GANG_PREFERRED_TOPOLOGY, GANG_REQUIRED_TOPOLOGY, GANG_ROLE
from tests.fakes.kube_objects import decoded, pod

KOORDINATOR = "gang.scheduling.koordinator.sh/"
SIGS = "pod-group.scheduling.sigs.k8s.io"


def koordinator(**words: str) -> dict[str, str]:
    return {f"{KOORDINATOR}{key.replace('_', '-')}": value for key, value in words.items()}


def said(annotations: dict[str, str] | None = None, labels: dict[str, str] | None = None, **spec: Any) -> Any:
    made = pod("a", annotations=annotations or {}, labels=labels or {})
    made["spec"] |= spec
    return parse_membership(decoded(made))


def membership(*args: Any, **options: Any) -> Membership:
    result = said(*args, **options)
    assert isinstance(result, Membership), result
    return result


def key(dialect: GangDialect, name: str) -> GangKey:
    return GangKey(dialect, "default", name)


def test_a_pod_without_annotations_belongs_to_no_gang() -> None:
    assert said({"other": "x"}, {"app": "x"}) is None


def test_a_name_and_a_minimum() -> None:
    result = membership({GANG: "train", GANG_MIN: "4"})
    assert (result.gang, result.role, result.terms) == (key(GangDialect.LADING, "train"), "", Terms(least={"": 4}))


def test_roles_each_with_a_minimum() -> None:
    result = membership({GANG: "train", GANG_MIN: "ps=1, worker=4", GANG_ROLE: "worker", GANG_MODE: "non-strict"})
    assert (result.role, result.roles) == ("worker", ("ps", "worker"))
    assert result.terms == Terms(least={"ps": 1, "worker": 4}, mode=Mode.NON_STRICT)


def test_topology() -> None:
    result = membership({GANG: "g", GANG_MIN: "2", GANG_REQUIRED_TOPOLOGY: "a.io/block", GANG_PREFERRED_TOPOLOGY: "a.io/rack"})
    assert result.terms is not None
    assert (result.terms.required_topology, result.terms.preferred_topology) == ("a.io/block", "a.io/rack")


@pytest.mark.parametrize(
    ("annotations", "names", "right"),
    [
        ({GANG_MIN: "4"}, GANG_MIN, f"add {GANG}"),
        ({GANG: "g"}, GANG_MIN, "how many members start together"),
        ({GANG: "g", GANG_MIN: "0"}, GANG_MIN, "1 to 4096"),
        ({GANG: "g", GANG_MIN: "5000"}, GANG_MIN, "1 to 4096"),
        ({GANG: "g", GANG_MIN: "four"}, "'four'", "1 to 4096"),
        ({GANG: "", GANG_MIN: "4"}, GANG, "1 to 253 letters"),
        ({GANG: "g" * 300, GANG_MIN: "4"}, GANG, "1 to 253 letters"),
        ({GANG: "g", GANG_MIN: "ps=1,worker=4"}, GANG_ROLE, "write ps or worker"),
        ({GANG: "g", GANG_MIN: "4", GANG_ROLE: "ps"}, "'ps'", f"no {GANG_ROLE}"),
        ({GANG: "g", GANG_MIN: "ps=1,ps=2", GANG_ROLE: "ps"}, GANG_MIN, "name each role once"),
        ({GANG: "g", GANG_MIN: ",".join(f"r{n}=1" for n in range(99)), GANG_ROLE: "r1"}, GANG_MIN, "32 at most"),
        ({GANG: "g", GANG_MIN: "4", GANG_MODE: "Strict"}, "'Strict'", "strict or non-strict"),
        ({GANG: "g", GANG_MIN: "4", GANG_REQUIRED_TOPOLOGY: "a b"}, "'a b'", "key of a node label"),
        ({GANG: "g", GANG_MIN: "4"} | koordinator(name="h", min_available="2"), "gang h", "keep one"),
        (koordinator(name="h"), "min-available", "write a number of members"),
        (koordinator(name="h", min_available="2", groups='["default/x"]'), "groups", "with default/h among them"),
        (koordinator(name="h", min_available="2", groups="[" * 3000), "groups", "a JSON list"),
    ],
)
def test_malformed_gang_annotations_are_refused_with_what_would_be_right(
    annotations: dict[str, str], names: str, right: str
) -> None:
    result = said(annotations)
    assert isinstance(result, MalformedRequest)
    assert names in result.message
    assert right in result.message
    assert len(result.message) < 400


def test_the_annotations_of_koordinator_name_a_gang() -> None:
    text = koordinator(name="train", min_available="3", mode="NonStrict", match_policy="waiting-and-running")
    result = membership(text | koordinator(waiting_time="1h30m"))
    assert result.gang == key(GangDialect.KOORDINATOR, "train")
    least = {"default/train": 3}
    assert result.terms == Terms(least=least, mode=Mode.NON_STRICT, match=Match.WAITING_AND_RUNNING, wait_s=5400.0)


def test_koordinators_labels_come_before_its_annotations() -> None:
    labels = {f"{SIGS}/name": "a", f"{SIGS}/min-available": "2"}
    result = membership(koordinator(name="b", min_available="3"), labels)
    assert (result.gang.name, result.terms) == ("a", Terms(least={"default/a": 2}))


def test_gangs_of_one_group_are_roles_of_one_gang() -> None:
    group = '["default/b", "default/a"]'
    both = [membership(koordinator(name=name, min_available="2", groups=group)) for name in "ab"]
    assert len({one.gang for one in both}) == 1
    assert [one.role for one in both] == ["default/a", "default/b"]
    assert {one.roles for one in both} == {("default/a", "default/b")}


def test_a_group_of_another_namespace_that_does_not_list_the_gang_has_nothing_in_common_with_it() -> None:
    ours = membership(koordinator(name="a", min_available="2"))
    theirs = said(koordinator(name="b", min_available="2", groups='["default/b","default/a"]'))
    assert ours.gang != theirs.gang


@pytest.mark.parametrize(
    ("labels", "spec", "dialect", "name"),
    [
        ({"scheduling.x-k8s.io/pod-group": "g"}, {}, GangDialect.COSCHEDULING, "g"),
        ({SIGS: "g"}, {}, GangDialect.KOORDINATOR, "g"),
        ({}, {"schedulingGroup": {"podGroupName": "g"}}, GangDialect.KUBERNETES, "g"),
        ({}, {"workloadRef": {"name": "w", "podGroup": "g", "podGroupReplicaKey": "1"}}, GangDialect.KUBERNETES, "w/g/1"),
    ],
)
def test_a_gang_whose_minimum_is_in_an_object_has_no_terms_yet(
    labels: dict[str, str], spec: dict[str, Any], dialect: GangDialect, name: str
) -> None:
    result = membership({}, labels, **spec)
    assert (result.gang, result.terms) == (key(dialect, name), None)
    assert result.source is not None


def test_a_pod_group_of_kueue_has_all_its_pods_as_minimum() -> None:
    result = membership({"kueue.x-k8s.io/pod-group-total-count": "4"}, {"kueue.x-k8s.io/pod-group-name": "g"})
    assert (result.gang, result.terms) == (key(GangDialect.KUEUE, "g"), Terms(least={"": 4}))
    annotated = membership({"kueue.x-k8s.io/pod-group-total-count": "4", "kueue.x-k8s.io/pod-group-name": "g"})
    assert annotated == result


def test_the_rank_of_a_member_is_its_index_in_the_job() -> None:
    result = membership({GANG: "g", GANG_MIN: "4"}, {"batch.kubernetes.io/job-completion-index": "7"})
    assert result.rank == 7


def objects(group: str, version: str, body: dict[str, Any]) -> list[GangObject]:
    (kind,) = [kind for kind in GANG_KINDS if (kind.resource.group, kind.resource.version) == (group, version)]
    metadata = {"name": "g", "namespace": "default", "uid": "u"} | body.pop("metadata", {})
    return list(kind.read(msgspec.convert({"metadata": metadata, **body}, PodGroup)))


@pytest.mark.parametrize(
    ("group", "version", "body", "terms"),
    [
        (
            "scheduling.x-k8s.io",
            "v1alpha1",
            {"spec": {"minMember": 3, "scheduleTimeoutSeconds": 20}},
            Terms(least={"": 3}, wait_s=20),
        ),
        ("scheduling.k8s.io", "v1alpha2", {"spec": {"schedulingPolicy": {"gang": {"minCount": 4}}}}, Terms(least={"": 4})),
        ("scheduling.k8s.io", "v1alpha2", {"spec": {"schedulingPolicy": {"basic": {}}}}, Terms()),
        (
            "scheduling.k8s.io",
            "v1alpha2",
            {
                "spec": {
                    "schedulingPolicy": {"gang": {"minCount": 2}},
                    "schedulingConstraints": {"topology": [{"key": "a.io/rack"}]},
                }
            },
            Terms(least={"": 2}, required_topology="a.io/rack"),
        ),
        (
            "scheduling.k8s.io",
            "v1alpha1",
            {"spec": {"podGroups": [{"name": "w", "policy": {"gang": {"minCount": 4}}}]}},
            Terms(least={"": 4}),
        ),
    ],
)
def test_the_terms_of_a_gang_are_read_from_its_object(group: str, version: str, body: dict[str, Any], terms: Terms) -> None:
    (result,) = objects(group, version, body)
    assert result.terms == terms


def test_a_pod_group_of_koordinator_says_its_group_and_policies_by_annotations() -> None:
    annotations = koordinator(groups='["default/g","default/h"]', mode="NonStrict")
    body = {"metadata": {"annotations": annotations}, "spec": {"minMember": 2}}
    (result,) = objects("scheduling.sigs.k8s.io", "v1alpha1", body)
    assert result.roles == ("default/g", "default/h")
    assert result.terms == Terms(least={"default/g": 2}, mode=Mode.NON_STRICT)


def test_a_pod_group_whose_group_does_not_list_it_says_what_is_wrong() -> None:
    body = {"metadata": {"annotations": koordinator(groups='["default/h"]')}, "spec": {"minMember": 2}}
    (result,) = objects("scheduling.sigs.k8s.io", "v1alpha1", body)
    assert "default/g among them" in result.wrong

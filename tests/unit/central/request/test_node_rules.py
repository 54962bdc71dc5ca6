"""Test which nodes a pod's own rules allow, as Kubernetes documents them."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from central.api.objects import Node
from central.request.node_rules import ANY_NODE, MOST_RULES, MOST_TEXT, read_node_rules, traits_of
from central.request.pod import Pod

Json = dict[str, Any]
LABELS = {"zone": "a", "cores": "32", "odd": "x1", "empty": ""}


def read(spec: Json) -> Pod:
    return msgspec.convert({"metadata": {}, "spec": spec}, Pod)


def allowed(spec: Json, *, name: str = "n1", labels: Mapping[str, str] = LABELS, node: Json | None = None) -> bool:
    made = msgspec.convert({"metadata": {"name": name, "labels": labels}, "spec": node or {}}, Node)
    rules = read_node_rules(read(spec))
    assert rules is not None
    traits = traits_of(name, made.metadata.labels, made.spec.taints, unschedulable=made.spec.unschedulable)
    return rules.allow(traits)


def affinity(*terms: Json) -> Json:
    return {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}
    }


def label(key: str, operator: str, *values: str) -> Json:
    return {"key": key, "operator": operator} | ({"values": list(values)} if values else {})


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        *(({}, True), ({"zone": "a"}, True), ({"zone": "a", "cores": "32"}, True), ({"zone": "b"}, False)),
        *(({"zone": "a", "rack": "7"}, False), ({"empty": ""}, True), ({"rack": ""}, False)),
    ],
)
def test_the_node_has_all_labels_of_the_node_selector(selector: Mapping[str, str], expected: bool) -> None:
    assert allowed({"nodeSelector": selector}) == expected


@pytest.mark.parametrize(
    ("requirement", "expected"),
    [
        (label("zone", "In", "b", "a"), True),
        (label("zone", "In", "b"), False),
        (label("rack", "In", "a"), False),
        (label("zone", "NotIn", "b"), True),
        (label("zone", "NotIn", "a", "b"), False),
        (label("rack", "NotIn", "a"), True),  # it has no such label
        *((label("zone", "Exists"), True), (label("rack", "Exists"), False), (label("rack", "DoesNotExist"), True)),
        *((label("zone", "DoesNotExist"), False), (label("cores", "Gt", "31"), True)),
        *((label("cores", "Gt", "32"), False), (label("cores", "Lt", "33"), True), (label("cores", "Lt", "32"), False)),
        (label("cores", "Gt", "-5"), True),
        (label("odd", "Gt", "0"), False),  # no number
        (label("rack", "Gt", "0"), False),
        (label("rack", "Lt", "0"), False),
        # invalid: the term is met by no node
        (label("zone", "In"), False),
        (label("zone", "NotIn"), False),
        (label("rack", "DoesNotExist", "a"), False),
        (label("zone", "Exists", "a"), False),
        (label("cores", "Gt"), False),
        (label("cores", "Gt", "1", "2"), False),
        (label("cores", "Gt", "1.5"), False),
        (label("cores", "Lt", "9223372036854775808"), False),  # not in 64 bits
        (label("zone", "NotIn", "no label value!"), False),
        (label("zone", "Like", "a"), False),
    ],
)
def test_a_requirement_of_the_node_affinity(requirement: Json, expected: bool) -> None:
    assert allowed(affinity({"matchExpressions": [requirement]})) == expected


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        ([], False),
        ([{}], False),
        ([{"matchExpressions": []}], False),
        ([{}, {"matchExpressions": [label("zone", "Exists")]}], True),
        ([{"matchExpressions": [label("zone", "In", "a"), label("rack", "Exists")]}], False),  # all of a term
        ([{"matchExpressions": [label("rack", "Exists")]}, {"matchExpressions": [label("zone", "In", "a")]}], True),  # one term
        ([{"matchFields": [label("metadata.name", "In", "n1")]}], True),
        ([{"matchFields": [label("metadata.name", "In", "n2")]}], False),
        ([{"matchFields": [label("metadata.name", "NotIn", "n2")]}], True),
        ([{"matchFields": [label("metadata.name", "NotIn", "n1")]}], False),
        ([{"matchFields": [label("metadata.name", "In", "n1", "n2")]}], False),  # Kubernetes takes one value
        ([{"matchFields": [label("metadata.name", "Exists")]}], False),
        ([{"matchFields": [label("metadata.uid", "NotIn", "u")]}], False),
        ([{"matchFields": [label("metadata.name", "In", "n1")], "matchExpressions": [label("zone", "In", "b")]}], False),
        ([{"matchFields": [label("metadata.name", "In", "n1")], "matchExpressions": [label("zone", "In", "a")]}], True),
    ],
)
def test_a_node_selector_term_must_be_met_in_all_its_parts(terms: Sequence[Json], expected: bool) -> None:
    assert allowed(affinity(*terms)) == expected


def test_selector_and_affinity_both_count() -> None:
    in_zone = affinity({"matchExpressions": [label("zone", "In", "a")]})
    assert allowed({"nodeSelector": {"cores": "32"}} | in_zone)
    assert not allowed({"nodeSelector": {"cores": "16"}} | in_zone)


def test_preferred_affinity_forbids_nothing() -> None:
    preferred = [{"weight": 1, "preference": {"matchExpressions": [label("zone", "In", "b")]}}]
    assert allowed({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}})
    assert allowed({"affinity": {"podAntiAffinity": {}}})


TAINT = {"key": "team", "value": "red", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("toleration", "expected"),
    [
        (None, False),
        ({"key": "team", "operator": "Equal", "value": "red", "effect": "NoSchedule"}, True),
        ({"key": "team", "value": "red"}, True),  # Equal; of every effect
        ({"key": "team", "value": "blue"}, False),
        ({"key": "team", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "room", "operator": "Exists"}, False),
        ({"key": "team", "operator": "Gt", "value": "1"}, False),
        ({"key": "team", "operator": "Like", "value": "red"}, False),
    ],
)
def test_a_taint_is_tolerated(toleration: Json | None, expected: bool) -> None:
    spec = {"tolerations": [toleration]} if toleration else {}
    assert allowed(spec, node={"taints": [TAINT]}) == expected
    assert allowed(spec, node={"taints": [{**TAINT, "effect": "PreferNoSchedule"}]})
    assert allowed(spec)


@pytest.mark.parametrize(("operator", "value", "expected"), [("Gt", "949", True), ("Gt", "950", False), ("Lt", "951", True)])
def test_a_taint_is_tolerated_by_its_number(operator: str, value: str, expected: bool) -> None:
    taint = {"key": "sla", "value": "950", "effect": "NoExecute"}
    assert (
        allowed({"tolerations": [{"key": "sla", "operator": operator, "value": value}]}, node={"taints": [taint]}) == expected
    )


def test_every_taint_needs_a_toleration() -> None:
    other = {"key": "maintenance", "effect": "NoExecute"}
    both = [{"key": "team", "operator": "Exists"}, {"key": "maintenance", "operator": "Exists"}]
    assert not allowed({"tolerations": both[:1]}, node={"taints": [TAINT, other]})
    assert allowed({"tolerations": both}, node={"taints": [TAINT, other]})


def test_a_cordoned_node_is_for_pods_that_tolerate_it() -> None:
    assert not allowed({}, node={"unschedulable": True})
    assert not allowed({"tolerations": [{"key": "team", "operator": "Exists"}]}, node={"unschedulable": True})
    tolerated = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}
    assert allowed({"tolerations": [tolerated]}, node={"unschedulable": True})


def test_fields_that_are_null_say_nothing() -> None:
    """Return rules as a manifest may have them."""
    assert read_node_rules(read({"nodeSelector": None, "affinity": None, "tolerations": None})) == ANY_NODE
    term = {"matchExpressions": [{"key": "zone", "operator": "Exists", "values": None}], "matchFields": None}
    assert allowed(affinity(term))
    assert not allowed(
        {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": None}}}}
    )


@pytest.mark.parametrize(
    "spec",
    [
        {"nodeSelector": {f"k{number}": "v" for number in range(MOST_RULES + 1)}},
        {"tolerations": [{"key": f"k{number}"} for number in range(MOST_RULES + 1)]},
        affinity(*[{"matchExpressions": [label(f"k{number}", "Exists")]} for number in range(MOST_RULES + 1)]),
        affinity(*[{}] * (MOST_RULES + 1)),
        affinity({"matchFields": [label("metadata.name", "NotIn", f"n{number}") for number in range(MOST_RULES + 1)]}),
        affinity({"matchExpressions": [label("k", "In", *["v" * 60] * (MOST_TEXT // 60 + 1))]}),
    ],
)
def test_more_than_the_most_is_not_judged(spec: Json) -> None:
    assert read_node_rules(read(spec)) is None


def test_pods_of_one_template_share_their_rules() -> None:
    spec = affinity({"matchExpressions": [label("zone", "In", "a")]}) | {"tolerations": [{"operator": "Exists"}]}
    assert read_node_rules(read(spec)) is read_node_rules(read(spec))

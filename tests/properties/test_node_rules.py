"""Test which nodes a pod's own rules allow, against the rules spelled out one by one."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from central.request.node_rules import Taint, read_node_rules, traits_of
from central.request.pod import Pod

Json = dict[str, Any]

KEYS = st.sampled_from(["a", "b", "c"])
VALUES = st.sampled_from(["", "1", "2", "-3", "x"])
LABELS = st.dictionaries(KEYS, VALUES)
REQUIREMENTS = st.fixed_dictionaries(
    {
        "key": KEYS,
        "operator": st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]),
        "values": st.lists(VALUES, max_size=3),
    }
)
FIELDS = st.fixed_dictionaries(
    {
        "key": st.just("metadata.name"),
        "operator": st.sampled_from(["In", "NotIn"]),
        "values": st.lists(st.sampled_from(["n1", "n2"]), max_size=2),
    }
)
TERMS = st.fixed_dictionaries(
    {"matchExpressions": st.lists(REQUIREMENTS, max_size=3), "matchFields": st.lists(FIELDS, max_size=1)}
)
EFFECTS = ["NoSchedule", "PreferNoSchedule", "NoExecute"]
TAINTS = st.lists(st.fixed_dictionaries({"key": KEYS, "value": VALUES, "effect": st.sampled_from(EFFECTS)}), max_size=3)
TOLERATIONS = st.lists(
    st.fixed_dictionaries(
        {
            "key": st.sampled_from(["a", "b", "c", "", "node.kubernetes.io/unschedulable"]),
            "operator": st.sampled_from(["", "Equal", "Exists", "Gt", "Lt"]),
            "value": VALUES,
            "effect": st.sampled_from(["", *EFFECTS]),
        }
    ),
    max_size=3,
)


def number(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None


def holds(one: Json, value: str | None) -> bool:
    operator, values = one["operator"], one["values"]
    if operator == "In":
        return value is not None and value in values
    if operator == "NotIn":
        return value is None or value not in values
    if operator == "Exists":
        return value is not None
    if operator == "DoesNotExist":
        return value is None
    mine, bound = number(value), number(values[0])
    assert bound is not None
    return mine is not None and (mine > bound if operator == "Gt" else mine < bound)


def valid(one: Json) -> bool:
    operator, values = one["operator"], one["values"]
    if one["key"] == "metadata.name":
        return len(values) == 1
    if operator in {"In", "NotIn"}:
        return bool(values)
    if operator in {"Exists", "DoesNotExist"}:
        return not values
    return len(values) == 1 and number(values[0]) is not None


def term_holds(term: Json, labels: dict[str, str]) -> bool:
    labelled, named = term["matchExpressions"], term["matchFields"]
    if not labelled and not named:
        return False
    if not all(map(valid, [*labelled, *named])):
        return False
    return all(holds(one, labels.get(one["key"])) for one in labelled) and all(holds(one, "n1") for one in named)


def tolerated(taint: Json, one: Json) -> bool:
    if one["effect"] not in {"", taint["effect"]} or one["key"] not in {"", taint["key"]}:
        return False
    if one["operator"] == "Exists":
        return True
    if one["operator"] in {"", "Equal"}:
        return bool(one["value"] == taint["value"])
    mine, bound = number(taint["value"]), number(one["value"])
    if mine is None or bound is None:
        return False
    return mine > bound if one["operator"] == "Gt" else mine < bound


@given(LABELS, TAINTS, st.booleans(), LABELS, st.none() | st.lists(TERMS, max_size=3), TOLERATIONS)
def test_a_node_is_allowed_where_every_rule_is_met(
    labels: dict[str, str],
    taints: list[Json],
    cordoned: bool,
    selector: dict[str, str],
    terms: list[Json] | None,
    tolerations: list[Json],
) -> None:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    spec = {"nodeSelector": selector, "tolerations": tolerations} | (
        {"affinity": {"nodeAffinity": required}} if terms is not None else {}
    )
    rules = read_node_rules(msgspec.convert({"metadata": {}, "spec": spec}, Pod))
    assert rules is not None
    node = traits_of("n1", labels, msgspec.convert(taints, list[Taint]), unschedulable=cordoned)
    all_taints = [
        *taints,
        *([{"key": "node.kubernetes.io/unschedulable", "value": "", "effect": "NoSchedule"}] if cordoned else []),
    ]
    expected = all(labels.get(key) == value for key, value in selector.items())
    expected &= terms is None or any(term_holds(term, labels) for term in terms)
    expected &= all(
        taint["effect"] == "PreferNoSchedule" or any(tolerated(taint, one) for one in tolerations) for taint in all_taints
    )
    assert rules.allow(node) == expected

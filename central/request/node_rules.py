"""Judge by Kubernetes' rules whether a pod is allowed on a node, regardless of the node's free capacity: pure.

Take a pod, and a node's name, labels, taints and cordon. Return whether these rules allow the pod on the node:

    nodeSelector              the node has all labels of the selector
    required node affinity    the node meets all requirements of one term; no node meets an empty term
    taints                    a toleration matches each taint with the effect NoSchedule or NoExecute
    cordon                    `spec.unschedulable` counts as a taint of its own

kube-scheduler applies the same rules, and decides. kube-scheduler also excludes nodes that are full now, so that its answer
does not show where a pod could run later. kube-scheduler alone judges volumes, host ports, affinity between pods and topology
spread. A pending pod has no `nodeName`.

Source: k8s.io/component-helpers/scheduling/corev1 (nodeaffinity), k8s.io/apimachinery/pkg/labels (Requirement), ToleratesTaint
of k8s.io/api/core/v1, the plugins NodeAffinity, TaintToleration and NodeUnschedulable of kube-scheduler, as of v1.36.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from central.request.pod import Affinity, Pod, SelectorTerm, Toleration
from lading.kube.objects import Requirement

# A pod's rules are limited here, because the API server limits only the object's size. Real pods have some dozens of rules.
MOST_RULES: Final = 256  # maximum number of selector labels, terms, requirements and tolerations together
MOST_TEXT: Final = 65_536  # maximum characters of a pod's rules

NODE_NAME: Final = "metadata.name"  # the only field that `matchFields` supports
FORBIDDING: Final = frozenset({"NoSchedule", "NoExecute"})

_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,64}")
_END: Final = 2**63  # bound of 64-bit integers: compared numbers are below it
_LABEL_VALUE: Final = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")


class Taint(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    key: str = ""
    value: str = ""
    effect: str = ""


UNSCHEDULABLE: Final = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")


class NodeTraits(NamedTuple):
    """Hold the node properties that node rules are checked against."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]  # taints NoSchedule and NoExecute, and the taint of a cordon


class _Rule(NamedTuple):
    """Hold a valid requirement of a node affinity."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()
    number: int = 0  # bound for the operators Gt and Lt

    def is_met(self, value: str | None) -> bool:
        """Return whether a label or field with this value meets the requirement. None: the label is absent."""
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case _:
                number = _integer(value)
                return number is not None and (number > self.number if self.operator == "Gt" else number < self.number)


class _Term(NamedTuple):
    labels: tuple[_Rule, ...]
    names: tuple[_Rule, ...]  # requirements on the node's name


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRules:
    """Hold a pod's node rules: selector, required affinity and tolerations. Pods of one template have equal rules."""

    selector: tuple[tuple[str, str], ...] = ()
    terms: tuple[_Term, ...] | None = None  # None: no node affinity is required
    tolerations: tuple[Toleration, ...] = ()

    def allow(self, node: NodeTraits) -> bool:
        return (
            all(node.labels.get(key) == value for key, value in self.selector)
            and (self.terms is None or any(_is_met(term, node) for term in self.terms))
            and all(any(_tolerates(one, taint) for one in self.tolerations) for taint in node.taints)
        )


ANY_NODE: Final = NodeRules()


def traits_of(name: str, labels: Mapping[str, str], taints: Iterable[Taint], *, unschedulable: bool) -> NodeTraits:
    """Return the traits of a node. Label texts are interned, because most of them are equal on many nodes."""
    forbidding = tuple(taint for taint in taints if taint.effect in FORBIDDING)
    shared = {sys.intern(key): sys.intern(value) for key, value in labels.items()}
    return NodeTraits(sys.intern(name), shared, (*forbidding, UNSCHEDULABLE) if unschedulable else forbidding)


def read_node_rules(pod: Pod) -> NodeRules | None:
    """Return the pod's node rules; None if they exceed MOST_RULES or MOST_TEXT."""
    spec = pod.spec
    selector, tolerations = (spec.node_selector or {}).items(), spec.tolerations or ()
    terms = _terms(spec.affinity)
    requirements = [one for term in terms or () for one in (*(term.match_expressions or ()), *(term.match_fields or ()))]
    texts = _texts(*selector, *map(_key_of, requirements), *map(_tolerated, tolerations))
    if len(selector) + len(requirements) + len(tolerations) + len(terms or ()) > MOST_RULES or sum(map(len, texts)) > MOST_TEXT:
        return None
    return _read(tuple(sorted(selector)), terms, tolerations)


@lru_cache(maxsize=1024)
def _read(
    selector: tuple[tuple[str, str], ...], terms: tuple[SelectorTerm, ...] | None, tolerations: tuple[Toleration, ...]
) -> NodeRules:
    read = None if terms is None else tuple(one for term in terms if (one := _read_term(term)) is not None)
    return NodeRules(selector=selector, terms=read, tolerations=tolerations)


def _terms(affinity: Affinity | None) -> tuple[SelectorTerm, ...] | None:
    required = affinity.node_affinity.required if affinity is not None and affinity.node_affinity is not None else None
    return None if required is None else required.node_selector_terms or ()


def _texts(*parts: Iterable[str]) -> Iterator[str]:
    return (text for part in parts for text in part)


def _key_of(one: Requirement) -> tuple[str, ...]:
    return (one.key, one.operator, *(one.values or ()))


def _tolerated(one: Toleration) -> tuple[str, ...]:
    return one.key, one.operator, one.value, one.effect


def _read_term(term: SelectorTerm) -> _Term | None:
    """Return the term; None if no node can meet it, because the term is empty or has an invalid requirement."""
    labels = [_read_rule(one) for one in term.match_expressions or ()]
    names = [_read_name_rule(one) for one in term.match_fields or ()]
    if not (labels or names) or None in labels or None in names:
        return None
    return _Term(tuple(rule for rule in labels if rule), tuple(rule for rule in names if rule))


def _read_rule(one: Requirement) -> _Rule | None:
    values = one.values or ()
    match one.operator:
        case "In" | "NotIn" if values and all(map(_LABEL_VALUE.fullmatch, values)):
            return _Rule(one.key, one.operator, frozenset(values))
        case "Exists" | "DoesNotExist" if not values:
            return _Rule(one.key, one.operator)
        case "Gt" | "Lt" if len(values) == 1 and (number := _integer(values[0])) is not None:
            return _Rule(one.key, one.operator, number=number)
        case _:
            return None


def _read_name_rule(one: Requirement) -> _Rule | None:
    values = one.values or ()
    valid = one.key == NODE_NAME and one.operator in {"In", "NotIn"} and len(values) == 1
    return _Rule(one.key, one.operator, frozenset(values)) if valid else None


def _is_met(term: _Term, node: NodeTraits) -> bool:
    on_labels = all(rule.is_met(node.labels.get(rule.key)) for rule in term.labels)
    return on_labels and all(rule.is_met(node.name) for rule in term.names)


def _tolerates(one: Toleration, taint: Taint) -> bool:
    """Return whether the toleration matches the taint. An empty effect matches all effects, an empty key all keys."""
    if (one.effect and one.effect != taint.effect) or (one.key and one.key != taint.key):
        return False
    match one.operator:
        case "Exists":
            return True
        case "" | "Equal":
            return one.value == taint.value
        case "Gt" | "Lt":  # alpha: the API server accepts them where the gate TaintTolerationComparisonOperators is on
            least, number = _integer(one.value), _integer(taint.value)
            if least is None or number is None:
                return False
            return number > least if one.operator == "Gt" else number < least
        case _:
            return False


def _integer(text: str | None) -> int | None:
    """Parse a 64-bit integer as Go's ParseInt does; return None if it is invalid."""
    number = int(text) if text is not None and _NUMBER.fullmatch(text) else None
    return number if number is not None and -_END <= number < _END else None

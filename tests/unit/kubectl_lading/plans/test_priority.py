"""A pod's priority as the API server gives it: by its class, by the default one, or by none."""

from typing import Any

import msgspec
import pytest

from central.ask.pod import Metadata, Pod
from kubectl_lading.plans.manifests import LOWER, PriorityClass, RefusedPod, Wanted, admit

POD = Pod(metadata=Metadata(name="p"))


def a_class(name: str, value: int, **words: Any) -> PriorityClass:
    return msgspec.convert({"metadata": {"name": name}, "value": value, **words}, PriorityClass)


TRAINING = a_class("training", 1000)
CLASSES = (TRAINING, a_class("batch", -5, preemptionPolicy="Never"))


def priority(classes: tuple[PriorityClass, ...] | None, **wanted: Any) -> tuple[int, str]:
    made = admit(POD, msgspec.convert(wanted, Wanted), classes)
    assert isinstance(made, Pod)
    return made.spec.priority, made.spec.preemption_policy


def refusal(**wanted: Any) -> str:
    made = admit(POD, msgspec.convert(wanted, Wanted), CLASSES)
    assert isinstance(made, RefusedPod)
    return made.why


def test_of_its_class() -> None:
    assert priority(CLASSES, priorityClassName="training") == (1000, LOWER)
    assert priority(CLASSES, priorityClassName="batch") == (-5, "Never")
    assert priority(CLASSES, priorityClassName="training", priority=1000, preemptionPolicy=LOWER) == (1000, LOWER)


def test_of_the_default_class_and_of_several_the_lowest() -> None:
    default = a_class("default", 7, globalDefault=True)
    assert priority((a_class("none", 9, globalDefault=None),)) == (0, LOWER)
    assert priority((*CLASSES, default)) == (7, LOWER)
    assert priority((*CLASSES, default, a_class("other", 3, globalDefault=True, preemptionPolicy="Never"))) == (3, "Never")
    assert priority((*CLASSES, default), priorityClassName="training") == (1000, LOWER)


def test_without_any() -> None:
    assert priority(()) == priority(CLASSES) == priority(CLASSES, priorityClassName="") == (0, LOWER)
    assert priority((), priority=0) == (0, LOWER)


@pytest.mark.parametrize(
    ("wanted", "named"),
    [
        ({"priorityClassName": "trainng"}, "training"),
        ({"priorityClassName": "training", "priority": 5}, "1000"),
        ({"priorityClassName": "training", "priority": 0}, "1000"),
        ({"priority": 5}, "5"),
        ({"priorityClassName": "training", "preemptionPolicy": "Never"}, LOWER),
        ({"preemptionPolicy": "Never"}, LOWER),
    ],
)
def test_what_the_api_server_refuses(wanted: dict[str, Any], named: str) -> None:
    assert named in refusal(**wanted)


def test_where_the_classes_are_not_known_what_is_written_counts() -> None:
    assert priority(None, priorityClassName="x", priority=5, preemptionPolicy="Never") == (5, "Never")
    assert priority(None) == (0, "")

"""Test pods that do not leave their node."""

from typing import Any

import msgspec
import pytest

from kubectl_lading.objects import MIRROR, Pod


def pod(**metadata: Any) -> Pod:
    return msgspec.convert({"metadata": {"name": "p", **metadata}}, Pod)


def owner(kind: str, *, controller: bool = True) -> dict[str, Any]:
    return {"kind": kind, "name": "of", "controller": controller, "apiVersion": "v1", "uid": "u"}


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({}, False),
        ({"ownerReferences": [owner("ReplicaSet")]}, False),
        ({"ownerReferences": [owner("Job"), owner("DaemonSet", controller=False)]}, False),
        ({"ownerReferences": [owner("Job", controller=False), owner("DaemonSet")]}, True),
        ({"ownerReferences": [owner("Node")]}, True),
        ({"annotations": {MIRROR: "x"}}, True),
    ],
)
def test_mirror_pods_and_pods_of_a_daemonset_are_bound_to_their_node(metadata: dict[str, Any], expected: bool) -> None:
    assert bool(pod(**metadata).why_bound_to_its_node) is expected

"""Test which containers the guard lets pass, and which it refuses."""

import pytest

from hooks.frontends.nri.guard.rule import check_container
from lading.reasons import Reason
from lading.vocabulary import ATTACHMENTS, GRANT

GUARDED = {"lading.dev/gpus": "0"}
PLAIN = {"other": "x"}


@pytest.mark.parametrize("granted", ["", '{"v":1}'])
def test_a_container_with_an_answer_passes(granted: str) -> None:
    """Check that an answer without devices passes too."""
    assert check_container(GUARDED, {GRANT: granted}) is None


def test_a_container_of_a_guarded_pod_without_an_answer_is_refused() -> None:
    refusal = check_container(GUARDED, {})
    assert refusal is not None
    assert refusal.reason is Reason.UNGRANTED


def test_containers_of_other_pods_pass() -> None:
    assert check_container(PLAIN, {}) is None


@pytest.mark.parametrize("key", [GRANT, ATTACHMENTS])
def test_a_pod_that_says_itself_what_it_was_granted_is_refused(key: str) -> None:
    """Refuse Lading's own annotations on a pod, because a runtime may copy them into the pod's containers."""
    refusal = check_container({key: "x"}, {key: "x"})
    assert refusal is not None
    assert refusal.reason is Reason.ANNOTATION_RESERVED

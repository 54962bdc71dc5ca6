"""Test case 3: an assignment that central did not make for this pod, or that was changed, is refused; no device is granted
twice.

Naive versions that fail: a node that verifies the signature but not the pod's uid; a node that serves an assignment without
checking the device's holder; a node that requires signatures and accepts an unsigned assignment.
"""

import threading
from uuid import uuid4

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lading.reasons import Reason
from lading.vocabulary import ASSIGNMENT, ASSIGNMENT_SIGNATURE
from simnode.cri import CriError
from tests.hostile.front import Front, annotated, assignment
from tests.node.site import refusal_of


@pytest.fixture
def uid() -> str:
    return str(uuid4())


def test_node_name_preset_with_an_assignment_by_hand(signed: Front, uid: str) -> None:
    """Check a pod with `spec.nodeName` set by its author: it bypasses every scheduler, and may have any annotation."""
    text = assignment(uid, signed.gpu(0))
    assert signed.refused({ASSIGNMENT: text}, uid=uid).reason is Reason.SIGNATURE_MISSING
    assert signed.refused({"lading.dev/gpus": "0"}, uid=uid).reason is Reason.FORM_NOT_ACCEPTED
    assert signed.refused({"lading.dev/policy": "binpack"}, uid=uid).reason is Reason.ASSIGNMENT_MISSING
    own_key = annotated(text, key=Ed25519PrivateKey.generate())
    assert signed.refused(own_key, uid=uid).reason is Reason.SIGNATURE_INVALID
    assert signed.refused(annotated(text, key_id="mine"), uid=uid).reason is Reason.SIGNATURE_KEY_UNKNOWN
    for written in ("", "none", "ed25519:k1:", "ed25519:k1:" + "A" * 86 + "==", "ed25519::x", "rsa:k1:AAAA"):
        refused = signed.refused({ASSIGNMENT: text, ASSIGNMENT_SIGNATURE: written}, uid=uid)
        assert refused.reason is Reason.SIGNATURE_INVALID


def test_changed_after_it_was_signed(signed: Front, uid: str) -> None:
    text = assignment(uid, signed.gpu(0))
    signature = annotated(text)[ASSIGNMENT_SIGNATURE]
    for changed in (
        text.replace(signed.gpu(0), signed.gpu(1)),
        text.replace('"main"', '"side"'),
        text.replace('"gen":1', '"gen":2'),
        text + " ",
        text[:-1] + ',"x":1}',
        text.replace("gpus", "gpu\\u0073"),  # the same JSON
    ):
        assert changed != text
        refused = signed.refused({ASSIGNMENT: changed, ASSIGNMENT_SIGNATURE: signature}, uid=uid)
        assert refused.reason is Reason.SIGNATURE_INVALID


class Claim(threading.Thread):
    """Create a pod with an assignment to the card at the same moment as others, and keep it until all have tried."""

    def __init__(self, front: Front, together: threading.Barrier) -> None:
        super().__init__()
        self._front = front
        self._together = together
        self.outcome = ""

    def run(self) -> None:
        uid = str(uuid4())
        with self._front.pod(annotated(assignment(uid, self._front.gpu(3))), uid) as pod:
            self._together.wait(10)
            try:
                pod.create_container()
                self.outcome = "granted"
            except CriError as e:
                self.outcome = refusal_of(e).reason
            self._together.wait(10)


def test_two_pods_with_an_assignment_each_to_one_card(signed: Front) -> None:
    """Assign one card to several pods with valid signatures, as a fault of central could: only one pod gets the card."""
    for _ in range(5):
        together = threading.Barrier(4)
        claims = [Claim(signed, together) for _ in range(4)]
        for claim in claims:
            claim.start()
        for claim in claims:
            claim.join()
        assert sorted(claim.outcome for claim in claims) == [Reason.DEVICE_HELD] * 3 + ["granted"]

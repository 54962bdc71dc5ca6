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
from tests.hostile.front import Front, annotated, assignment, devices
from tests.node.site import Site, granted_in, refusal_of


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


def test_another_pods_or_another_nodes(signed: Front, uid: str) -> None:
    copied = annotated(assignment(uid, signed.gpu(0)))
    with signed.created(copied, uid=uid):
        assert signed.refused(copied).reason is Reason.ASSIGNMENT_OTHER_POD
    another_node = annotated(assignment(uid, signed.gpu(0), node="n2"))
    assert signed.refused(another_node, uid=uid).reason is Reason.ASSIGNMENT_OTHER_NODE


def test_changed_after_it_was_granted(signed: Front, uid: str) -> None:
    """Check that neither a newer nor an older signed assignment replaces the assignment of an existing container."""
    with signed.pod({}, uid) as pod:

        def create(name: str, gpu: int, gen: int) -> set[str]:
            pod.config.annotations.update(annotated(assignment(uid, signed.gpu(gpu), gen=gen, container=name)))
            return devices(signed.runtime.created[pod.create_container(name, attempt=len(signed.runtime.asked)).id])

        def refused(name: str, gpu: int, gen: int) -> Reason:
            with pytest.raises(CriError) as caught:
                create(name, gpu, gen)
            return refusal_of(caught.value).reason

        assert signed.card(0) in create("main", 0, gen=5)
        assert refused("main", 1, gen=6) is Reason.ASSIGNMENT_CHANGED
        assert refused("side", 1, gen=4) is Reason.ASSIGNMENT_STALE
        assert signed.card(0) in create("main", 0, gen=5)  # a restarted container has what it had


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


@pytest.mark.node
def test_on_containerd(real: Site, uid: str) -> None:
    text = assignment(uid, real.gpu(0))
    with real.kubelet.pod("by-hand", uid=uid, annotations={ASSIGNMENT: text}) as pod:
        assert real.refused(pod).reason is Reason.SIGNATURE_MISSING
    with real.kubelet.pod("assigned", uid=uid, annotations=annotated(text)) as pod:
        container = pod.run_container()
        assert real.see(container).gpus == (real.gpu(0),)
        assert granted_in(container) == ((real.gpu(0),), ())
        with real.kubelet.pod("copied", annotations=annotated(text)) as thief:
            assert real.refused(thief).reason is Reason.ASSIGNMENT_OTHER_POD
        other = str(uuid4())
        with real.kubelet.pod("also-signed", uid=other, annotations=annotated(assignment(other, real.gpu(0)))) as second:
            assert real.refused(second).reason is Reason.DEVICE_HELD
        pod.config.annotations.update(annotated(assignment(uid, real.gpu(1), gen=2)))
        assert real.refused(pod, attempt=1).reason is Reason.ASSIGNMENT_CHANGED
        assert real.see(container).gpus == (real.gpu(0),)

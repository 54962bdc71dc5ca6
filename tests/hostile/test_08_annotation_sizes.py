"""Test case 8: annotations of 262,144 bytes (Kubernetes' limit), one byte less, one byte more, and far larger by the socket.

Annotations arrive whole, or the call is refused. They are never cut, because a cut assignment could mean something else.

Naive version that fails: an answer, or a request to a hook, through a client with gRPC's default limit of 4 MiB.
"""

import grpc
import pytest

from lading.reasons import Reason
from lading.vocabulary import ASSIGNMENT, GRANT
from protos.cri.runtime.v1 import api_pb2 as cri
from simnode.cri import CriError
from tests.hostile.front import Front, assignment, devices
from tests.hostile.measure import MIB, memory_growth
from tests.hostile.runtime import LIMIT

KUBERNETES = 262_144  # maximum bytes of all keys and values together: apimachinery, TotalAnnotationSizeLimitB
SIZES = (KUBERNETES - 1, KUBERNETES, KUBERNETES + 1, 1 * MIB, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 12 * MIB)
GUARDED = {"lading.dev/gpus": "0"}
GROWTH = 240 * MIB  # some copies of the largest request; 210 were seen on a busy machine


def filled(annotations: dict[str, str], size: int) -> dict[str, str]:
    """Add an annotation so that all annotations have this size. Its last characters show whether it was cut."""
    rest = size - size_of(annotations) - len("fill")
    return {**annotations, "fill": "é" * (rest // 2 - 4) + "x" * (rest % 2) + "end.end."}


def size_of(annotations: dict[str, str]) -> int:
    return sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())


@pytest.mark.parametrize("of_pod", [{}, GUARDED], ids=["plain", "guarded"])
@pytest.mark.parametrize("size", SIZES)
def test_of_a_pod(by_hand: Front, of_pod: dict[str, str], size: int) -> None:
    annotations = filled(of_pod, size)
    assert size_of(annotations) == size
    pids = by_hand.lading.proxy.pid, by_hand.lading.hooks.pid
    with memory_growth(pids[0]) as of_proxy, memory_growth(pids[1]) as of_hooks, by_hand.created(annotations) as request:
        run = cri.RunPodSandboxRequest.FromString(by_hand.runtime.requests("RunPodSandbox")[-1])
        for arrived in (run.config.annotations, request.sandbox_config.annotations):
            assert annotations.items() <= dict(arrived).items()
        assert (by_hand.card(0) in devices(request)) is bool(of_pod)
    assert of_proxy.bytes < GROWTH
    assert of_hooks.bytes < GROWTH


@pytest.mark.parametrize("of_pod", [{}, GUARDED], ids=["plain", "guarded"])
def test_of_a_container(by_hand: Front, of_pod: dict[str, str]) -> None:
    for size in SIZES:
        annotations = filled({}, size)
        with by_hand.created(of_pod, annotations=annotations) as request:
            arrived = dict(request.config.annotations)
            assert annotations.items() <= arrived.items()
            assert (GRANT in arrived) is bool(of_pod)


@pytest.mark.parametrize("of_pod", [{}, GUARDED], ids=["plain", "guarded"])
def test_more_than_the_runtime_takes(by_hand: Front, of_pod: dict[str, str]) -> None:
    """Check that the answer is the same as without Lading."""
    before = len(by_hand.runtime.asked)
    with pytest.raises(CriError) as caught, by_hand.created(filled(of_pod, LIMIT + 1)):
        pass
    assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    with by_hand.pod(of_pod) as pod:
        pod.config.annotations.update(filled({}, LIMIT - 1000))  # the request fits, but not with the fields that a grant adds
        with pytest.raises(CriError) as caught:
            pod.create_container(annotations={"fill": "x" * 900})
        assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "CreateContainer" not in {method for method, _ in by_hand.runtime.asked[before:]}


@pytest.mark.parametrize("of_size", [KUBERNETES - 1, KUBERNETES, KUBERNETES + 1])
def test_an_assignment(by_central: Front, of_size: int) -> None:
    uid = f"pod-of-{of_size}"
    text = assignment(uid, by_central.gpu(0))
    text = text[:-1] + ',"x":"' + "x" * (of_size - len(text) - len(',"x":""')) + '"}'
    assert len(text) == of_size
    if of_size > KUBERNETES:
        assert by_central.refused({ASSIGNMENT: text}, uid=uid).reason is Reason.ANNOTATION_MALFORMED
    else:
        with by_central.created({ASSIGNMENT: text}, uid=uid) as request:
            assert by_central.card(0) in devices(request)

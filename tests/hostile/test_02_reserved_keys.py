"""Test case 2: a pod, container or checkpoint has annotations that only the node writes, or that make the runtime act.

Naive versions that fail: a check of the pod's annotations only; a RestorePod that is forwarded; an existing grant that is
served unchecked. tests/unit/hooks/ledger/test_reconcile.py has containers with a grant of another holder,
tests/unit/runtimeproxy/adjustment/test_merge.py hooks that set these annotations.
"""

import gzip
from dataclasses import replace

import grpc
import pytest

from hooks.model.assignment import ContainerRequest, GpuRequest, GrantedDevices, GrantedGpu
from hooks.model.grant import render_annotation
from lading.http2.messages import GrpcStatus
from lading.reasons import Reason
from lading.vocabulary import ATTACHMENTS, GRANT, GpuUuid
from protos.cri.runtime.v1 import api_pb2 as cri
from simnode.cri import CriError
from tests.fakes import holders
from tests.hostile import raw
from tests.hostile.front import Front
from tests.node.site import eventually, refusal_of

RESTORE = "/runtime.v1.RuntimeService/RestorePod"
GUARDED = {"lading.dev/gpus": "0"}
RESERVED = {
    "cdi.k8s.io/nvidia": "nvidia.com/gpu=all",
    "cdi.k8s.io/": "nvidia.com/gpu=all",
    "org.systemd.property.DeviceAllow": "[('/dev/nvidia7', 'rwm')]",
    "org.systemd.property.": "x",
    GRANT: "{}",
    ATTACHMENTS: "[]",
}
OURS = {GRANT, ATTACHMENTS}  # annotations that Lading's own hook writes


@pytest.mark.parametrize("key", RESERVED)
def test_set_by_a_pod(by_hand: Front, key: str) -> None:
    assert by_hand.refused({**GUARDED, key: RESERVED[key]}).reason is Reason.ANNOTATION_RESERVED
    # and where the annotation came to a pod whose sandbox is there already
    with by_hand.pod(GUARDED) as pod:
        pod.config.annotations[key] = RESERVED[key]
        with pytest.raises(CriError) as caught:
            pod.create_container()
        assert refusal_of(caught.value).reason is Reason.ANNOTATION_RESERVED


@pytest.mark.parametrize("key", RESERVED)
def test_set_on_a_container(by_hand: Front, key: str) -> None:
    refused = by_hand.refused(GUARDED, annotations={key: RESERVED[key]})
    assert refused.reason is Reason.ANNOTATION_RESERVED
    assert key in refused.message


def test_the_grant_is_nobodys_to_bring_and_the_rest_of_a_pod_that_is_not_ours_is_its_own(by_hand: Front) -> None:
    assert by_hand.refused({GRANT: "{}"}).reason is Reason.ANNOTATION_RESERVED
    assert by_hand.refused({}, annotations={GRANT: "{}"}).reason is Reason.ANNOTATION_RESERVED
    others = {key: value for key, value in RESERVED.items() if key not in OURS}
    with by_hand.created({}, annotations=others) as request:  # kubelet sets these annotations for a device plugin
        assert others.items() <= dict(request.config.annotations).items()


# Checkpoints


def restore(front: Front, message: bytes, *, compress: bool) -> grpc.StatusCode:
    """Call RestorePod through the proxy. Lading's copy of CRI does not have this method, so its request is bytes."""
    compression = grpc.Compression.Gzip if compress else grpc.Compression.NoCompression
    with grpc.insecure_channel(f"unix:{front.lading.cri_socket}") as channel:
        try:
            channel.unary_unary(RESTORE, bytes, bytes)(message, compression=compression, timeout=10)
        except grpc.RpcError as e:
            code = e.code()
            assert isinstance(code, grpc.StatusCode)
            return code
    return grpc.StatusCode.OK


@pytest.mark.parametrize("compress", [False, True])
def test_a_pod_that_is_restored_past_the_hooks(by_hand: Front, compress: bool) -> None:
    before = len(by_hand.runtime.requests("RestorePod"))
    guarded = cri.RunPodSandboxRequest(config=cri.PodSandboxConfig(annotations=GUARDED)).SerializeToString()
    assert restore(by_hand, guarded + b"\x1a\x01x" * 9, compress=compress) is grpc.StatusCode.FAILED_PRECONDITION
    assert len(by_hand.runtime.requests("RestorePod")) == before
    plain = cri.RunPodSandboxRequest(config=cri.PodSandboxConfig(annotations={"a": "b" * 99})).SerializeToString()
    assert restore(by_hand, plain, compress=compress) is grpc.StatusCode.OK
    assert by_hand.runtime.requests("RestorePod")[before:] == [plain]


def test_a_restore_hidden_behind_an_empty_gzip_member(by_hand: Front) -> None:
    """Check all members of a gzip stream: Go's gzip reads on after the first member, which alone is an innocent request."""
    guarded = cri.RunPodSandboxRequest(config=cri.PodSandboxConfig(annotations=GUARDED)).SerializeToString()
    hidden = gzip.compress(b"") + gzip.compress(guarded)
    before = len(by_hand.runtime.requests("RestorePod"))
    answer = raw.call(by_hand.lading.cri_socket, RESTORE, hidden, flag=1, headers=[(b"grpc-encoding", b"gzip")])
    assert answer.status == GrpcStatus.FAILED_PRECONDITION
    assert len(by_hand.runtime.requests("RestorePod")) == before


def test_an_adopted_grant_does_not_give_what_another_pod_holds(by_hand: Front) -> None:
    """Forge a grant for the own pod's uid, in a checkpoint that is made before the pod requests devices."""
    with by_hand.created({"lading.dev/gpus": "0"}), by_hand.pod({}) as thief:
        forged = replace(
            holders.grant(thief.spec.uid, "main"),
            request=ContainerRequest(gpus=(GpuRequest(name="1", pod_wide=True),)),
            devices=GrantedDevices(gpus=(GrantedGpu(uuid=GpuUuid(by_hand.gpu(0)), pod_wide=True),)),
        )
        restored = thief.create_container("main")
        by_hand.runtime.containers[restored.id].annotations[GRANT] = render_annotation(forged)
        by_hand.lading.hooks.restart()

        def adopted() -> None:
            assert forged.key in {grant.key for grant in by_hand.grants()}

        eventually(adopted)
        restored.remove()
        thief.config.annotations["lading.dev/gpus"] = "1"
        with pytest.raises(CriError) as caught:
            thief.create_container("main", attempt=1)
        assert refusal_of(caught.value).reason is Reason.DEVICE_HELD

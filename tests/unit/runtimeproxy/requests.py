"""Requests of a real kubelet (tests/golden/cri) and small ones made here."""

from pathlib import Path

from protos.cri.runtime.v1 import api_pb2 as cri
from runtimeproxy.call.calls import METHODS, HeldCall, Method

GOLDEN = Path(__file__).parents[2] / "golden" / "cri"
CREATE_GUARDED = "CreateContainer-gpu-by-hand-train-0"
CREATE_PLAIN = "CreateContainer-plain-c-0"
RUN_GUARDED = "RunPodSandbox-gpu-by-hand"
RUN_PLAIN = "RunPodSandbox-plain"


def golden(name: str) -> bytes:
    return (GOLDEN / f"{name}.binpb").read_bytes()


def goldens(method: str) -> list[str]:
    return sorted(path.stem for path in GOLDEN.glob(f"{method}-*.binpb"))


def method(name: str) -> Method:
    return METHODS[f"/runtime.v1.RuntimeService/{name}".encode()]


def held(name: str, message: bytes, deadline: float | None = None) -> HeldCall:
    return HeldCall(method=method(name), message=message, deadline=deadline, traceparent="00-ab-cd-01")


def create(annotations: dict[str, str] | None = None, *, sandbox_id: str = "s1", namespace: str = "default") -> bytes:
    """A CreateContainer of pod p, container c; `annotations` of the pod."""
    request = cri.CreateContainerRequest(pod_sandbox_id=sandbox_id)
    request.config.metadata.name = "c"
    request.sandbox_config.metadata.name = "p"
    request.sandbox_config.metadata.namespace = namespace
    request.sandbox_config.metadata.uid = "uid-p"
    request.sandbox_config.annotations.update(annotations or {})
    return request.SerializeToString()


def run(annotations: dict[str, str] | None = None, *, handler: str = "") -> bytes:
    request = cri.RunPodSandboxRequest(runtime_handler=handler)
    request.config.metadata.name = "p"
    request.config.metadata.namespace = "default"
    request.config.metadata.uid = "uid-p"
    request.config.annotations.update(annotations or {})
    return request.SerializeToString()

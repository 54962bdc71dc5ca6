"""Grants and the runtime's lists, as short as a test wants to say them."""

from collections.abc import Mapping
from uuid import UUID

from hooks.assignment.model import ContainerRequest, Devices, Form, GpuRequest, GrantedGpu, GrantedVf
from hooks.ledger.model import Grant, HeldBy, render_annotation
from lading.vocabulary import GRANT, ContainerId, GpuUuid, PciAddress, PodUid, SandboxId
from protos.cri.runtime.v1 import api_pb2 as cri

BOOT = "00000000-0000-4000-8000-000000000001"
LONG_AGO = 1_000_000
NOW = 2_000_000


def gpu_uuid(number: int) -> GpuUuid:
    return GpuUuid(f"GPU-{UUID(int=number)}")


def vf_bdf(number: int) -> PciAddress:
    return PciAddress(f"0000:3b:{number // 8:02x}.{number % 8}")


def whole(*numbers: int) -> Devices:
    return Devices(gpus=tuple(GrantedGpu(uuid=gpu_uuid(n)) for n in numbers))


def share(number: int, *, memory_mib: int = 1024, mig_uuid: str = "") -> Devices:
    return Devices(gpus=(GrantedGpu(uuid=gpu_uuid(number), memory_mib=None if mig_uuid else memory_mib, mig_uuid=mig_uuid),))


def vfs(*numbers: int) -> Devices:
    return Devices(vfs=tuple(GrantedVf(bdf=vf_bdf(n)) for n in numbers))


def grant(
    pod: str = "pod-1",
    container: str = "train",
    devices: Devices | None = None,
    *,
    sandbox: str = "",
    granted_at: int = LONG_AGO,
    containers: Mapping[str, str] | None = None,
) -> Grant:
    devices = whole(0) if devices is None else devices
    return Grant(
        pod=PodUid(pod),
        container=container,
        namespace="default",
        pod_name=f"name-of-{pod}",
        sandbox=SandboxId(sandbox or f"{pod}-s0"),
        form=Form.MANUAL,
        gen=0,
        request=ContainerRequest(gpus=tuple(GpuRequest(name=g.uuid) for g in devices.gpus), any_vfs=len(devices.vfs)),
        devices=devices,
        granted_at=granted_at,
        boot_id=BOOT,
        containers=tuple(HeldBy(id=ContainerId(i), sandbox=SandboxId(s)) for i, s in sorted((containers or {}).items())),
    )


def sandbox(pod: str = "pod-1", *, id: str = "", ready: bool = True) -> cri.PodSandbox:  # noqa: A002  CRI's name
    return cri.PodSandbox(
        id=id or f"{pod}-s0",
        metadata=cri.PodSandboxMetadata(name=f"name-of-{pod}", namespace="default", uid=pod),
        state=cri.SANDBOX_READY if ready else cri.SANDBOX_NOTREADY,
    )


def container(
    id: str = "c0",  # noqa: A002  CRI's name
    *,
    pod: str = "pod-1",
    name: str = "train",
    sandbox: str = "",
    state: cri.ContainerState = cri.CONTAINER_RUNNING,
    wears: Grant | str | None = None,
    created_at: int = LONG_AGO,
) -> cri.Container:
    annotation = render_annotation(wears) if isinstance(wears, Grant) else wears
    return cri.Container(
        id=id,
        pod_sandbox_id=sandbox or f"{pod}-s0",
        metadata=cri.ContainerMetadata(name=name),
        state=state,
        created_at=created_at * 1_000_000_000,
        labels={"io.kubernetes.pod.uid": pod},
        annotations={} if annotation is None else {GRANT: annotation},
    )

"""Build grants, rows of the journal and the runtime's lists with short calls."""

from collections.abc import Mapping, Sequence
from uuid import UUID

from hooks.ledger.attachment import render_attachments
from hooks.model.assignment import ContainerRequest, Form, GpuRequest, GrantedDevices, GrantedGpu, GrantedVf
from hooks.model.attachment import Attachment, Netdev, NetnsId, Route, Step, VfConfig, VfLinkState, VfSettings, VlanProtocol
from hooks.model.grant import Grant, GrantKey, HeldBy, render_annotation
from hooks.model.inventory import CharDevice, Vf
from hooks.model.lists import ContainerState, ListedContainer, ListedSandbox
from lading.vocabulary import ContainerId, GpuUuid, PciAddress, PodUid, SandboxId

BOOT = "00000000-0000-4000-8000-000000000001"
LONG_AGO = 1_000_000
NOW = 2_000_000
SETTINGS = VfSettings(  # all settings of a VF
    config=VfConfig(
        mac="02:00:5e:10:00:01",
        vlan=100,
        vlan_qos=3,
        vlan_proto=VlanProtocol.DOT1AD,
        min_tx_rate=100,
        max_tx_rate=1000,
        spoofchk=False,
        trust=True,
        link_state=VfLinkState.ENABLE,
    ),
    mtu=9000,
    addresses=("10.0.0.2/24", "fd00::2/64"),
    routes=(Route("10.1.0.0/16", "10.0.0.1"), Route("0.0.0.0/0"), Route("fd01::/64", "fd00::1")),
)


def gpu_uuid(number: int) -> GpuUuid:
    return GpuUuid(f"GPU-{UUID(int=number)}")


def vf_bdf(number: int) -> PciAddress:
    return PciAddress(f"0000:3b:{number // 8:02x}.{number % 8}")


def whole(*numbers: int) -> GrantedDevices:
    return GrantedDevices(gpus=tuple(GrantedGpu(uuid=gpu_uuid(n)) for n in numbers))


def share(number: int, *, memory_mib: int = 1024, mig_uuid: str = "") -> GrantedDevices:
    return GrantedDevices(
        gpus=(GrantedGpu(uuid=gpu_uuid(number), memory_mib=None if mig_uuid else memory_mib, mig_uuid=mig_uuid),)
    )


def vfs(*numbers: int) -> GrantedDevices:
    return GrantedDevices(vfs=tuple(GrantedVf(bdf=vf_bdf(n)) for n in numbers))


def grant(
    pod: str = "pod-1",
    container: str = "train",
    devices: GrantedDevices | None = None,
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


def row(
    number: int = 1,
    pod: str = "pod-1",
    *,
    sandbox: str = "",
    generation: int = 1,
    step: Step = Step.ATTACHED,
    rdma: bool = False,
    failure: str = "",
) -> Attachment:
    """Return the attachment of a VF whose network device was eth<number>, and its ibdev mlx5_<number>."""
    path = f"/dev/infiniband/uverbs{number}"
    return Attachment(
        vf=Vf(
            bdf=vf_bdf(number),
            pf=vf_bdf(0),
            index=number - 1,
            driver="mlx5_core",
            numa=0,
            ibdev=f"mlx5_{number}",
            netdev=f"eth{number}",
            link_layer="Ethernet",
            uverbs=CharDevice(path=path, host_path=path, major=231, minor=number),
        ),
        generation=generation,
        pod=PodUid(pod),
        namespace="default",
        pod_name=f"name-of-{pod}",
        sandbox=SandboxId(sandbox or f"{pod}-s0"),
        netns=f"/run/netns/{pod}",
        netns_id=NetnsId(4, 4026532000 + number),
        boot_id=BOOT,
        ifname=f"rdma{number}",
        settings=VfSettings(),
        netdev=Netdev(name=f"eth{number}", mac=f"02:00:00:00:00:{number:02x}", mtu=1500, up=False),
        config=VfConfig(),
        rdma=rdma,
        step=step,
        since=LONG_AGO,
        failure=failure,
    )


def sandbox(
    pod: str = "pod-1",
    *,
    id: str = "",  # noqa: A002  CRI's name
    ready: bool = True,
    annotations: Mapping[str, str] | None = None,
) -> ListedSandbox:
    return ListedSandbox(
        id=SandboxId(id or f"{pod}-s0"),
        pod=PodUid(pod),
        namespace="default",
        pod_name=f"name-of-{pod}",
        ready=ready,
        annotations=annotations or {},
    )


def container(
    id: str = "c0",  # noqa: A002  CRI's name
    *,
    pod: str = "pod-1",
    name: str = "train",
    sandbox: str = "",
    state: ContainerState = ContainerState.RUNNING,
    wears: Grant | str | None = None,
    attached: Sequence[Attachment] | str = (),
    created_at: int = LONG_AGO,
) -> ListedContainer:
    return ListedContainer(
        id=ContainerId(id),
        sandbox=SandboxId(sandbox or f"{pod}-s0"),
        key=GrantKey(PodUid(pod), name),
        state=state,
        created_at=created_at * 1_000_000_000,
        grant=render_annotation(wears) if isinstance(wears, Grant) else wears,
        attachments=attached if isinstance(attached, str) else render_attachments(attached),
    )

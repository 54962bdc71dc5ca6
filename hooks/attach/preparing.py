"""Prepare an attachment before anything is changed: find its namespace, its name there, and the current state of the VF.

`prepare` takes a VF that a pod requests. It returns the attachment to begin, None if no device has to move, or a refusal. It
refuses a pod in the host's network namespace, and a requested name that the pod's namespace already has. It raises KernelError
if a device of the VF is not found, or if several are found.

Tests: tests/unit/hooks/node/test_attaching.py
"""

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, replace
from functools import partial

from hooks.attach import plan
from hooks.attach.kernel import KernelError
from hooks.attach.steps import Steps, Work
from hooks.model.assignment import Refusal
from hooks.model.attachment import (
    STRAY,
    Attachment,
    Netdev,
    NetnsId,
    PodOf,
    RdmaDevice,
    RdmaMode,
    Step,
    VfConfig,
    VfSettings,
    WantedVf,
)
from hooks.model.inventory import INFINIBAND
from lading.reasons import Reason
from lading.vocabulary import SandboxId


@dataclass(slots=True, kw_only=True)
class Attaching(Work):
    wanted: WantedVf
    ifname: str  # device's name in the pod; replaced if it is in use and was not requested
    pod: PodOf
    deadline: float  # seconds on the event loop's clock


def refuse(work: Attaching, reason: Reason, cause: str) -> Refusal:
    pod = f"{work.pod.namespace}/{work.pod.pod_name}"
    return Refusal(reason=reason, message=f"cannot attach VF {work.vf} to pod {pod}: {cause}")


@dataclass(slots=True)
class Preparing:
    steps: Steps
    netns_of: Callable[[SandboxId], Awaitable[str | None]]
    names_of: Callable[[Attaching], Collection[str]]  # present and planned names of the sandbox's other VFs
    boot_id: str
    clock: Callable[[], float]

    async def prepare(self, work: Attaching) -> Attachment | Refusal | None:
        wanted, vf, pod, kernel = work.wanted, work.wanted.vf, work.pod, self.steps.kernel
        settings = wanted.settings if wanted.netdev else VfSettings()
        mode = await self.steps.call(work, "reading the RDMA mode", kernel.rdma_mode) if vf.ibdev else RdmaMode.NONE
        rdma = mode is RdmaMode.EXCLUSIVE
        if not wanted.netdev and not rdma:
            return None
        result = await self._find_netns(work)
        if isinstance(result, Refusal):
            return result
        netns, netns_id = result
        config = VfConfig()
        if settings.config.values:
            read = partial(kernel.read_vf, vf.pf, vf.index)
            config = await self.steps.call(work, "reading its settings at its PF", read)
        netdev = await self._find_netdev(work) if wanted.netdev else None
        if netdev is not None and (refusal := await self._settle_name(work, netns)):
            return refusal
        ibdev = await self._find_ibdev(work) if rdma else None
        return Attachment(
            vf=replace(vf, ibdev=ibdev.name) if ibdev is not None else vf,
            generation=0,  # placeholder; the journal gives the number
            pod=pod.pod,
            namespace=pod.namespace,
            pod_name=pod.pod_name,
            sandbox=pod.sandbox,
            netns=netns,
            netns_id=netns_id,
            boot_id=self.boot_id,
            ifname=work.ifname,
            settings=settings,
            netdev=netdev,
            config=config,
            rdma=rdma,
            step=Step.RECORDED,
            since=int(self.clock()),
            mac_owner=plan.first_mac_owner(settings, netdev),
            ibdev_number=ibdev.number if ibdev is not None else None,
        )

    async def _find_netns(self, work: Attaching) -> tuple[str, NetnsId] | Refusal:
        work.doing = "asking the runtime for the pod's network namespace"
        netns = await self.netns_of(work.pod.sandbox)
        if netns == "":
            return refuse(work, Reason.HOST_NETWORK, "it is in the host's network already, which the pod uses (hostNetwork)")
        find = partial(self.steps.kernel.netns_id, netns or "")
        netns_id = await self.steps.call(work, "finding the pod's network namespace", find) if netns else None
        if netns is None or netns_id is None:
            raise KernelError("the runtime names no network namespace of the pod that is there")
        return netns, netns_id

    async def _find_netdev(self, work: Attaching) -> Netdev | None:
        find = partial(self.steps.kernel.host_link, work.vf)
        link = await self.steps.call(work, "looking for its network device", find)
        if link is not None:
            read = partial(self.steps.kernel.read_kept, work.vf, link.name)
            kept = await self.steps.call(work, "reading the settings of its network device", read)
            names = plan.kept_altnames(link)
            return Netdev(name=link.name, mac=link.mac, mtu=link.mtu, up=link.up, parent=link.parent, altnames=names, kept=kept)
        if work.wanted.vf.link_layer == INFINIBAND:  # an InfiniBand VF without IPoIB has no network device
            return None
        raise KernelError(STRAY)

    async def _settle_name(self, work: Attaching, netns: str) -> Refusal | None:
        """Choose a name that is free in the pod's namespace, or refuse a requested name that is in use. Other plugins (Multus)
        make devices there before Lading does, and containers of the pod may."""
        activity = "looking which names the pod's namespace has"
        taken = await self.steps.call(work, activity, partial(self.steps.kernel.names, netns))
        if work.ifname not in taken:
            return None
        if work.wanted.ifname:
            return refuse(
                work,
                Reason.ATTACH_FAILED,
                f"its pod has another network device called {work.ifname}, as the VF is to be called: ask for another name of"
                " that one (of a network attachment: interface in the pod's annotation k8s.v1.cni.cncf.io/networks), or of the"
                " VF (ifname in the assignment)",
            )
        work.ifname = plan.choose_ifname({*taken, *self.names_of(work)})
        return None

    async def _find_ibdev(self, work: Attaching) -> RdmaDevice:
        find = partial(self.steps.kernel.host_ibdev, work.vf, None)
        ibdev = await self.steps.call(work, "looking for its RDMA device", find)
        if ibdev is None:
            raise KernelError(f"{work.wanted.vf.ibdev} is not in the host's network namespace")
        return ibdev

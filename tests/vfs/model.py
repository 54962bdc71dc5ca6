"""A kernel with VFs, as `hooks.attach.kernel` asks of it: namespaces with links, PFs' tables, ibdevs. All in memory, no thread.

It is as strict as Linux where that matters: a name is taken once in a namespace, be it by an alternative name, a MAC is not
changed while a device is up, a namespace is told from a later one at its path. What a pod changed of its device besides goes
with it (`kept`), also when its namespace ends. A device whose namespace ends comes back to the
host's, down, under the name that it had there or as dev<N>; its ibdev comes back too. `late` keeps them out of sight until
`arrive`.

Faults are by method: `fail` makes the next calls raise before or after they take effect, `hold` makes them hang. `point` learns
of every moment at which a daemon may be killed; a test that kills the daemon there calls `die`. `changes` is what took effect.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from enum import Enum, auto
from typing import Any, Final

from hooks.attach.kernel import KernelError, NameTakenError, NetnsMissingError, StateVersion
from hooks.model.attachment import KeptSetting, Link, NetnsId, RdmaDevice, RdmaMode, Route, VfConfig, VfLinkState, VlanProtocol
from hooks.model.inventory import CharDevice, Vf
from lading.vocabulary import PciAddress

# Settings that a PF keeps of a VF at first: these are not the usual defaults.
UNTOUCHED: Final = VfConfig(
    mac="02:00:5e:aa:00:01",
    vlan=7,
    vlan_qos=2,
    vlan_proto=VlanProtocol.DOT1Q,
    min_tx_rate=0,
    max_tx_rate=25000,
    spoofchk=False,
    trust=False,
    link_state=VfLinkState.ENABLE,
)


NO_MAC: Final = "00:00:00:00:00:00"

# Settings that a device keeps from namespace to namespace, whatever a pod did with it (net/core/dev.c,
# __dev_change_net_namespace).
KEPT: Final = {"xdp": "", "flags": "multicast", "tx-queue-length": "1000", "ring-rx": "1024"}


class Crash(BaseException):
    """The daemon was killed here. No Exception: nothing of it may run on."""


class Held(BaseException):
    """This call hangs, and nothing of it took effect yet: begun anew once the gate is open, it is the same call. Stands for a
    thread that is stuck in the kernel, so only what is there in place of threads sees it."""

    def __init__(self, gate: asyncio.Event) -> None:
        self.gate = gate


class When(Enum):
    BEFORE = auto()
    AFTER = auto()  # it took effect, and failed or never answered


def vf(number: int, *, ethernet: bool = True) -> Vf:
    """VF `number` of PF 0000:3b:00.0."""
    return Vf(
        bdf=PciAddress(f"0000:3b:{(number + 1) // 8:02x}.{(number + 1) % 8}"),
        pf=PciAddress("0000:3b:00.0"),
        index=number,
        driver="mlx5_core",
        numa=0,
        ibdev=f"mlx5_{number + 1}",
        netdev=f"ens1v{number}" if ethernet else "",
        link_layer="Ethernet" if ethernet else "InfiniBand",
        uverbs=CharDevice(
            path=f"/dev/infiniband/uverbs{number}", host_path=f"/dev/infiniband/uverbs{number}", major=231, minor=number
        ),
    )


@dataclass(slots=True)
class Namespace:
    id: NetnsId
    links: dict[str, Link] = field(default_factory=dict)
    ibdevs: set[str] = field(default_factory=set)
    addresses: dict[str, set[str]] = field(default_factory=dict)  # the key is a link's name
    routes: dict[str, set[Route]] = field(default_factory=dict)


@dataclass(slots=True)
class Fault:
    when: When
    count: int


class ModelKernel:
    def __init__(
        self,
        vfs: Iterable[Vf],
        *,
        mode: RdmaMode = RdmaMode.SHARED,
        parents: bool = True,
        driver: str = "mlx5_core",
        own_macs: bool = False,
    ) -> None:
        """`parents`: whether it tells the PCI address of a link's device. `driver`: of the PF, igb or mlx5_core."""
        self.driver = driver
        self.own_macs = own_macs
        self.vfs = {one.bdf: one for one in vfs}
        self.mode = mode
        self.parents = parents
        self.late = False
        self.dead = False
        self.changes: list[str] = []
        self.point: Callable[[str], None] = lambda _: None  # told of the moments before and after each call
        self._faults: dict[str, Fault] = {}
        self._gates: dict[str, asyncio.Event] = {}
        self._inodes = 4026532000
        self.boot()

    # ---- what happens to a machine

    def boot(self) -> None:
        """Reset the model as a boot does: VFs are made anew, in the host's namespace, and no other namespace exists."""
        self.host = self._namespace()
        self.pods: dict[str, Namespace] = {}
        self.arriving: list[tuple[str, Link]] = []
        self.arriving_ibdevs: set[str] = set()
        self.table = {(one.pf, one.index): UNTOUCHED for one in self.vfs.values()}
        self.fixed = {(one.pf, one.index) for one in self.vfs.values()}  # a MAC was set through the PF (IGB_VF_FLAG_PF_SET_MAC)
        self.indexes = {one.bdf: number for number, one in enumerate(self.vfs.values(), start=10)}
        self.ibdev_numbers = {one.ibdev: number for number, one in enumerate(self.vfs.values(), start=3)}
        self.kept = {index: dict(KEPT) for index in self.indexes.values()}
        self.ibdevs_of = {one.bdf: number for number, one in enumerate(self.vfs.values(), start=3)}
        for one in self.vfs.values():
            self.host.ibdevs.add(one.ibdev)
            if one.netdev:
                self._place(self.host, self._original(one))
            if self.own_macs:
                self._leave_mac_to(one)

    def add_netns(self, path: str) -> NetnsId:
        self.pods[path] = self._namespace()
        return self.pods[path].id

    def end_netns(self, path: str) -> None:
        deleted = self.pods.pop(path, None)
        if deleted is None:
            return
        self.arriving += [(link.name, link) for link in deleted.links.values() if link.index in self.indexes.values()]
        self.arriving_ibdevs |= deleted.ibdevs
        if not self.late:
            self.arrive()

    def arrive(self) -> None:
        """Move the devices of ended namespaces into the host's namespace (default_device_exit_net)."""
        for name, link in self.arriving:
            taken = self._names(self.host)
            free = name if name not in taken else f"dev{link.index}"
            kept = tuple(other for other in link.altnames if other not in taken)
            self._place(self.host, replace(link, name=free, up=False, altnames=kept))
        self.host.ibdevs |= self.arriving_ibdevs
        self.arriving, self.arriving_ibdevs = [], set()

    def _leave_mac_to(self, one: Vf) -> None:
        """The VF has had its own MAC from the start: no one gave its PF one. igb reports it nevertheless."""
        self.fixed.discard((one.pf, one.index))
        where = self.where(one.bdf)
        mac = where[1].mac if self.driver == "igb" and where is not None else NO_MAC
        self.table[one.pf, one.index] = replace(self.table[one.pf, one.index], mac=mac)

    def change_kept(self, bdf: PciAddress, name: str, value: str) -> None:
        """Change the device as a pod in whose namespace it is."""
        self.kept[self.indexes[bdf]][name] = value

    def where(self, bdf: PciAddress) -> tuple[str, Link] | None:
        """("" for the host, or the path of the pod's namespace; the link) of a VF's network device."""
        for path, namespace in self._everywhere():
            for link in namespace.links.values():
                if link.index == self.indexes[bdf]:
                    return path, link
        return None

    def ibdev_of(self, bdf: PciAddress) -> str:
        return next(name for name, number in self.ibdev_numbers.items() if number == self.ibdevs_of[bdf])

    def where_ibdev(self, ibdev: str) -> str | None:
        return next((path for path, namespace in self._everywhere() if ibdev in namespace.ibdevs), None)

    def rename_ibdev(self, ibdev: str, to: str) -> None:
        """Change it as a pod in whose namespace it is."""
        assert to not in self.ibdev_numbers
        self.arriving_ibdevs = {to if one == ibdev else one for one in self.arriving_ibdevs}
        self.ibdev_numbers[to] = self.ibdev_numbers.pop(ibdev)
        for _, namespace in self._everywhere():
            if ibdev in namespace.ibdevs:
                namespace.ibdevs.remove(ibdev)
                namespace.ibdevs.add(to)

    def reload_ibdev(self, bdf: PciAddress, to: str) -> None:
        """Load its driver anew: another ibdev of that name appears in the host's namespace."""
        old = self.ibdev_of(bdf)
        for _, namespace in self._everywhere():
            namespace.ibdevs.discard(old)
        del self.ibdev_numbers[old]
        self.ibdevs_of[bdf] = self.ibdev_numbers[to] = max(self.ibdevs_of.values()) + 1
        self.host.ibdevs.add(to)

    def names_in(self, namespace: Namespace, *, but: str) -> frozenset[str]:
        """Return the names that are taken there, without those of the device `but`."""
        others = {name: link for name, link in namespace.links.items() if name != but}
        return self._names(replace(namespace, links=others)) | {but}

    # ---- faults

    def fail(self, method: str, *, when: When = When.BEFORE, count: int = 1) -> None:
        """The next `count` calls."""
        self._faults[method] = Fault(when, count)

    def die(self) -> None:
        """Nothing that the daemon does from now on takes effect, until `dead` is False again: a new one was started."""
        self.dead = True
        raise Crash

    def heal(self) -> None:
        self._faults.clear()

    def hold(self, method: str) -> asyncio.Event:
        """Calls of it hang until the event is set."""
        gate = self._gates[method] = asyncio.Event()
        return gate

    # ---- Kernel

    def state_version(self, vf: PciAddress) -> StateVersion:
        """Return the VF's devices as the host's sysfs shows them: not those in another namespace. No fault reaches this."""
        links = (link.name for link in self.host.links.values() if link.index == self.indexes[vf])
        ibdevs = (name for name in self.host.ibdevs if self.ibdev_numbers[name] == self.ibdevs_of[vf])
        return StateVersion(self.indexes[vf], tuple(links), tuple(ibdevs))

    def netns_id(self, netns: str) -> NetnsId | None:
        with self._call("netns_id"):
            return self.pods[netns].id if netns in self.pods else None

    def read_vf(self, pf: PciAddress, index: int) -> VfConfig:
        with self._call("read_vf"):
            if (pf, index) not in self.table:
                raise KernelError(f"PF {pf} has no VF {index}")
            return self.table[pf, index]

    def set_vf(self, pf: PciAddress, index: int, config: VfConfig) -> None:
        with self._call("set_vf"):
            if (pf, index) not in self.table:
                raise KernelError(f"PF {pf} has no VF {index}")
            text = {f.name: value for f in fields(config) if (value := getattr(config, f.name)) is not None}
            self.table[pf, index] = replace(self.table[pf, index], **text)
            if config.mac is not None:
                self._fix_mac(pf, index, config.mac)
            self.changes.append(f"set_vf {index} {' '.join(text)}")

    def host_link(self, vf: PciAddress) -> Link | None:
        with self._call("host_link"):
            return next((link for link in self.host.links.values() if link.index == self.indexes.get(vf)), None)

    def link(self, netns: str | None, name: str) -> Link | None:
        with self._call("link"):
            return self._find(netns).links.get(name)

    def names(self, netns: str) -> frozenset[str]:
        with self._call("names"):
            return self._names(self._find(netns))

    def set_link(
        self, netns: str | None, name: str, *, mac: str | None = None, mtu: int | None = None, up: bool | None = None
    ) -> None:
        with self._call("set_link"):
            link = self._need(netns, name)
            if up is False:
                link = replace(link, up=False)
            if mac is not None and mac != link.mac:
                if link.up:
                    raise KernelError(f"cannot change the MAC of {name}: it is up")
                if not self._tell_mac(link, mac):
                    link = self._reset_mac(link)
                if link.mac != mac and not self._tell_mac(link, mac):
                    raise KernelError(f"cannot set MAC {mac} of {name}: EADDRNOTAVAIL")
            text: dict[str, Any] = {"mac": mac, "mtu": mtu, "up": up}
            self._place(self._find(netns), replace(link, **{key: value for key, value in text.items() if value is not None}))
            self.changes.append(f"set_link {name}")

    def take_mac(self, name: str, mac: str) -> bool:
        with self._call("take_mac"):
            link = replace(self._need(None, name), up=False)
            taken = link.mac == mac or self._tell_mac(link, mac)
            self._place(self.host, replace(link, mac=mac) if taken else link)
            self.changes.append(f"take_mac {name}")
            return taken

    def release_mac(self, pf: PciAddress, index: int, *, unless: str) -> None:
        with self._call("release_mac"):
            if self.table[pf, index].mac != unless:
                self._fix_mac(pf, index, NO_MAC)
                self.changes.append(f"release_mac {index}")

    def confirm_mac(self, pf: PciAddress, index: int, mac: str) -> None:
        with self._call("confirm_mac"):
            if self.table[pf, index].mac != mac:
                self._fix_mac(pf, index, mac)
                self.changes.append(f"confirm_mac {index}")

    def _fix_mac(self, pf: PciAddress, index: int, mac: str) -> None:
        """Set the MAC by the PF: a MAC binds the VF, and zeros release it (igb_ndo_set_vf_mac; mlx5_eswitch_set_vport_mac keeps
        the number)."""
        self.table[pf, index] = replace(self.table[pf, index], mac=mac)
        (self.fixed.discard if mac == NO_MAC else self.fixed.add)((pf, index))

    def _tell_mac(self, link: Link, mac: str) -> bool:
        """Let a device set its own MAC; return whether it may. igb refuses one for a VF whose PF was given one, even the same,
        unless it trusts the VF (igb_set_vf_mac_addr), igbvf then fails with EADDRNOTAVAIL (igbvf_set_mac), and igb reports the
        VF's own MAC as if it were the PF's (igb_set_vf_mac). mlx5_core keeps both apart (mlx5e_set_mac)."""
        at_pf = next(((one.pf, one.index) for one in self.vfs.values() if self.indexes[one.bdf] == link.index), None)
        if self.driver == "igb" and at_pf is not None:
            if at_pf in self.fixed and not self.table[at_pf].trust:
                return False
            self.table[at_pf] = replace(self.table[at_pf], mac=mac)
        return True

    def _reset_mac(self, link: Link) -> Link:
        """Set a device up and down: igbvf takes the MAC that the PF has for it (igbvf_reset, igb_vf_reset_msg)."""
        at_pf = next((one.pf, one.index) for one in self.vfs.values() if self.indexes[one.bdf] == link.index)
        mac = self.table[at_pf].mac
        return replace(link, mac=mac) if mac not in {None, NO_MAC} else link

    def rename(self, name: str, to: str) -> None:
        with self._call("rename"):
            if name not in self.host.links and to in self.host.links:
                return
            link = self._need(None, name)
            if to == name:
                return
            if to in self.host.links:
                raise KernelError(f"cannot rename {name}: {to} is there")
            self._free_altname(self.host, to)
            link = replace(self.host.links.pop(name), name=to, up=False)
            self._place(self.host, link)
            self.changes.append(f"rename {name} {to}")

    def set_altnames(self, name: str, altnames: tuple[str, ...]) -> None:
        with self._call("set_altnames"):
            link = self._need(None, name)
            self._place(self.host, replace(link, altnames=()))
            taken = self._names(self.host)
            self._place(self.host, replace(link, altnames=tuple(other for other in altnames if other not in taken)))
            self.changes.append(f"set_altnames {name}")

    def read_kept(self, vf: PciAddress, name: str) -> tuple[KeptSetting, ...]:
        with self._call("read_kept"):
            return tuple(KeptSetting(*one) for one in self.kept[self._need(None, name).index].items())

    def restore_kept(self, vf: PciAddress, name: str, settings: tuple[KeptSetting, ...]) -> None:
        with self._call("restore_kept"):
            kept = self.kept[self._need(None, name).index]
            if kept | dict(settings) != kept:
                kept |= dict(settings)
                self.changes.append(f"restore_kept {name}")

    def move_in(self, name: str, netns: str, netns_id: NetnsId, to: str) -> None:
        with self._call("move_in"):
            pod = self._find(netns, netns_id)
            if name not in self.host.links and to in pod.links:
                return
            self._move(self.host if name in self.host.links else pod, pod, name, to)

    def move_out(self, netns: str, netns_id: NetnsId, name: str, to: str) -> None:
        with self._call("move_out"):
            pod = self._find(netns, netns_id)
            if name not in pod.links and to in self.host.links:
                return
            self._free_altname(self.host, to)
            self._move(pod, self.host, name, to)

    def configure(self, netns: str, name: str, *, addresses: tuple[str, ...], routes: tuple[Route, ...]) -> None:
        with self._call("configure"):
            pod = self._find(netns)
            self._place(pod, replace(self._need(netns, name), up=True))
            pod.addresses.setdefault(name, set()).update(addresses)
            pod.routes.setdefault(name, set()).update(routes)
            self.changes.append(f"configure {name}")

    def rdma_mode(self) -> RdmaMode:
        with self._call("rdma_mode"):
            return self.mode

    def host_ibdev(self, vf: PciAddress, number: int | None) -> RdmaDevice | None:
        with self._call("host_ibdev"):
            devices = self._devices(self.host.ibdevs)
            known = next((one for one in devices if one.number == number), None)
            return known or next((one for one in devices if one.number == self.ibdevs_of.get(vf)), None)

    def rdma_move_in(self, ibdev: RdmaDevice, netns: str, netns_id: NetnsId) -> None:
        with self._call("rdma_move_in"):
            self._move_ibdev(self.host, self._find(netns, netns_id), ibdev)

    def rdma_move_out(self, netns: str, netns_id: NetnsId, ibdev: RdmaDevice) -> None:
        with self._call("rdma_move_out"):
            self._move_ibdev(self._find(netns, netns_id), self.host, ibdev)

    def rdma_devices(self, netns: str) -> frozenset[RdmaDevice]:
        with self._call("rdma_devices"):
            return self._devices(self._find(netns).ibdevs if self.mode is RdmaMode.EXCLUSIVE else self._all_ibdevs())

    def rdma_rename(self, ibdev: RdmaDevice, to: str) -> None:
        with self._call("rdma_rename"):
            (name,) = (one.name for one in self._devices(self.host.ibdevs) if one.number == ibdev.number)
            if name == to:
                return
            if to in self.ibdev_numbers:
                raise NameTakenError(f"cannot rename {name}: {to} is there")
            self.rename_ibdev(name, to)
            self.changes.append(f"rename {name} {to}")

    # ---- inside

    def _call(self, method: str) -> "_Call":
        return _Call(self, method)

    def enter(self, method: str) -> None:
        if (gate := self._gates.get(method)) and not gate.is_set():
            raise Held(gate)
        if self.dead:
            raise Crash
        self.point(f"before {method}")
        self._strike(method, When.BEFORE)

    def leave(self, method: str) -> None:
        self.point(f"after {method}")
        self._strike(method, When.AFTER)

    def _strike(self, method: str, when: When) -> None:
        fault = self._faults.get(method)
        if fault is None or fault.when is not when:
            return
        fault.count -= 1
        if fault.count == 0:
            del self._faults[method]
        raise KernelError(f"cannot {method}: as the test wants it")

    def _namespace(self) -> Namespace:
        self._inodes += 1
        return Namespace(NetnsId(4, self._inodes))

    def _everywhere(self) -> list[tuple[str, Namespace]]:
        return [("", self.host), *self.pods.items()]

    def _all_ibdevs(self) -> set[str]:
        return {ibdev for _, namespace in self._everywhere() for ibdev in namespace.ibdevs}

    def _original(self, one: Vf) -> Link:
        return Link(
            index=self.indexes[one.bdf],
            name=one.netdev,
            # igbvf takes the MAC that its PF was given (igbvf_probe); mlx5_core's network device may have another.
            mac=UNTOUCHED.mac or "" if self.driver == "igb" else f"02:00:5e:00:00:{one.index:02x}",
            mtu=1500,
            up=True,
            parent=one.bdf if self.parents else "",
        )

    def _place(self, namespace: Namespace, link: Link) -> None:
        namespace.links[link.name] = link

    def _find(self, netns: str | None, netns_id: NetnsId | None = None) -> Namespace:
        if netns is None:
            return self.host
        pod = self.pods.get(netns)
        if pod is None or (netns_id is not None and pod.id != netns_id):
            raise NetnsMissingError(f"no namespace at {netns}")
        return pod

    def _need(self, netns: str | None, name: str) -> Link:
        with suppress(KeyError):
            return self._find(netns).links[name]
        raise KernelError(f"no link {name} in {netns or 'the host'}")

    def _move(self, source: Namespace, target: Namespace, name: str, to: str) -> None:
        if name not in source.links:
            raise KernelError(f"no link {name} to move")
        if to in self._names(target):
            raise KernelError(f"cannot move {name}: {to} is there")
        self._place(target, replace(source.links.pop(name), name=to, up=False, altnames=()))
        source.addresses.pop(name, None)
        source.routes.pop(name, None)
        self.changes.append(f"move {name} {to}")

    def _move_ibdev(self, source: Namespace, target: Namespace, ibdev: RdmaDevice) -> None:
        name = next((one.name for one in self._devices(self.ibdev_numbers) if one.number == ibdev.number), "")
        if name in target.ibdevs:
            return
        if name not in source.ibdevs:
            raise KernelError(f"no {ibdev.name} to move")
        source.ibdevs.discard(name)
        target.ibdevs.add(name)
        self.changes.append(f"move {name}")

    def _devices(self, ibdevs: Iterable[str]) -> frozenset[RdmaDevice]:
        return frozenset(RdmaDevice(self.ibdev_numbers[name], name) for name in ibdevs)

    def _names(self, namespace: Namespace) -> frozenset[str]:
        return frozenset(name for link in namespace.links.values() for name in (link.name, *link.altnames))

    def _free_altname(self, namespace: Namespace, name: str) -> None:
        for link in list(namespace.links.values()):
            self._place(namespace, replace(link, altnames=tuple(other for other in link.altnames if other != name)))


@dataclass(slots=True)
class _Call:
    """One call: faults before it, and, where it succeeded, after it."""

    kernel: ModelKernel
    method: str

    def __enter__(self) -> None:
        self.kernel.enter(self.method)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.kernel.leave(self.method)

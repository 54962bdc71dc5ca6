"""Simulate the VFs of a node with veth pairs, which really move between network namespaces, as SR-IOV devices do.

The rig makes a network namespace for the node's "host", apart from this machine's own, a link in it for each PF and VF, and a
keeper that watches the links. As with hardware, the `net` folder of a function in sysfs is empty while its device is in a pod.
When a pod's namespace is deleted, a hardware device returns to the host's namespace a little later: down, under its name in the
pod (or `dev<index>` if that name is taken, default_device_exit_net), with the MAC, MTU and other settings from the pod. A veth
device is deleted instead, so the keeper makes it again with these settings, except for programs (XDP).

`mirror` updates sysfs from the links. The keeper calls it when a link changes, and the daemon's kernel after each call that
moves a link, because on a real host the two never differ. The PFs' settings, the RDMA devices and the calls that are to fail
are files of the folder, so that they outlive a daemon that is killed.

Source: net/core/dev.c (default_device_exit_net, dev_change_net_namespace), drivers/net/veth.c.
"""

import os
import select
import subprocess
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from lading.errors import HostError
from simnode import leftovers
from simnode.build import SimNode
from simnode.child import Block, replace_text
from simnode.links import ObservedLink, drain, find_link, list_links, open_socket, render_kept
from simnode.patience import wait_until
from simnode.vf_folder import RigFolder, mirror, read_json, settle_rdma
from simnode.vf_table import PfState, VfState, VfTable

_OTHER_END: Final = "other end of "  # the alias of that end of a pair that stays in the host's namespace
_SCAN_S: Final = 0.2  # at the latest; a link that changes wakes the keeper earlier
_RETURN_AFTER_S: Final = 0.05  # the time that the devices of a dead namespace take to come back


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIn:
    """Hold the state of a function's network device when the node was built."""

    bdf: str
    name: str
    mac: str
    mtu: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    """Hold the namespace of a VF's network device, and the device's name there."""

    name: str
    mac: str
    mtu: int
    up: bool
    at_home: bool
    kept: Mapping[str, str] = field(default_factory=dict)  # other settings that go with the device (`links.ObservedLink`)


def vf_profile(*, pfs: int, vfs: int) -> dict[str, Any]:
    """Return a node without GPUs, with that many Ethernet PFs of that many VFs each."""

    def pf(number: int) -> dict[str, Any]:
        bus = f"{0x20 + number:02x}"

        def vf(index: int) -> dict[str, Any]:
            slot, function = divmod(index + 2, 8)
            ibdev = f"mlx5_{pfs + number * vfs + index}"
            return {"bdf": f"0000:{bus}:{slot:02x}.{function}", "ibdevs": [ibdev], "netdev": f"ens{number}v{index}"}

        return {
            "bdf": f"0000:{bus}:00.0",
            "pf": {
                "ibdev": f"mlx5_{number}",
                "netdev": f"ens{number}",
                "link_layer": "Ethernet",
                "total_vfs": vfs,
                "vfs": [vf(index) for index in range(vfs)],
            },
        }

    below = [{"bdf": "0000:16:01.0", "below": [pf(number) for number in range(pfs)]}]
    return {"name": f"{pfs}x{vfs}-vfs", "host_bridges": [{"bus": "0000:15", "socket": 0, "numa": 0, "below": below}]}


class VfRig(Block):
    """Run the devices of one simulated node. `folder`: the folder of the rig's state, which is created."""

    def __init__(self, node: SimNode, folder: Path, *, exclusive: bool = False, old_kernel: bool = False) -> None:
        """Prepare the rig. `exclusive`: each RDMA device is in one namespace. `old_kernel`: does not report a device's
        function."""
        self.node = node
        self.folder = RigFolder(folder)
        self.stand_ins = {one.bdf: one for one in _stand_ins(node)}
        self._exclusive = exclusive
        self._old_kernel = old_kernel
        self._functions = {pf.netdev: [vf.bdf for vf in pf.vfs] for _, pf in node.profile.pfs}
        self._last: dict[str, Whereabouts] = {}
        self._missing_since: dict[str, float] = {}

    def _begin(self) -> None:
        self.folder.path.mkdir(parents=True)
        self.folder.netns.touch()
        self._ends.callback(leftovers.remove_tree, self.folder.path)
        _run("unshare", f"--net={self.folder.netns}", "true")
        if self._exclusive:
            self.folder.rdma.write_text("{}")
        if self._old_kernel:
            self.folder.no_parents.touch()
        self._asking = self._ends.enter_context(open_socket(self.folder.netns))
        self._listening = self._ends.enter_context(open_socket(self.folder.netns, listening=True))
        self._make(self.stand_ins.values())
        self._kept_at_first = {bdf: where.kept for bdf, where in self._record_places().items()}
        self._fill_pf_table()
        self._stop, stopped = os.pipe2(os.O_CLOEXEC)
        keeper = threading.Thread(target=self._keep, name="vf-rig", daemon=True)
        keeper.start()
        for end in (lambda: os.close(self._stop), keeper.join, lambda: os.close(stopped)):  # the last one first
            self._ends.callback(end)

    # ---- for tests: state

    @property
    def vfs(self) -> list[str]:
        return [bdf for bdf in self.stand_ins if (self.node.pci(bdf) / "physfn").is_symlink()]

    def where(self) -> Mapping[str, Whereabouts]:
        """Return the present namespace of each VF's device, without devices whose namespace has just ended."""
        with self.folder.locked():
            return self._record_places()

    def pf_state(self, vf: str) -> VfState:
        """Return the settings that its PF keeps for a VF."""
        for bdf, pf in VfTable(self.folder.pf_table).read().items():
            for function, state in zip(self._functions[bdf], pf.vfs, strict=True):
                if function == vf:
                    return state
        raise KeyError(vf)

    def lost_home(self) -> dict[str, Whereabouts | None]:
        """Return the VFs that are not exactly as they were when the node was built: must be empty if no pod holds any."""
        observed = self.where()
        out: dict[str, Whereabouts | None] = {}
        for bdf in self.vfs:
            was, now = self.stand_ins[bdf], observed.get(bdf)
            first = was.name, was.mac, was.mtu, self._kept_at_first[bdf]
            if now is None or not now.at_home or (now.name, now.mac, now.mtu, now.kept) != first:
                out[bdf] = now
        return out

    def rdma_away(self) -> dict[str, str]:
        """Return the namespaces' paths by ibdev, in exclusive mode, without those in the host's."""
        with self.folder.locked():
            settle_rdma(self.node.root, self.folder)
            if not self._exclusive:
                return {}
            return {ibdev: at["netns"] for ibdev, at in read_json(self.folder.rdma).items()}

    def host_links(self) -> list[ObservedLink]:
        """Return all links of the host's namespace."""
        with self.folder.locked():
            return list_links(self._asking)

    def links_left(self) -> int:
        """Return how many links of the host's namespace belong to no device of the node."""
        known = {*self.stand_ins, *(f"{_OTHER_END}{bdf}" for bdf in self.stand_ins)}
        return sum(1 for link in self.host_links() if link.name != "lo" and link.alias not in known)

    # ---- for tests: actions

    def fail(self, *calls: str) -> None:
        """Let these calls of the daemon to its kernel fail from now on; without arguments, none."""
        replace_text(self.folder.failing, "".join(f"{call}\n" for call in calls))

    def arm(self, point: int, *, stay_dead: bool = False) -> None:
        """Kill the daemon at that point, counted from now; 0 only counts them. With `stay_dead`, `disarm` starts it again."""
        self.folder.points.unlink(missing_ok=True)
        if stay_dead:
            self.folder.stay_dead.touch()
        replace_text(self.folder.kill_at, str(point))

    def disarm(self) -> list[str]:
        """Undo `arm`. Return the points that were passed."""
        self.folder.kill_at.unlink(missing_ok=True)
        self.folder.stay_dead.unlink(missing_ok=True)
        points = self.folder.points.read_text().splitlines() if self.folder.points.exists() else []
        self.folder.points.unlink(missing_ok=True)
        return points

    def pass_time(self, seconds: int) -> None:
        """Move the daemon's clock ahead by that much; its monotonic clock is not changed."""
        before = int(self.folder.clock.read_text()) if self.folder.clock.exists() else 0
        replace_text(self.folder.clock, str(before + seconds))

    @property
    def daemon_pid(self) -> int:
        return int(self.folder.pid.read_text())

    def reboot(self) -> None:
        """Restore everything of the kernel as when the node was built, under another boot id. No daemon and no pod may run.

        A namespace that has just ended takes its devices with it a moment later, so those are waited for first.
        """
        self.await_returned(*self.stand_ins)
        with self.folder.locked():
            ends = {link.alias: link for link in list_links(self._asking)}
            for bdf in self.stand_ins:
                if end := ends.get(f"{_OTHER_END}{bdf}"):
                    self._ip(f"link delete {end.name}")
            if self._exclusive:
                replace_text(self.folder.rdma, "{}")
                settle_rdma(self.node.root, self.folder)
            self._last.clear()
            self._make(self.stand_ins.values())
            self._fill_pf_table()
        boot_id = self.node.root / "proc/sys/kernel/random/boot_id"
        boot_id.write_text(f"{uuid.uuid4()}\n")

    def await_returned(self, *vfs: str) -> None:
        """Wait until these devices are in the host's namespace, under any name."""

        def returned() -> bool:
            where = self.where()
            return all((result := where.get(bdf)) and result.at_home for bdf in vfs)

        wait_until(returned, f"the return of {', '.join(vfs)}")

    # ---- the keeper

    def _keep(self) -> None:
        wait_s, shown = _SCAN_S, None
        while True:
            ready, _, _ = select.select([self._listening.fileno(), self._stop], [], [], wait_s)
            if self._stop in ready:
                return
            drain(self._listening)
            with self.folder.locked():
                self._record_places()
                wait_s = self._bring_back()
                links = list_links(self._asking)
                if shown != links or not ready:  # a change that the daemon left half-done is found by this periodic look
                    mirror(self.node.root, links)
                    settle_rdma(self.node.root, self.folder)
                    shown = links

    def _record_places(self) -> dict[str, Whereabouts]:
        """Record the namespace and settings of each device, for the time after its namespace is deleted."""
        links = list_links(self._asking)
        aliased = {link.alias: link for link in links}
        observed = {}
        for bdf in self.stand_ins:
            link, at_home = aliased.get(bdf), True
            other_end = aliased.get(f"{_OTHER_END}{bdf}")
            if link is None and other_end is not None and other_end.peer_netnsid is not None:
                link, at_home = find_link(self._asking, other_end.peer, netnsid=other_end.peer_netnsid), False
            if link is not None:
                observed[bdf] = Whereabouts(
                    name=link.name, mac=link.mac, mtu=link.mtu, up=link.up, at_home=at_home, kept=link.kept
                )
        self._last.update(observed)
        missing = {bdf for bdf in self.stand_ins if bdf not in observed and f"{_OTHER_END}{bdf}" not in aliased}
        now = time.monotonic()
        self._missing_since = {bdf: self._missing_since.get(bdf, now) for bdf in missing}
        return observed

    def _bring_back(self) -> float:
        """Make the devices again whose namespace was deleted long enough ago. Return the seconds until the next check."""
        due = [bdf for bdf, at in self._missing_since.items() if at + _RETURN_AFTER_S <= time.monotonic()]
        self._make(StandIn(bdf=bdf, name=last.name, mac=last.mac, mtu=last.mtu) for bdf in due for last in [self._last[bdf]])
        for bdf in due:
            self._missing_since.pop(bdf, None)
        return _RETURN_AFTER_S if self._missing_since else _SCAN_S

    def _make(self, devices: Iterable[StandIn]) -> None:
        taken = {link.name for link in list_links(self._asking)}
        numbers = {bdf: number for number, bdf in enumerate(self.stand_ins)}
        for one in devices:
            number = numbers[one.bdf]
            name = one.name if one.name not in taken else f"dev{number + 100}"
            taken.add(name)
            end = f"end{number}"
            self._ip(
                f"link add {name} mtu {one.mtu} address {one.mac} type veth peer name {end}",
                f"link set {name} alias {one.bdf}",
                f"link set {end} alias '{_OTHER_END}{one.bdf}'",
                *(f"link set {name} {render_kept(last.kept)}" for last in (self._last.get(one.bdf),) if last is not None),
            )
        links = list_links(self._asking)
        self._record_places()
        mirror(self.node.root, links)

    def _fill_pf_table(self) -> None:
        """Give some VFs settings as if another program had made them, which a release must restore; the others have the
        drivers' defaults."""
        links = {link.name: link for link in list_links(self._asking)}
        used = VfState(mac="02:5e:ff:00:00:01", mac_fixed=True, vlan=7, qos=1, max_tx_rate=5000, link_state=1)
        states = {
            pf.netdev: PfState(
                index=links[pf.netdev].index, vfs=tuple(used if number % 2 else VfState() for number in range(len(pf.vfs)))
            )
            for _, pf in self.node.profile.pfs
        }
        VfTable(self.folder.pf_table).write(states)

    def _ip(self, *commands: str) -> None:
        _run("nsenter", f"--net={self.folder.netns}", "ip", "-batch", "-", input_text="".join(f"{c}\n" for c in commands))


def _stand_ins(node: SimNode) -> Iterator[StandIn]:
    number = 0
    for bdf, pf in node.profile.pfs:
        for function, name in ((bdf, pf.netdev), *((vf.bdf, vf.netdev) for vf in pf.vfs)):
            if name:
                number += 1
                mac = f"02:5e:00:00:{number >> 8:02x}:{number & 0xFF:02x}"
                yield StandIn(bdf=function, name=name, mac=mac, mtu=1500 + number)


def _run(*command: str, input_text: str = "") -> None:
    done = subprocess.run(command, input=input_text, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise HostError(f"cannot {' '.join(command)}: {done.stderr.strip()}: {input_text}")

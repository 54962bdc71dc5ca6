"""Use a guest as a node: its front ends, its pods, and what its kernel has of a VF."""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from uuid import uuid4

from lading.vocabulary import ASSIGNMENT
from simnode.cri import Container, Cri, Pod
from simnode.kubelet import ContainerOptions
from simnode.vm.guest import Guest
from simnode.vm.image import NODE
from tests.node.site import eventually

PROXY, RUNTIME = "/run/lading/cri.sock", "/run/containerd/containerd.sock"
FRONT_ENDS: Final = {"proxy": PROXY, "nri": RUNTIME}  # and the socket on which kubelet makes pods
_READY: Final = "python3 -c 'import urllib.request as u; print(u.urlopen(\"http://127.0.0.1:9441/readyz\").read().decode())'"
_USE_NRI: Final = """set -e
sed -i '1i front_end = "nri"' /etc/lading/hooks.toml
systemctl disable -q --now lading-runtimeproxy.service lading-runtimeproxy.socket
systemctl enable -q --now lading-nri-guard
systemctl restart lading-hooks
"""


def render_assignment(uid: str, devices: Mapping[str, object]) -> dict[str, str]:
    """Return the annotation that central writes for a pod with one container `main`."""
    text = {"v": 1, "pod": uid, "node": NODE, "gen": 1, "containers": {"main": devices}}
    return {ASSIGNMENT: json.dumps(text)}


class VmNode:
    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self.front_end = "proxy"

    def await_ready(self) -> None:
        """Wait until lading-hooks is ready; by NRI, until the runtime asks it and a guard is connected.

        The guest itself waits for the end of its boot and of the start, which take minutes on a busy machine."""
        self.guest.run("systemctl is-system-running --wait; systemctl start --job-mode=ignore-dependencies lading-hooks")

        def ready() -> None:
            done = self.guest.run(_READY)
            assert done.status == 0, done.err
            assert json.loads(done.out)["ready"], done.out
            assert self.guest.run("test -e /var/lib/vm-images").status == 0, "vm-images.service imports the images"

        eventually(ready)

    def use(self, front_end: str) -> None:
        if front_end != self.front_end:
            self.guest.check(_USE_NRI)
            self.front_end = front_end
            self.await_ready()

    # ---- devices

    def gpu(self, index: int) -> dict[str, object]:
        return {"uuid": self.guest.profile.gpus[index][1].uuid}

    def card(self, index: int) -> str:
        return f"/dev/nvidia{self.guest.profile.gpus[index][1].minor}"

    def vf(self, pf: int, number: int) -> dict[str, object]:
        bdf, function = self.guest.profile.pfs[pf]
        return {"bdf": function.vfs[number].bdf, "pf": bdf}

    def verbs_nodes(self) -> dict[str, str]:
        """Return the verbs device nodes of the node, by RDMA device."""
        script = 'cd /sys/class/infiniband_verbs; for node in uverbs*; do echo "$(cat $node/ibdev) /dev/infiniband/$node"; done'
        return dict(line.split() for line in self.guest.check(script).splitlines())

    def read_vf(self, vf: Mapping[str, object]) -> dict[str, Any]:
        """Return what the host has of a VF: its own network device, its part of the PF's, and its RDMA device."""
        folder, at_pf = (f"/sys/bus/pci/devices/{vf[key]}" for key in ("bdf", "pf"))
        text = self.guest.check(f"echo $(ls {folder}/net) $(ls {folder}/infiniband) $(ls {at_pf}/net); ip -j -d link")
        names, listed = text.split("\n", 1)
        assert len(names.split()) == 3, f"the host does not have {vf['bdf']}: {names}"
        netdev, ibdev, pf = names.split()
        links = {link["ifname"]: link for link in json.loads(listed)}
        own = links[netdev]
        number = next(n for _, p in self.guest.profile.pfs for n, one in enumerate(p.vfs) if one.bdf == vf["bdf"])
        kept = {key: own.get(key) for key in ("ifname", "address", "mtu", "operstate", "altnames", "promiscuity")}
        return {**kept, "flags": sorted(own["flags"]), "ibdev": ibdev, "at_pf": links[pf]["vfinfo_list"][number]}

    # ---- pods

    @contextlib.contextmanager
    def kubelet(self) -> Iterator[Cri]:
        with self.guest.cri(FRONT_ENDS[self.front_end]) as client:
            yield client

    def run_pod(self, client: Cri, name: str, devices: Mapping[str, object], **options: Any) -> tuple[Pod, Container]:
        """Run a pod with one container, with kubelet's tries again where the node is not prepared."""
        uid = str(uuid4())
        pod = client.run_pod(name, uid=uid, annotations=render_assignment(uid, devices))
        made: ContainerOptions = {**options}  # type: ignore[typeddict-item]
        container = eventually(lambda: pod.create_container(**made))
        container.start()
        return pod, container

    def try_numbers(self, container: Container, paths: Sequence[str]) -> dict[str, str]:
        """Let a container make device nodes with the numbers of the host's, and open them. Return `ok` or an errno for each."""
        script = f"for path in {' '.join(paths)}; do stat -c '%t %T' $path; done"
        numbers = [tuple(int(part, 16) for part in line.split()) for line in self.guest.check(script).splitlines()]
        nodes = [f"/tmp/{index}" for index in range(len(paths))]
        made = "; ".join(f"mknod {node} c {major} {minor}" for node, (major, minor) in zip(nodes, numbers, strict=True))
        container.sh(f"rm -f {' '.join(nodes)}; {made}")
        return dict(zip(paths, container.try_open(*nodes), strict=True))

"""Record what iproute2 sends for the changes that this project makes: an oracle that has no part in our encoders.

    python -m tests.golden.netlink.capture

writes requests.json beside this file; it needs root, ip, rdma, strace and cc. `ip` talks to the real kernel, in a network
namespace made for it, and strace shows what it sends. `rdma` would end at the socket where the kernel has no RDMA, so the peer
of tests.fakes.netlink_peer answers it. What differs from run to run (sequence numbers, descriptors) is set to what stands
below.
"""

import json
import re
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from tests.fakes.netlink_peer import compile_peer, run_with_peer

REQUESTS: Final = Path(__file__).with_name("requests.json")
PROGRAMS: Final = ("ip", "rdma", "strace", "cc", "unshare")

INDEX: Final = 77  # index of the device
RDMA_INDEX: Final = 7
NETNS_FD: Final = 9

# ip(8) keeps names of namespaces below /run: in a mount namespace of its own it leaves none on this machine.
_NAMED: Final = "mount -t tmpfs none /run; ip netns add other"
_SETUP: Final = (
    f"ip link add pf0 index {INDEX} type veth peer name pf1; ip address add 10.0.0.9/24 dev pf0;"
    " ip link set pf0 up; ip link set pf1 up; "
) + _NAMED
_IP: Final = {
    "vf-mac": "link set dev pf0 vf 3 mac 02:00:5e:10:00:01",
    "vf-vlan": "link set dev pf0 vf 3 vlan 100",
    "vf-vlan-qos": "link set dev pf0 vf 3 vlan 100 qos 5",
    "vf-vlan-802.1q": "link set dev pf0 vf 3 vlan 100 qos 5 proto 802.1Q",
    "vf-vlan-802.1ad": "link set dev pf0 vf 3 vlan 100 qos 5 proto 802.1ad",
    "vf-vlan-off": "link set dev pf0 vf 3 vlan 0",
    "vf-rates": "link set dev pf0 vf 3 min_tx_rate 100 max_tx_rate 1000",
    "vf-max-rate": "link set dev pf0 vf 3 max_tx_rate 1000",
    "vf-min-rate": "link set dev pf0 vf 3 min_tx_rate 100",
    "vf-rate-old": "link set dev pf0 vf 3 rate 1000",
    "vf-spoofchk-on": "link set dev pf0 vf 3 spoofchk on",
    "vf-spoofchk-off": "link set dev pf0 vf 3 spoofchk off",
    "vf-trust-on": "link set dev pf0 vf 3 trust on",
    "vf-trust-off": "link set dev pf0 vf 3 trust off",
    "vf-node-guid": "link set dev pf0 vf 3 node_guid 02:00:00:00:00:00:00:2a",
    "vf-port-guid": "link set dev pf0 vf 3 port_guid 02:00:00:00:00:00:00:2a",
    "vf-state-auto": "link set dev pf0 vf 3 state auto",
    "vf-state-enable": "link set dev pf0 vf 3 state enable",
    "vf-state-disable": "link set dev pf0 vf 3 state disable",
    "link-mac": "link set dev pf0 address 02:00:00:00:00:03",
    "link-mtu": "link set dev pf0 mtu 1400",
    "link-up": "link set dev pf0 up",
    "address-4": "address add 10.0.0.2/24 dev pf0",
    "address-6": "address add fd00::2/64 dev pf0 optimistic",
    "route-4": "route add 10.1.0.0/16 via 10.0.0.1 dev pf0",
    "route-4-link": "route add 10.2.0.0/16 dev pf0",
    "route-4-default": "route add 0.0.0.0/0 via 10.0.0.1 dev pf0",
    "route-6": "route add fd01::/64 via fd00::1 dev pf0",
    "route-6-link": "route add fd02::/64 dev pf0",
    "link-down": "link set dev pf0 down",
    "link-rename": "link set dev pf0 name pf7",
    "link-altname": "link property add dev pf7 altname pf-seven",
    "link-altname-off": "link property del dev pf7 altname pf-seven",
    "link-move": "link set dev pf7 netns other name rdma0",
}
_RDMA: Final = {
    "rdma-mode": "system show",
    "rdma-list": "dev show",
    "rdma-move": "dev set mlx5_1 netns other",
    "rdma-rename": "dev set mlx5_1 name mlx5_7",
}
_CHANGES: Final = frozenset({16, 20, 24, 108, 109})  # RTM_NEWLINK, RTM_NEWADDR, RTM_NEWROUTE, RTM_NEWLINKPROP, RTM_DELLINKPROP


def sent() -> dict[str, bytes]:
    """The captured requests, by name."""
    return {name: bytes.fromhex(entry["sent"]) for name, entry in json.loads(REQUESTS.read_text()).items()}


def capture() -> dict[str, dict[str, str]]:
    """Command and octets, in hexadecimal digits, by name."""
    with tempfile.TemporaryDirectory(prefix="lading-netlink-") as folder:
        return {**_capture_ip(Path(folder)), **_capture_rdma(compile_peer(Path(folder)))}


def _capture_ip(folder: Path) -> dict[str, dict[str, str]]:
    lines = [_SETUP]
    lines += [f"strace -o {folder}/{name} -e trace=sendmsg -e write=all ip {text}" for name, text in _IP.items()]
    # iproute2 also sends a change that the kernel refuses, such as VFs of a veth device.
    script = "; ".join(lines)
    subprocess.run(["unshare", "--net", "--mount", "sh", "-c", script], check=False, capture_output=True, timeout=60)
    return {
        name: {"command": f"ip {text}", "sent": _last_change((folder / name).read_text()).hex()} for name, text in _IP.items()
    }


def _last_change(trace: str) -> bytes:
    """Return the last request for a change among the hexadecimal dumps that strace prints after each call."""
    dumps: list[bytes] = []
    for line in trace.splitlines():
        match = re.match(r" \| ([0-9a-f]{5})  ([0-9a-f ]{49})", line)
        if match:
            start = b"" if match[1] == "00000" else dumps.pop()
            dumps.append(start + bytes.fromhex(match[2]))
    return _settle([dump for dump in dumps if struct.unpack_from("=IH", dump)[1] in _CHANGES][-1])


def _settle(request: bytes) -> bytes:
    """With sequence 0, and with the descriptor of IFLA_NET_NS_FD or RDMA_NLDEV_NET_NS_FD that a test can name."""
    request = request[:8] + bytes(4) + request[12:]
    for kind in (28, 68):
        header = struct.pack("=HH", 8, kind)
        if (at := request.find(header, 16)) >= 0:
            request = request[: at + 4] + struct.pack("=I", NETNS_FD) + request[at + 8 :]
    return request


def _capture_rdma(library: Path) -> dict[str, dict[str, str]]:
    result = {}
    for name, text in _RDMA.items():
        script = f"{_NAMED}; exec rdma {text}"
        run = run_with_peer(library, ["unshare", "--mount", "--net", "sh", "-c", script], _answer_rdma)
        commands = {"rdma-mode": 6, "rdma-list": 1, "rdma-move": 2, "rdma-rename": 2}
        sent = next(one for one in run.requests if struct.unpack_from("=IH", one)[1] & 0x3FF == commands[name])
        result[name] = {"command": f"rdma {text}", "sent": _settle(sent).hex()}
    return result


def _answer_rdma(request: bytes) -> list[bytes]:
    _, kind, flags, sequence, _ = struct.unpack_from("=IHHII", request)

    def message(kind: int, body: bytes, flags: int = 0) -> bytes:
        return struct.pack("=IHHII", 16 + len(body), kind, flags, sequence, 0) + body

    device = struct.pack("=HHI", 8, 1, RDMA_INDEX) + struct.pack("=HH8s", 11, 2, b"mlx5_1") + struct.pack("=HHI", 8, 3, 1)
    mode = struct.pack("=HHB3x", 5, 66, 0)
    end = message(2, struct.pack("=i", 0) + request[:16])
    if flags & 0x300:  # a list
        return [message(kind, device, 2), message(3, struct.pack("=i", 0), 2)]
    return [message(kind, {1: device, 6: mode}[kind & 0x3FF]), end] if kind & 0x3FF in {1, 6} else [end]


if __name__ == "__main__":
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        raise SystemExit(f"error: cannot capture: {', '.join(missing)} is not on this machine")
    REQUESTS.write_text(json.dumps(capture(), indent=1) + "\n")

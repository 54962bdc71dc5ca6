"""Pod networks without CNI plugins from a package: two shell scripts, just enough for containerd.

`loopback` brings `lo` up, as containerd asks for by that name; `lading-sim` puts an address on it and reports it as eth0's.
Pods reach themselves and nothing else. Source: CNI specification 0.4.0 (environment CNI_COMMAND, CNI_NETNS; result on stdout).
"""

import json
from pathlib import Path

_LOOPBACK = """#!/bin/sh
# CNI plugin of a rig that tests Lading: brings up the loopback interface.
case "$CNI_COMMAND" in
  VERSION) echo '{"cniVersion":"0.4.0","supportedVersions":["0.3.1","0.4.0","1.0.0"]}';;
  ADD) nsenter --net="$CNI_NETNS" ip link set lo up >&2 || exit 1
    echo '{"cniVersion":"0.4.0","interfaces":[{"name":"lo","mac":"00:00:00:00:00:00","sandbox":"'"$CNI_NETNS"'"}],'
    echo '"ips":[{"version":"4","interface":0,"address":"127.0.0.1/8"}]}';;
esac
"""

# 198.18.0.0/15 is set aside for tests of network devices (RFC 2544); the pod's part comes from its id.
_POD = """#!/bin/sh
# CNI plugin of a rig that tests Lading: an address for the pod, and no way out.
case "$CNI_COMMAND" in
  VERSION) echo '{"cniVersion":"0.4.0","supportedVersions":["0.3.1","0.4.0","1.0.0"]}';;
  ADD) bytes=$(printf %s "$CNI_CONTAINERID" | cksum | cut -d' ' -f1)
    address=198.18.$((bytes / 256 % 256)).$((bytes % 254 + 1))
    nsenter --net="$CNI_NETNS" ip address add "$address/32" dev lo >&2 || exit 1
    echo '{"cniVersion":"0.4.0","interfaces":[{"name":"'"$CNI_IFNAME"'","sandbox":"'"$CNI_NETNS"'"}],'
    echo '"ips":[{"version":"4","interface":0,"address":"'"$address/32"'"}]}';;
esac
"""


def write_plugins(*, bin_folder: Path, conf_folder: Path) -> None:
    for name, script in (("loopback", _LOOPBACK), ("lading-sim", _POD)):
        bin_folder.mkdir(parents=True, exist_ok=True)
        (bin_folder / name).write_text(script)
        (bin_folder / name).chmod(0o755)
    conf_folder.mkdir(parents=True, exist_ok=True)
    network = {"cniVersion": "0.4.0", "name": "lading-sim", "plugins": [{"type": "lading-sim"}]}
    (conf_folder / "10-lading-sim.conflist").write_text(json.dumps(network))

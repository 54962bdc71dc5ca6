"""Render the configuration file of a private containerd for its version and its folders, and write its CNI plugins.

The result is TOML: format 2 for 1.6 and 1.7, format 3 from 2.0 on. Versions 1.5 and older are refused, because containerd no
longer supports them. Source: containerd docs/cri/config.md and docs/man/containerd-config.toml.5.md.

Pod networks need no CNI plugins from a package: two shell scripts are just enough for containerd. `loopback` brings `lo` up, as
containerd asks for by that name; `lading-sim` puts an address on it and reports it as eth0's. Pods reach themselves and nothing
else. Source: CNI specification 0.4.0 (environment CNI_COMMAND, CNI_NETNS; result on stdout).
"""

import hashlib
import json
from pathlib import Path

from hooks.frontends.nri.guard.handler import HANDLER, PROGRAM, pod_annotations
from lading.errors import ConfigError


class ContainerdLayout:
    """List the folders of one private containerd; all of them are below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root, self.state = folder / "root", folder / "state"
        self.socket = folder / "containerd.sock"
        self.config, self.log = folder / "containerd.toml", folder / "containerd.log"
        self.cni_bin, self.cni_conf = folder / "cni/bin", folder / "cni/net.d"
        self.cdi, self.nri = folder / "cdi", folder / "nri"
        self.handler = folder / "bin" / PROGRAM  # the program of the runtime handler, for tests that put it there
        # The parent of all its pods' cgroups, different for each folder.
        self.cgroup_root = f"lading-{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"


def parse_version(text: str) -> tuple[int, int]:
    """Return (major, minor) of `1.6.20~ds1`, `v1.7.24`, `2.1.9+ds1-5`."""
    major, _, rest = text.removeprefix("v").partition(".")
    minor = rest.split(".")[0]
    if not (major.isdigit() and minor.isdigit()):
        raise ConfigError(f"cannot read containerd's version: {text!r}", hint="expected something like 1.7.24")
    return int(major), int(minor)


def has_cdi(version: str) -> bool:
    """Report whether CDI names in CreateContainer are honoured; 1.6 ignores them silently."""
    return parse_version(version) >= (1, 7)


def validates(version: str) -> bool:
    """Report whether this version of containerd has NRI's validation of adjustments."""
    return parse_version(version) >= (2, 2)


def render_config(layout: ContainerdLayout, *, version: str, sandbox_image: str, snapshotter: str, runc: Path) -> str:
    number = parse_version(version)
    if number < (1, 6):
        raise ConfigError(f"cannot configure containerd {version}: 1.6 is the oldest that works")
    if number >= (2, 0):
        config = _render_format_3(layout, sandbox_image, snapshotter, runc) + _render_nri(layout)
        return config + (_VALIDATOR if validates(version) else "")
    config = _render_format_2(layout, sandbox_image, snapshotter, runc, cdi=has_cdi(version))
    return config + (_render_nri(layout) if number >= (1, 7) else "")


def _render_head(layout: ContainerdLayout, file_format: int) -> str:
    # The opt plugin makes /opt/containerd on the host; the snapshotters are not used and some probe the host's disks.
    unused = ["io.containerd.internal.v1.opt"]
    unused += [f"io.containerd.snapshotter.v1.{name}" for name in ("aufs", "btrfs", "blockfile", "devmapper", "erofs", "zfs")]
    return f"""version = {file_format}
root = "{layout.root}"
state = "{layout.state}"
disabled_plugins = [{", ".join(f'"{name}"' for name in unused)}]
[grpc]
  address = "{layout.socket}"
"""


# restrict_oom_score_adj: without CAP_SYS_RESOURCE every sandbox dies at a negative oom_score_adj otherwise.
# netns_mounts_under_state_dir: else every pod's network namespace is mounted in the host's /run/netns.
# Root: else runc keeps its own state in the host's /run/containerd/runc.
def _render_format_2(layout: ContainerdLayout, sandbox_image: str, snapshotter: str, runc: Path, *, cdi: bool) -> str:
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    return f"""{_render_head(layout, 2)}[{cri}]
  sandbox_image = "{sandbox_image}"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
{_render_cdi(layout) if cdi else ""}  [{cri}.containerd]
    snapshotter = "{snapshotter}"
{_render_runtimes(layout, cri, runc)}  [{cri}.cni]
    bin_dir = "{layout.cni_bin}"
    conf_dir = "{layout.cni_conf}"
"""


def _render_format_3(layout: ContainerdLayout, sandbox_image: str, snapshotter: str, runc: Path) -> str:
    images, runtime = 'plugins."io.containerd.cri.v1.images"', 'plugins."io.containerd.cri.v1.runtime"'
    return f"""{_render_head(layout, 3)}[{images}]
  snapshotter = "{snapshotter}"
  [{images}.pinned_images]
    sandbox = "{sandbox_image}"
[{runtime}]
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
{_render_cdi(layout)}  [{runtime}.containerd]
{_render_runtimes(layout, runtime, runc)}  [{runtime}.cni]
    bin_dirs = ["{layout.cni_bin}"]
    conf_dir = "{layout.cni_conf}"
"""


def _render_cdi(layout: ContainerdLayout) -> str:
    return f"""  enable_cdi = true
  cdi_spec_dirs = ["{layout.cdi}"]
"""


def _render_nri(layout: ContainerdLayout) -> str:
    return f"""[plugins."io.containerd.nri.v1.nri"]
  disable = false
  socket_path = "{layout.nri}/nri.sock"
  plugin_path = "{layout.nri}/plugins"
  plugin_config_path = "{layout.nri}/conf.d"
"""


# Refuses a pod's containers while a plugin is not there that an annotation of the pod requires.
_VALIDATOR = """  [plugins."io.containerd.nri.v1.nri".default_validator]
    enable = true
"""


# ---- CNI

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


def _render_runtimes(layout: ContainerdLayout, plugin: str, runc: Path) -> str:
    return f"""    default_runtime_name = "runc"
    [{plugin}.containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [{plugin}.containerd.runtimes.runc.options]
        BinaryName = "{runc}"
        Root = "{layout.state}/runc"
        SystemdCgroup = false
    [{plugin}.containerd.runtimes.{HANDLER}]
      runtime_type = "io.containerd.runc.v2"
      pod_annotations = {json.dumps(pod_annotations())}
      [{plugin}.containerd.runtimes.{HANDLER}.options]
        BinaryName = "{layout.handler}"
        Root = "{layout.state}/runc"
        SystemdCgroup = false
"""

"""A private containerd's configuration file, by version: its own root, state, sockets, CNI, CDI and NRI folders.

Enters: the folders and the version. Leaves: TOML, format 2 for 1.6 and 1.7, format 3 from 2.0 on. Refuses: 1.5 and
older, which are no longer supported. Source: containerd docs/cri/config.md and docs/man/containerd-config.toml.5.md.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from lading.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerdLayout:
    """The folders of one private containerd; all of them are below `folder`."""

    folder: Path

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def socket(self) -> Path:
        return self.folder / "containerd.sock"

    @property
    def config(self) -> Path:
        return self.folder / "containerd.toml"

    @property
    def log(self) -> Path:
        return self.folder / "containerd.log"

    @property
    def cgroup_root(self) -> str:
        """Return the parent of all its pods' cgroups, different for each folder."""
        return f"lading-{hashlib.sha256(str(self.folder).encode()).hexdigest()[:8]}"

    @property
    def cni_bin(self) -> Path:
        return self.folder / "cni/bin"

    @property
    def cni_conf(self) -> Path:
        return self.folder / "cni/net.d"

    @property
    def cdi(self) -> Path:
        return self.folder / "cdi"

    @property
    def nri(self) -> Path:
        return self.folder / "nri"


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


def render_config(layout: ContainerdLayout, *, version: str, sandbox_image: str, snapshotter: str, runc: Path) -> str:
    number = parse_version(version)
    if number < (1, 6):
        raise ConfigError(f"cannot configure containerd {version}: 1.6 is the oldest that works")
    if number >= (2, 0):
        return _render_format_3(layout, sandbox_image, snapshotter, runc) + _render_nri(layout)
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
    default_runtime_name = "runc"
    [{cri}.containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [{cri}.containerd.runtimes.runc.options]
        BinaryName = "{runc}"
        Root = "{layout.state}/runc"
        SystemdCgroup = false
  [{cri}.cni]
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
    default_runtime_name = "runc"
    [{runtime}.containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [{runtime}.containerd.runtimes.runc.options]
        BinaryName = "{runc}"
        Root = "{layout.state}/runc"
        SystemdCgroup = false
  [{runtime}.cni]
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

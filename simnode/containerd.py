"""Run a private, real containerd with its own root, state, sockets, cgroup and CNI folder, apart from the host's containerd.

The input is a folder and the binaries of one containerd version. The result is a ready runtime with the images of
`simnode.images`. The end of the `with` block removes the pods through CRI, ends containerd and its shims, and unmounts and
removes their state. The log and the configuration stay in the folder for the analysis of a failure. This needs root and runc.
"""

import contextlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from lading.errors import HostError, LadingError
from simnode import images, leftovers
from simnode.child import Block, Child, answers
from simnode.containerd_config import ContainerdLayout, render_config, write_plugins
from simnode.cri import Cri
from simnode.patience import tail

_SBIN = "/usr/local/sbin:/usr/sbin:/sbin"  # where runc and containerd are installed; not in every user's PATH
_SHIM_SOCKETS = Path("/run/containerd/s")  # fixed in containerd's code, independent of its state folder
_NAMESPACE = "k8s.io"  # containerd's namespace for everything that CRI makes


@dataclass(frozen=True, slots=True, kw_only=True)
class Binaries:
    """Represent the programs of one installed or unpacked containerd."""

    folder: Path  # contains containerd, ctr and the shim of the same version
    version: str  # 1.6.20


def search_path() -> str:
    return f"{os.environ.get('PATH', '')}:{_SBIN}"


def find_containerd(version_prefix: str = "") -> Binaries | None:
    """Return the first containerd of that version: of the machine, then of those that `simnode.install` unpacked."""
    result = shutil.which("containerd", path=search_path())
    if result and (version := read_version(Path(result))).startswith(version_prefix):
        return Binaries(folder=Path(result).parent, version=version)
    return find_unpacked(version_prefix, images.default_cache())


def find_unpacked(version_prefix: str, cache: Path) -> Binaries | None:
    for program in sorted(cache.glob("containerd-*/usr/bin/containerd")):
        version = read_version(program)
        if version.startswith(version_prefix):
            return Binaries(folder=program.parent, version=version)
    return None


def read_version(program: Path) -> str:
    """Return `1.6.20` of `containerd github.com/containerd/containerd 1.6.20~ds1 …`; empty if the program prints no version."""
    done = subprocess.run([str(program), "--version"], capture_output=True, text=True, check=False)  # noqa: S603
    text = done.stdout.split()
    return text[2].removeprefix("v").split("~")[0].split("+")[0] if len(text) > 2 else ""


class PrivateContainerd(Block, Child):
    """Run one containerd. Its pods survive `start`, `restart` and `kill`, but not `stop`."""

    def __init__(self, folder: Path, binaries: Binaries, *, cache: Path | None = None) -> None:
        self.layout = ContainerdLayout(folder=folder)
        self.binaries = binaries
        self.version = binaries.version
        self._cache = cache or images.default_cache()
        self.snapshotter = ""  # chosen at the start
        self.socket = self.layout.socket
        program = [str(binaries.folder / "containerd"), "--config", str(self.layout.config)]
        super().__init__(program, log=self.layout.log, env={"PATH": f"{binaries.folder}:{search_path()}"})

    def _begin(self) -> None:
        self._ends.callback(self.stop)
        self._write_config()
        self.start()
        self._import_images()

    def client(self, *, via: Path | None = None, api: str = "v1") -> Cri:
        """Return a CRI client for this runtime, or for it through a proxy's socket. Its pods' cgroups end with the runtime."""
        return Cri(via or self.socket, folder=self.layout.folder, cgroup_root=self.layout.cgroup_root, api=api)

    @property
    def nri_socket(self) -> Path:
        """Return the socket on which a containerd with NRI listens for plugins."""
        return self.layout.nri / "nri.sock"

    def start(self) -> None:
        super().start()
        self.wait_until(self._ready, "a ready runtime")

    def restart(self) -> None:
        """Restart containerd as an upgrade does: the pods continue to run."""
        super().stop()
        self.start()

    def power_off(self) -> None:
        """End containerd and its containers as a loss of power does: files on a disk stay, files on a tmpfs are deleted.
        `start` boots the machine again."""
        self.kill()
        leftovers.end_shims(self.socket)  # at once: its containers may not live on without it
        self._end_rest()
        leftovers.remove_tree(self.layout.state)
        self.nri_socket.unlink(missing_ok=True)

    def tail(self, lines: int = 30) -> str:
        return tail(self.log, lines)

    def stop(self, *, grace_s: float = 15.0) -> int | None:
        """Remove pods, processes, mounts, sockets, cgroups and state. May be called twice, after `kill`, from another
        process."""
        if answers(self.socket):
            with contextlib.suppress(LadingError), self.client() as client:  # the shims are ended below in any case
                client.remove_every_pod()
        status = super().stop(grace_s=grace_s)
        self._end_rest()
        for folder in (self.layout.state, self.layout.root, self.layout.cni_bin.parent, self.layout.cdi, self.layout.nri):
            leftovers.remove_tree(folder)
        with contextlib.suppress(OSError):  # already ended, or another containerd's shims are there
            if list(_SHIM_SOCKETS.parent.iterdir()) == [_SHIM_SOCKETS]:
                _SHIM_SOCKETS.rmdir()
                _SHIM_SOCKETS.parent.rmdir()
        return status

    def _end_rest(self) -> None:
        """End the plugins and shims that containerd started, and remove their cgroups and sockets."""
        leftovers.end_processes(self.layout.config)
        leftovers.end_processes(self.layout.nri / "plugins")  # those that it launched
        leftovers.end_shims(self.socket)
        leftovers.remove_cgroups(self.layout.cgroup_root)
        for path in self.layout.folder.glob(f"{self.socket.name}*"):
            path.unlink()

    def _ready(self) -> bool:
        if not answers(self.socket):
            return False
        try:
            with self.client() as client:
                return not client.not_ready()
        except LadingError:
            return False

    def _write_config(self) -> None:
        if os.geteuid() != 0:
            raise HostError("cannot start a private containerd: it needs root")
        runc = shutil.which("runc", path=search_path())
        if runc is None:
            raise HostError("cannot start a private containerd: there is no runc", hint="run: python -m simnode.install")
        for folder in (self.layout.root, self.layout.cdi, self.layout.nri / "plugins", self.layout.nri / "conf.d"):
            folder.mkdir(parents=True, exist_ok=True)
        write_plugins(bin_folder=self.layout.cni_bin, conf_folder=self.layout.cni_conf)
        self.snapshotter = "overlayfs" if overlay_works(self.layout.root) else "native"
        config = render_config(
            self.layout, version=self.version, sandbox_image=images.PAUSE, snapshotter=self.snapshotter, runc=Path(runc)
        )
        self.layout.config.write_text(config)

    def _import_images(self) -> None:
        for tar in images.build_images(self._cache):
            done = subprocess.run(  # noqa: S603 -- the ctr beside the containerd that was found
                [
                    *(str(self.binaries.folder / "ctr"), "--address", str(self.socket), "--namespace", _NAMESPACE),
                    *("images", "import", "--snapshotter", self.snapshotter, str(tar)),
                ],
                capture_output=True,
                text=True,
                check=False,
                env=self._env,
            )
            if done.returncode:
                raise HostError(f"cannot import {tar.name}: {done.stderr.strip()}\n{self.tail()}")
        with self.client() as client:
            # CRI learns of an import by an event, a moment later
            names = (images.PAUSE, images.BUSYBOX, images.CUDA)
            self.wait_until(lambda: all(map(client.image_id, names)), "the images")


def overlay_works(folder: Path) -> bool:
    """Report whether an overlay can be mounted on this file system; not on an overlay, as in many CI containers."""
    trial = folder / "overlay-trial"
    for name in ("lower", "upper", "work", "merged"):
        (trial / name).mkdir(parents=True)
    options = f"lowerdir={trial}/lower,upperdir={trial}/upper,workdir={trial}/work"
    command = ["mount", "--no-mtab", "-t", "overlay", "overlay", "-o", options, str(trial / "merged")]
    works = subprocess.run(command, capture_output=True, check=False).returncode == 0  # noqa: S603
    leftovers.remove_tree(trial)
    return works

"""Run a guest: boot it, run commands in it by ssh, reach its sockets, reboot it, cut its power.

A folder of this machine, `share`, is at the same path in the guest, so that a CRI client here can write the files that a pod's
configuration names. The guest's network is a loopback port of this machine for ssh and nothing else.
"""

import contextlib
import fcntl
import os
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from hooks.host.attributes import read_boot_id
from lading.errors import HostError
from simnode.child import Block, Child
from simnode.control_plane import free_port
from simnode.cri import Cri
from simnode.nvml import NvmlState
from simnode.patience import tail
from simnode.profile import Profile, load_profile
from simnode.vm.boot import BootWatch, Sample, parse_schedstat
from simnode.vm.hardware import place, render_cards, render_machine, render_nics
from simnode.vm.image import Image
from simnode.vm.qemu import Qemu

# Two sockets, each with a switch of a PF with three VFs and two cards: larger profiles boot longer.
PROFILE: Final = str(Path(__file__).parent / "small.json")
_TRIES: Final = 4
_POLL_S: Final = 1.0
# Without KVM: no_timer_check, because the check of the 8254 hung under load; tsc=reliable, because with two sockets Linux would
# take the time from the HPET, which QEMU models slowly; mitigations and init_on_alloc, which cost much.
# panic: QEMU ends then (-no-reboot).
_APPEND: Final = (
    "console=ttyS0 root=/dev/vda rw panic=-1 mitigations=off init_on_alloc=0 no_timer_check tsc=reliable"
    " systemd.show_status=yes udev.event_timeout=900"
)
_TCG: Final = ("-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max,la57=off")
_BUS: Final = "bus=pcie.0"  # otherwise QEMU would take a bus of the profile
_KVM: Final = ("-accel", "kvm", "-cpu", "host")
_WITH_PARENT: Final = ("setpriv", "--pdeathsig", "KILL")  # the kernel ends the guest when this process ends, however it ends
_CALL_S: Final = 600.0  # a sandbox takes half a minute without KVM, and more on a busy machine
# Files that QEMU passes to the guest by fw_cfg; its script root/usr/local/sbin/vm-hardware reads them at boot.
_GIVEN: Final[Mapping[str, Callable[[Profile], str]]] = {
    "cards": render_cards,
    "nvml": lambda profile: NvmlState(profile=profile).render(),
    "nics": render_nics,
}


class Done(NamedTuple):
    status: int
    out: str
    err: str


class Guest(Block):
    """Run a guest for a `with` block. It has a disk of its own, over the image, which is never written."""

    def __init__(self, image: Image, qemu: Qemu, *, profile: str = PROFILE, memory_mib: int = 3072) -> None:
        self.image = image
        self.profile: Profile = place(load_profile(profile))
        self.folder = Path(tempfile.mkdtemp(prefix="lading-vm-"))
        self.share = self.folder / "share"
        self.console = self.folder / "console.log"
        self.boots = 0
        self._qemu = qemu
        self._memory_mib = memory_mib
        self._disk = self.folder / "disk.qcow2"
        self._child: Child | None = None
        self._port = 0

    def _begin(self) -> None:
        self._ends.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self.share.mkdir()
        disks = os.open(self.image.disk.parent, os.O_RDONLY)
        self._ends.callback(os.close, disks)
        fcntl.flock(disks, fcntl.LOCK_SH)  # the disk must not be removed as an old one (layers.remove_older)
        for name, render in _GIVEN.items():
            (self.folder / name).write_text(render(self.profile))
        words = ["create", "-q", "-f", "qcow2", "-b", str(self.image.disk), "-F", "raw", str(self._disk)]
        subprocess.run([*self._qemu.img, *words], check=True)  # noqa: S603 -- no word is of a user
        self._ends.callback(self.cut_power)
        self.boot()

    # ---- power

    @property
    def log(self) -> Path:
        """Return the log of QEMU itself."""
        return self.folder / "qemu.log"

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.running

    def boot(self) -> float:
        """Boot the guest, and repeat a boot that hangs. Return the seconds from the last start until ssh answered."""
        mount = f"mkdir -p {self.share} && mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000 share {self.share}"
        for _ in range(_TRIES):
            began = time.monotonic()
            kvm = os.access("/dev/kvm", os.W_OK) and not self._no_kvm.exists()
            if self._boot_once(_KVM if kvm else _TCG):
                self.check(mount)
                return time.monotonic() - began
            self.cut_power()
            if kvm:
                self._no_kvm.touch()
        raise HostError(
            f"cannot boot the guest: it hung {_TRIES} times. The end of its console:\n{tail(self.console)}\n{tail(self.log)}",
            hint="run it again when the machine is less busy",
        )

    @property
    def _no_kvm(self) -> Path:
        """Return the file that exists if no guest boots with this machine's KVM, until the machine itself boots again. In some
        virtual machines /dev/kvm answers, and Debian's kernel ends in an internal error of KVM."""
        return self.image.key.with_name(f"no-kvm-{read_boot_id(Path('/'))}")

    def _boot_once(self, accelerator: Sequence[str]) -> bool:
        self.boots += 1
        self._port = free_port()
        self.console.write_text("")
        child = self._child = Child([*_WITH_PARENT, *self._qemu.system, *accelerator, *self._arguments()], log=self.log)
        child.start()
        watch = BootWatch(self._sample(child))
        while not self._answers():
            if child.status and accelerator != _KVM:
                raise HostError(f"cannot boot the guest: QEMU ended with status {child.status}:\n{tail(self.log)}")
            if not child.running or watch.hangs(self._sample(child)):
                return False
            time.sleep(_POLL_S)
        return True

    def _sample(self, child: Child) -> Sample:
        threads = []
        for path in Path(f"/proc/{child.pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):  # the thread has ended
                threads.append(path.read_text())
        cpu_s, wanted_s = parse_schedstat(threads)
        size = self.console.stat().st_size
        return Sample(at_s=time.monotonic(), cpu_s=cpu_s, wanted_s=wanted_s, console_bytes=size)

    def _answers(self) -> bool:
        """Return whether ssh works. Its time limit is only for one try: a connection that is made is not given up."""
        with socket.socket() as probe:
            probe.settimeout(5)
            try:
                probe.connect(("127.0.0.1", self._port))
                greeted = probe.recv(4)
            except OSError:
                return False
        return greeted == b"SSH-" and self.run("true").status == 0

    def reboot(self) -> float:
        """Reboot from inside. Return the seconds of the boot."""
        self.run("systemctl reboot")
        self._await_end()
        return self.boot()

    def shut_down(self) -> None:
        self.run("systemctl poweroff")
        self._await_end()

    def cut_power(self) -> None:
        """End the guest as a loss of power does: nothing in it is told. May be called twice."""
        if self._child:
            self._hang_up()
            self._child.kill()

    def _await_end(self) -> None:
        self._hang_up()
        child = self._child
        watch = BootWatch(self._sample(child)) if child else None
        while child and watch and child.running:
            if watch.hangs(self._sample(child)):
                raise HostError(f"cannot wait for the end of the guest: it hangs. Its console:\n{tail(self.console)}")
            time.sleep(_POLL_S)

    # ---- ssh

    def ssh(self, *words: str) -> list[str]:
        """Return the command that logs in to the guest, with these arguments of ssh. People may run it too."""
        options = ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR", "ConnectTimeout=60"]
        options += ["ServerAliveInterval=60", "ServerAliveCountMax=5"]
        options += ["ControlMaster=auto", f"ControlPath={self.folder}/ssh", "ControlPersist=yes", "StreamLocalBindUnlink=yes"]
        flags = [word for option in options for word in ("-o", option)]
        return ["ssh", *flags, "-i", str(self.image.key), "-p", str(self._port), *words, "root@127.0.0.1"]

    def run(self, script: str) -> Done:
        """Run a shell script in the guest and wait for its end."""
        command = [*self.ssh(), f"sh -c {shlex.quote(script)}"]
        done = subprocess.run(command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)  # noqa: S603
        return Done(done.returncode, done.stdout, done.stderr)

    def check(self, script: str) -> str:
        """Return the output of a script. HostError: it failed."""
        done = self.run(script)
        if done.status:
            raise HostError(f"cannot run {script!r} in the guest: status {done.status}: {done.out}{done.err}")
        return done.out

    def _hang_up(self) -> None:
        subprocess.run(self.ssh("-O", "exit"), check=False, capture_output=True)  # noqa: S603

    @contextlib.contextmanager
    def forward(self, path: str) -> Iterator[Path]:
        """Yield a socket of this machine behind which is a Unix socket of the guest."""
        local = Path(tempfile.mkdtemp(dir=self.folder)) / "s"
        forwarding = ("-L", f"{local}:{path}")
        subprocess.run(self.ssh("-O", "forward", *forwarding), check=True, capture_output=True)  # noqa: S603
        try:
            yield local
        finally:
            subprocess.run(self.ssh("-O", "cancel", *forwarding), check=False, capture_output=True)  # noqa: S603

    @contextlib.contextmanager
    def cri(self, path: str) -> Iterator[Cri]:
        """Yield a CRI client of a socket of the guest. Its pods are removed at the end."""
        with self.forward(path) as local, Cri(local, folder=self.share, cgroup_root="pods", deadline_s=_CALL_S) as client:
            yield client

    # ---- QEMU

    def _arguments(self) -> list[str]:
        image = self.image
        words = [*render_machine(self.profile, self._memory_mib)]
        words += ["-nodefaults", "-no-user-config", "-display", "none", "-vga", "none", "-no-reboot"]
        words += ["-kernel", str(image.kernel), "-initrd", str(image.initrd), "-append", _APPEND]
        words += ["-drive", f"file={self._disk},if=none,id=disk,format=qcow2,discard=unmap,cache=unsafe"]
        words += ["-device", f"virtio-blk-pci,drive=disk,{_BUS}", "-device", f"virtio-rng-pci,{_BUS}"]
        words += ["-fsdev", f"local,path={self.share},security_model=none,id=share"]
        words += ["-device", f"virtio-9p-pci,fsdev=share,mount_tag=share,{_BUS}"]
        words += ["-netdev", f"user,id=ssh,restrict=on,hostfwd=tcp:127.0.0.1:{self._port}-:22"]
        words += ["-device", f"virtio-net-pci,netdev=ssh,mac=52:54:00:00:00:01,romfile=,{_BUS}"]
        words += ["-chardev", f"file,id=console,path={self.console},append=on", "-serial", "chardev:console"]
        given = (path for path in (self.folder / name for name in _GIVEN) if path.stat().st_size)
        words += [word for path in given for word in ("-fw_cfg", f"name=opt/lading/{path.name},file={path}")]
        return words

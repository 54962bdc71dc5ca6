"""Start, ask and end the MPS control daemon of one card.

The daemon runs as a transient service of systemd, `lading-mps-<UUID>`. The service is outside the cgroup of lading-hooks, so
that it survives a stop of lading-hooks; outside the sandbox of lading-hooks, in which no server could start; and with its own
/dev/shm, which the containers of the card share. If the daemon dies, systemd ends its servers too.

A daemon is running if its pid file names a process with the expected command line and cgroup. The socket proves nothing,
because it outlives the daemon. /proc/<pid>/exe would need CAP_SYS_PTRACE, which lading-hooks does not have. The pipe folder is
read-only in containers, so only root can write the pid file.

The daemon rounds a memory limit down to GiB from 1 GiB on when it is read back (driver 595.91), so limits are never compared.

Source: NVIDIA, Multi-Process Service, appendix "Tools and interface reference"; systemd-run(1); facts that were seen on driver
595.91 are in docs/isolation.md.

Tests: tests/unit/hooks/mps/test_daemons.py
"""

import asyncio
import contextlib
import os
import re
import shutil
import signal
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hooks.host.commands import bare_env, run_command
from hooks.host.open_folders import make_folder, remove_folder
from hooks.isolation.mps import PIPE, Limits, MpsFolders
from lading.errors import HostError
from lading.selinux import Label, no_label
from lading.vocabulary import GpuUuid

ANSWER_S: Final = 3.0  # for one question; an idle daemon answers in milliseconds
START_S: Final = 8.0  # for systemd, the daemon, and its first answer
QUIT_S: Final = 5  # seconds for the server to end with its clients, before it is killed
ENDED_S: Final = 2.0  # for a process that was killed
FAULT: Final = "FAULT"

_SERVICE: Final = re.compile(r"/lading-mps-([^/]+)\.service")  # in a cgroup's path
_SERVER: Final = "nvidia-cuda-mps-server"
_POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """Control one card's daemon. Each method raises HostError if it fails."""

    uuid: GpuUuid
    folders: MpsFolders
    command: str  # nvidia-cuda-mps-control
    systemd_run: str = "systemd-run"
    answer_s: float = ANSWER_S
    label: Label = no_label  # labels the folders for containers, on a host with SELinux

    @property
    def _env(self) -> dict[str, str]:
        return {
            **bare_env(),
            "CUDA_VISIBLE_DEVICES": self.uuid,
            PIPE: self.folders.pipe(self.uuid),
            "CUDA_MPS_LOG_DIRECTORY": self.folders.log(self.uuid),
        }

    @property
    def _pid_file(self) -> Path:
        return Path(self.folders.pipe(self.uuid)) / "nvidia-cuda-mps-control.pid"

    def make_folders(self) -> None:
        """Make the daemon's folders. They record that this card may have a daemon and another compute mode."""
        try:
            for name, mode in (
                (self.folders.shm_dir, 0o700),
                (self.folders.pipe(self.uuid), 0o755),  # processes of any user of a container go through it
                (self.folders.log(self.uuid), 0o700),
                (self.folders.shm(self.uuid), 0o1777),
            ):
                make_folder(Path(name), mode)
                self.label(Path(name))
        except OSError as e:
            raise HostError(f"cannot make the folders of the MPS daemon: {e}") from e

    async def remove_folders(self) -> None:
        """Remove the daemon's folders; remove the folder last that records the daemon."""
        await remove_folder(Path(self.folders.shm(self.uuid)), systemd_run=self.systemd_run)
        shutil.rmtree(self.folders.of(self.uuid), ignore_errors=True)

    def pid(self) -> int | None:
        """Return the process ID of the daemon; None if it does not run."""
        try:
            pid = int(self._pid_file.read_text())
        except (OSError, ValueError):
            return None
        return pid if self._runs(pid, Path(self.command).name) else None

    async def start(self) -> None:
        """Start the daemon, and wait until it answers."""
        began = time.monotonic()
        with contextlib.suppress(OSError):
            self._pid_file.unlink()  # PID file of a daemon that died
        await run_command([*self._as_service(), self.command, "-d", "-multiuser-server"], env=self._env, wait_s=START_S)
        while self.pid() is None:
            if time.monotonic() - began > START_S:
                raise HostError(f"{self.command} -d wrote no {self._pid_file} within {START_S:g} s")
            await asyncio.sleep(_POLL_S)
        text = await self.ask("get_default_active_thread_percentage")
        try:
            float(text)
        except ValueError as e:
            raise HostError(f"{self.command} answers {text!r:.80} to get_default_active_thread_percentage") from e

    def _as_service(self) -> list[str]:
        names = ("CUDA_VISIBLE_DEVICES", PIPE, "CUDA_MPS_LOG_DIRECTORY")
        properties = {
            "Type": "forking",
            "PIDFile": str(self._pid_file),
            "TimeoutStartSec": f"{START_S:g}",
            "TimeoutStopSec": str(QUIT_S),
            "BindPaths": f"{self.folders.shm(self.uuid)}:/dev/shm",
            "OOMScoreAdjust": "-999",
        }
        options = [f"--property={key}={value}" for key, value in properties.items()]
        options += [f"--setenv={name}={self._env[name]}" for name in names]
        return [self.systemd_run, "--quiet", "--collect", f"--unit=lading-mps-{self.uuid}", *options, "--"]

    async def ask(self, *commands: str, wait_s: float | None = None) -> str:
        """Send these commands to the daemon, and return its answer."""
        return await run_command(
            [self.command], env=self._env, text="".join(f"{one}\n" for one in commands), wait_s=wait_s or self.answer_s
        )

    async def servers(self) -> tuple[int, ...]:
        """Return the process IDs of the daemon's servers: one server after the first client."""
        return tuple(int(word) for word in (await self.ask("get_server_list")).split() if word.isdecimal())

    async def has_fault(self, servers: Collection[int]) -> bool:
        """Return whether a server is blocked by a client's fault: all of its clients end, and it accepts no new client before
        that."""
        states = [await self.ask(f"get_server_status {server}") for server in servers]
        return any(FAULT in state.upper().split() for state in states)

    async def count_clients(self, servers: Collection[int]) -> int:
        """Return the number of processes that use the card by these servers."""
        lists = [await self.ask(f"get_client_list {server}") for server in servers]
        return sum(word.isdecimal() for text in lists for word in text.split())

    async def set_limits(self, limits: Limits, servers: Collection[int]) -> None:
        """Set the limits of processes without limits in their environment, for the running servers and the next server."""
        percent, memory = str(limits.percent), f"{limits.memory_mib}M"
        # 0 is the daemon's own number of its only card.
        commands = [f"set_default_active_thread_percentage {percent}", f"set_default_device_pinned_mem_limit 0 {memory}"]
        for server in servers:
            commands += [f"set_active_thread_percentage {server} {percent}", f"set_device_pinned_mem_limit {server} 0 {memory}"]
        await self.ask(*commands)

    async def quit(self, servers: Collection[int]) -> None:
        """End the daemon and its servers, even if they have clients. Return when all have ended. A daemon without a pid file
        is asked too."""
        programs = dict.fromkeys(servers, _SERVER)
        if (control := self.pid()) is not None:
            programs[control] = Path(self.command).name
        with contextlib.suppress(HostError):  # there is no daemon, or it hangs and is killed below
            programs |= dict.fromkeys(await self.servers(), _SERVER)
            await self.ask(f"quit -t {QUIT_S}", wait_s=QUIT_S + self.answer_s)
            await self._wait_ended(programs)
        for pid in self._left(programs):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await self._wait_ended(programs)
        if left := self._left(programs):
            names = ", ".join(map(str, left))
            raise HostError(f"process {names} of MPS on {self.uuid} was killed and does not end; is it stuck in the driver?")

    async def _wait_ended(self, programs: Mapping[int, str]) -> None:
        """Wait until they have ended, for a bounded time."""
        until = time.monotonic() + ENDED_S
        while self._left(programs) and time.monotonic() < until:  # noqa: ASYNC110 -- processes tell no event when they end
            await asyncio.sleep(_POLL_S)

    def _left(self, programs: Mapping[int, str]) -> list[int]:
        return [pid for pid, name in programs.items() if self._runs(pid, name)]

    def _runs(self, pid: int, name: str) -> bool:
        """Return whether the process runs this program, or the script of this name, and not for another card: its number may be
        another process's now."""
        process = Path("/proc", str(pid))
        try:
            text = (process / "cmdline").read_bytes().split(b"\0")
            services = _SERVICE.findall((process / "cgroup").read_text())
        except OSError:
            return False
        return name.encode() in {word.rpartition(b"/")[2] for word in text[:2]} and {*services} <= {self.uuid}

"""A node of this machine: a private containerd, the daemons on the machine's own card and driver, and containers of pods.

A simulated node that is taken for the machine (tests/gpu/machine.py) has another root folder, and its containers need what its
fakes need.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from simnode import images
from simnode.child import Block
from simnode.containerd import PrivateContainerd
from simnode.cri import Cri
from simnode.daemons import Daemon, render_flat_toml
from simnode.kubelet import ContainerOptions, Mount
from tests.gpu.machine import ROOT
from tests.shares.card import MachineCard

GPU: Final = "lading.dev/gpus"
_PASSED_ON: Final = ("ROUNDS_PER_US", "FAKE_CUDA_DIR", "FAKE_NVML_STATE")


class GpuNode(Block):
    def __init__(self, folder: Path, card: MachineCard, runtime: PrivateContainerd, *, libraries: Path, mode: str) -> None:
        """Describe the node. `mode`: gpu_mode of its hook server. `libraries`: those of the isolation tokens, compiled."""
        self.root = Path(os.environ.get(ROOT, "/"))
        self._folder = folder
        self._card = card
        self._runtime = runtime
        self._mode = mode
        self._libraries = libraries
        self.hooks = self._daemon("hooks", module="hooks.main", socket="hooks.sock")
        self.shares = self._daemon("shares", module="shares.main", socket="shares.sock")
        self.proxy = self._daemon("runtimeproxy", module="runtimeproxy.main", socket="cri.sock")

    def _daemon(self, name: str, *, module: str, socket: str) -> Daemon:
        return Daemon(f"lading-{name}", config=self._folder / f"{name}.toml", socket=self._folder / socket, module=module)

    @property
    def logs(self) -> tuple[Path, ...]:
        return (self.hooks.log, self.shares.log, self.proxy.log)

    def _begin(self) -> None:
        self._write_configs()
        for daemon in (self.shares, self.hooks):
            self._ends.callback(daemon.stop)
            daemon.start()
        (self._folder / "hooks.d/50-lading.json").write_text(self.command("hooks.main", "registration"))
        self._ends.callback(self.proxy.stop)
        self.proxy.start()
        self.kubelet: Cri = self._ends.enter_context(self._runtime.client(via=self.proxy.socket))

    def _write_configs(self) -> None:
        (self._folder / "hooks.d").mkdir()
        folders = {"shares_dir": str(self._folder / "shares"), "metrics": ""}
        runtime = {"runtime_endpoint": str(self._runtime.socket)}
        hooks = {
            "listen": str(self.hooks.socket),
            "host_root": str(self.root),
            "state_dir": str(self._folder / "state"),
            "assignments": ["manual"],
            "node_name": "gpu",
            "gpu_mode": self._mode,
            "driver_root": str(self._card.root),
            "nvml_library": str(self._card.folder / "libnvidia-ml.so.1"),
            "cdi_dir": str(self._runtime.layout.cdi),
            "cdi_hook": "/no-such-hook",  # links to the driver's libraries are mounts then
            "isolations": ["none", "tokens"] if self._mode == "devices" else ["none"],
            "share_libraries": str(self._libraries),
            "shares_socket": str(self.shares.socket),
        }
        proxy = {"listen": str(self.proxy.socket), "hooks_dir": str(self._folder / "hooks.d"), "metrics": ""}
        self.hooks.config.write_text(render_flat_toml({**hooks, **folders, **runtime}))
        self.shares.config.write_text(render_flat_toml({"listen": str(self.shares.socket), **folders}))
        self.proxy.config.write_text(render_flat_toml({**proxy, **runtime}))

    def command(self, module: str, *words: str) -> str:
        """Run a command of the node. Return what it prints."""
        config = self.hooks.config if module == "hooks.main" else self.shares.config
        command = [sys.executable, "-m", module, *words, "--config", str(config)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def uses(self) -> list[dict[str, Any]]:
        """Return who has which share, as `lading-shares status` shows it."""
        shown: list[dict[str, Any]] = json.loads(self.command("shares.main", "status", "-o", "json"))
        return shown

    def container(self, *command: str) -> ContainerOptions:
        """Return what a container needs whose programs use the card: gpu-work is in its image."""
        env = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        folders = {Path(env[name]) for name in env if name.startswith("FAKE_")}
        mounts = [Mount(host_path=path, container_path=str(path)) for path in sorted(folders)]
        return {"image": images.CUDA, "env": env, "mounts": mounts, "command": list(command) or ["/bin/pause"]}

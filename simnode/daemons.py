"""Run the daemons of a node as child processes on a simulated node, in front of a private containerd.

The daemons are `lading-hooks` with `lading-runtimeproxy`, or by NRI `lading-hooks` with its guard; nodes that enforce shares
have `lading-shares` too. Configuration, sockets, state and logs are below one folder. A CRI client connects to `cri_socket`, or
by NRI to the runtime's socket. A fake libnvidia-ml.so.1 is compiled for the daemons. A daemon that does not start raises an
error with the end of its log. The hook registration is printed by `lading-hooks registration`.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

from hooks.daemon.registration import render_registration
from hooks.daemon.settings import Settings
from hooks.frontends.nri.guard.build import build as build_guard
from hooks.frontends.nri.guard.lock import find_guard
from lading.compiling import find_compiler
from lading.settings import add_flags, load
from shares.library import build as library
from simnode.build import SimNode
from simnode.child import Block, Child, answers
from simnode.cri import Cri
from simnode.cuda import find_cuda_state
from simnode.nvml import compile_fake_nvml

_UNITS: Final = Path(__file__).parents[1] / "systemd"


class Runtime(Protocol):
    """Declare the runtime behind the daemons: a `PrivateContainerd`, or a fake runtime."""

    @property
    def socket(self) -> Path: ...

    def client(self, *, via: Path | None = None, api: str = "v1") -> Cri: ...


class Daemon(Child):
    """Run a daemon of Lading, which is ready when its socket answers."""

    def __init__(
        self, command: str, *, config: Path, socket: Path, env: Mapping[str, str] | None = None, module: str = ""
    ) -> None:
        """Prepare the daemon. `module` is run instead of the command, with the same arguments."""
        self.program = str(Path(sys.executable).with_name(command))  # beside this Python: .venv/bin
        serve = [sys.executable, "-m", module] if module else [self.program]
        super().__init__([*serve, "--config", str(config)], log=config.with_suffix(".log"), env=env)
        self.config = config
        self.socket = socket

    def start(self) -> None:
        super().start()
        self.wait_until(lambda: answers(self.socket), f"an answer at {self.socket}")

    def restart(self) -> None:
        self.stop()
        self.start()


def _read_environment(unit: str) -> dict[str, str]:
    """Return what a unit of this checkout sets in its daemon's environment."""
    lines = (_UNITS / unit).read_text().splitlines()
    text = (line.removeprefix("Environment=").split() for line in lines if line.startswith("Environment="))
    return dict(pair.split("=", 1) for line in text for pair in line)


class Guard(Child):
    """Run `lading-hooks nri-guard`, which is ready when the runtime asks it."""

    def __init__(self, *, config: Path, lock: Path) -> None:
        command = str(Path(sys.executable).with_name("lading-hooks"))
        self._program = config.with_name("ladingguard")
        text = ["nri-guard", "--config", str(config), "--program", str(self._program)]
        super().__init__([command, *text], log=config.with_name("nri-guard.log"))
        self._lock = lock

    def start(self) -> None:
        if not self._program.exists():
            build_guard(self._program, find_compiler())
        super().start()
        self.wait_until(lambda: self.guards, "its connection to the runtime")

    @property
    def guards(self) -> bool:
        """Return whether the guard is connected to the runtime."""
        return not find_guard(self._lock)


class LadingNode(Block):
    """Run the daemons. `tokens`: the node offers the isolation tokens too. `nri`: the path of the runtime's NRI socket, to
    which the daemons connect as plugins, without a proxy. `hooks_settings` and `proxy_settings` are added to the configuration
    files, and replace existing settings."""

    def __init__(
        self,
        folder: Path,
        *,
        node: SimNode,
        runtime: Runtime,
        hooks_settings: Mapping[str, object] | None = None,
        proxy_settings: Mapping[str, object] | None = None,
        hooks_module: str = "",
        hooks_env: Mapping[str, str] | None = None,
        tokens: bool = False,
        nri: Path | None = None,
    ) -> None:
        self.folder = folder
        self.nri = nri
        self._tokens = tokens
        self.node = node
        self._runtime = runtime
        self._hooks_settings = hooks_settings or {}
        self._proxy_settings = proxy_settings or {}
        self.hooks_dir = folder / "hooks.d"
        self.cri_socket = folder / "cri.sock"
        env = {"FAKE_NVML_STATE": str(node.nvml_state), **(hooks_env or {})}
        self.hooks = Daemon(
            "lading-hooks", config=folder / "hooks.toml", socket=folder / "hooks.sock", env=env, module=hooks_module
        )
        shares_env = {"FAKE_NVML_STATE": str(node.nvml_state), "FAKE_CUDA_DIR": str(find_cuda_state(node))}
        self.shares = Daemon("lading-shares", config=folder / "shares.toml", socket=folder / "shares.sock", env=shares_env)
        self.guard = Guard(config=folder / "hooks.toml", lock=folder / "nri-guard.lock")
        proxy_env = _read_environment("lading-runtimeproxy.service")
        self.proxy = Daemon("lading-runtimeproxy", config=folder / "runtimeproxy.toml", socket=self.cri_socket, env=proxy_env)

    def _begin(self) -> None:
        self._ends.callback(self.stop)
        self.write_config()
        if self._tokens:
            for soname in library.SOURCES:
                library.build(self._libraries / soname, find_compiler())
            self.shares.start()
        self.hooks.start()
        if self.nri:
            self.guard.start()
        else:
            self.register()
            self.proxy.start()

    @property
    def logs(self) -> list[Path]:
        way_in = self.guard.log if self.nri else self.proxy.log
        return [self.hooks.log, way_in, *([self.shares.log] if self._tokens else [])]

    @property
    def _libraries(self) -> Path:
        return self.folder / "libraries"

    def client(self, *, api: str = "v1") -> Cri:
        """Return a CRI client that goes where kubelet would: through the proxy, or by NRI to the runtime itself."""
        return self._runtime.client(via=None if self.nri else self.cri_socket, api=api)

    def write_config(self) -> None:
        self.hooks_dir.mkdir(parents=True, exist_ok=True)
        nvml = str(compile_fake_nvml(self.node.nvml_state.parent))
        hooks: dict[str, object] = {
            "listen": str(self.hooks.socket),
            "host_root": str(self.node.root),
            "state_dir": str(self.folder / "state"),
            "runtime_endpoint": str(self._runtime.socket),
            "assignments": ["manual"],
            "node_name": "demo",
            "nvml_library": nvml,
            "gpu_mode": "devices",
            **({"front_end": "nri", "nri_socket": str(self.nri)} if self.nri else {}),
        }
        proxy: dict[str, object] = {
            "listen": str(self.cri_socket),
            "runtime_endpoint": str(self._runtime.socket),
            "hooks_dir": str(self.hooks_dir),
        }
        shares_dir = str(self.folder / "shares")
        if self._tokens:
            hooks |= {"isolations": ["none", "tokens"], "shares_dir": shares_dir, "share_libraries": str(self._libraries)}
            hooks |= {"driver_root": str(self.node.root), "shares_socket": str(self.shares.socket)}
            shares = {"listen": str(self.shares.socket), "shares_dir": shares_dir, "metrics": "", "nvml_library": nvml}
            self.shares.config.write_text(render_flat_toml(shares))
        self.hooks.config.write_text(render_flat_toml({**hooks, **self._hooks_settings}))
        self.proxy.config.write_text(render_flat_toml({**proxy, **self._proxy_settings}))

    def reconfigure_hooks(self, **changes: object) -> None:
        """Restart lading-hooks with other settings."""
        self._hooks_settings = {**self._hooks_settings, **changes}
        self.write_config()
        self.hooks.restart()

    def register(self) -> Path:
        """Write the hook server's registration into the proxy's folder of registrations."""
        path = self.hooks_dir / "50-lading.json"
        path.write_text(json.dumps(render_registration(_read_settings(self.hooks.config))))
        return path

    def stop(self) -> None:
        """Stop the proxy first, so that it does not call hooks that have ended. May be called twice."""
        self.proxy.stop()
        self.guard.stop()
        self.hooks.stop()
        self.shares.stop()


def _read_settings(config: Path) -> Settings:
    parser = argparse.ArgumentParser()
    add_flags(parser, Settings, config=config)
    return load(Settings, parser.parse_args(["--config", str(config)]))


def render_flat_toml(settings: Mapping[str, object]) -> str:
    """Render strings, numbers, booleans and lists of them: JSON and TOML write these alike, except for DEL."""
    lines = (f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in settings.items())
    return "".join(lines).replace("\x7f", "\\u007f")

"""Read from a node what the checks of `lading-runtimeproxy doctor` need: each thing once. Nothing is changed."""

import asyncio
import os
from pathlib import Path
from typing import Final

from lading import __version__
from lading.doctor.config import ConfigSeen
from lading.doctor.http import Said
from lading.doctor.kubelet import Route
from lading.doctor.neighbour import HooksConfig
from lading.doctor.read import read_neighbour, read_runtime, read_said, read_socket, read_units
from lading.doctor.read_kubelet import read_kubelet
from lading.doctor.reading import Readings, said_by
from lading.doctor.runtime import RuntimeSeen
from lading.doctor.sockets import SocketSeen
from lading.doctor.units import UnitsSeen
from lading.doctor.versions import VersionsSeen
from lading.log import Event, Level, Log
from lading.sockets import Access, parse_endpoint, wanted_access
from lading.threads import in_thread
from runtimeproxy.chain.hooksdir import HooksDir
from runtimeproxy.chain.registrations import Registration
from runtimeproxy.doctor.hooks import FolderSeen, LoadSeen, ServerSeen
from runtimeproxy.settings import Settings

DAEMON: Final = "lading-runtimeproxy"
HOOKS: Final = "lading-hooks"
UNITS: Final = (f"{DAEMON}.socket", f"{DAEMON}.service")


class _Nowhere:
    """A log sink that drops everything: what the proxy would log is also in the returned value."""

    def write(self, level: Level, event: Event, message: str, fields: dict[str, str]) -> None:
        pass


def read_folder(folder: Path, guarded_prefixes: tuple[str, ...]) -> FolderSeen:
    """Read the folder as the proxy does, but without its memory of earlier versions of a bad file. Blocks."""
    if folder.exists() and not os.access(folder, os.R_OK | os.X_OK):
        raise PermissionError(f"no permission to read {folder}")
    found: list[Registration] = []
    reader = HooksDir(folder, found.extend, Log(_Nowhere()), owner_uid=0)
    reader.read()
    return FolderSeen(
        folder=folder, registrations=tuple(found), complaints=reader.complaints, guarded_prefixes=guarded_prefixes
    )


class Host(Readings):
    """One node, with this configuration."""

    def __init__(self, settings: Settings, *, root: Path, config: ConfigSeen, hooks_config: Path) -> None:
        super().__init__()
        self.root = root
        self.settings = settings
        self._config = config
        self._hooks_config = hooks_config

    async def config_file(self) -> ConfigSeen:
        return self._config

    async def socket(self) -> SocketSeen:
        runtime = parse_endpoint(self.settings.runtime_endpoint)
        wanted = await in_thread(lambda: wanted_access(mode=0o660, like=runtime))
        return await read_socket(parse_endpoint(self.settings.listen), daemon=DAEMON, wanted=wanted)

    async def runtime(self) -> RuntimeSeen:
        return await read_runtime(parse_endpoint(self.settings.runtime_endpoint))

    async def route(self) -> Route:
        kubelet = await in_thread(lambda: read_kubelet(self.root))
        return Route(kubelet=kubelet, proxy=self.settings.listen, runtime=self.settings.runtime_endpoint)

    async def folder(self) -> FolderSeen:
        folder = Path(self.settings.hooks_dir)
        return await self.once("folder", lambda: in_thread(lambda: read_folder(folder, self.settings.guarded_prefixes)))

    async def servers(self) -> tuple[ServerSeen, ...]:
        registrations = (await said_by("hooks-dir", self.folder())).registrations
        wanted = Access(0, 0, 0o600)
        reads = [read_socket(Path(r.endpoint), daemon=r.name, wanted=wanted) for r in registrations]
        sockets = await asyncio.gather(*reads)
        return tuple(ServerSeen(registration=r, socket=s) for r, s in zip(registrations, sockets, strict=True))

    async def said(self) -> Said:
        return await self.once("said", lambda: read_said(DAEMON, self.settings.metrics))

    async def load(self) -> LoadSeen:
        said = await said_by("ready", self.said())
        return LoadSeen(said=said, most=self.settings.max_connections, socket=parse_endpoint(self.settings.listen))

    async def versions(self) -> VersionsSeen:
        neighbour = await in_thread(lambda: read_neighbour(self._hooks_config, HooksConfig))
        hooks = await read_said(HOOKS, neighbour.metrics)
        running = {DAEMON: (await said_by("ready", self.said())).version, HOOKS: hooks.version}
        return VersionsSeen(program=DAEMON, installed=__version__, running=running)

    async def units(self) -> UnitsSeen:
        return await in_thread(lambda: read_units(self.root, UNITS))

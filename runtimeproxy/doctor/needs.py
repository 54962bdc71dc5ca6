"""List the node's files that lading-runtimeproxy uses, check by check, and where each may be so that its unit does not hide it.

Enters: settings and registrations. Leaves: paths with what they are for.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from lading.doctor.sandbox import Needed, Use
from lading.sockets import parse_endpoint
from runtimeproxy.chain.registrations import Registration
from runtimeproxy.settings import Settings

_ETC: Final = "/etc/lading"
_RESTART: Final = "systemctl restart lading-runtimeproxy"


def config_need(config: Path) -> Needed:
    elsewhere = f"install -D -m 0600 {config} {_ETC}/runtimeproxy.toml; remove --config from its unit; {_RESTART}"
    return Needed(path=config, use=Use.READ, what="its configuration", elsewhere=elsewhere)


def socket_needs(settings: Settings) -> tuple[Needed, ...]:
    folder = parse_endpoint(settings.listen).parent
    elsewhere = f"set listen to a path below /run/lading, and ListenStream= too; {_RESTART}"
    return (Needed(path=folder, use=Use.WRITE, what="the folder of its socket", elsewhere=elsewhere),)


def runtime_needs(settings: Settings) -> tuple[Needed, ...]:
    endpoint = parse_endpoint(settings.runtime_endpoint)
    elsewhere = f"put the runtime's socket below /run, in the runtime's configuration; {_RESTART}"
    return (Needed(path=endpoint, use=Use.CONNECT, what="runtime_endpoint", elsewhere=elsewhere),)


def folder_needs(folder: Path, names: Iterable[str]) -> tuple[Needed, ...]:
    elsewhere = f'hooks_dir = "{_ETC}/hooks.d" in runtimeproxy.toml, with the files of {folder}; {_RESTART}'
    files = (
        Needed(
            path=folder / name,
            use=Use.READ,
            what="a registration",
            elsewhere=f"install -m 0644 {folder / name} {_ETC}/hooks.d/",
        )
        for name in names
    )
    return (Needed(path=folder, use=Use.LIST, what="hooks_dir", elsewhere=elsewhere), *files)


def server_needs(registrations: Iterable[Registration]) -> tuple[Needed, ...]:
    return tuple(
        Needed(
            path=Path(one.endpoint),
            use=Use.CONNECT,
            what=f"remote-endpoint of {one.name}",
            elsewhere="put the server's socket below /run, and change remote-endpoint in its registration",
        )
        for one in registrations
    )

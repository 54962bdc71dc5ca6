"""The files of the node that lading-hooks uses, check by check, and how to move each to a place that its unit does not hide.

Enters: settings, and the kubeconfig as it was read. Leaves: paths with their purpose. A setting that is empty is not used.

Source: Kubernetes "kubeconfig (v1)" (relative paths are from the file's folder).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from hooks.daemon.settings import Settings
from hooks.vendors.nvidia.inject import GpuMode
from lading.doctor.sandbox import Needed, Use
from lading.sockets import parse_endpoint

_ETC: Final = "/etc/lading"
_PLUGIN: Final = "exec.command"
_RESTART: Final = "systemctl restart lading-hooks"


def config_needs(settings: Settings, config: Path) -> tuple[Needed, ...]:
    needed = [_file(config, "its configuration", f"{_ETC}/hooks.toml", "no --config in its unit")]
    if "/" in settings.nvswitch_partitions:
        needed.append(_setting(settings.nvswitch_partitions, "nvswitch_partitions"))
    return tuple(needed)


def key_needs(settings: Settings) -> tuple[Needed, ...]:
    return tuple(
        _file(
            Path(path),
            f"keys.{key_id}",
            f"{_ETC}/keys/{Path(path).name}",
            f'{key_id} = "{_ETC}/keys/{Path(path).name}" in [keys]',
        )
        for key_id, path in settings.keys.items()
    )


def socket_needs(settings: Settings) -> tuple[Needed, ...]:
    folder = parse_endpoint(settings.listen).parent
    return (
        _needed(folder, Use.WRITE, "the folder of its socket", f"listen below /run/lading, and ListenStream= too; {_RESTART}"),
    )


def state_needs(settings: Settings) -> tuple[Needed, ...]:
    return (
        _needed(Path(settings.state_dir), Use.WRITE, "state_dir", f'state_dir = "/var/lib/lading" in hooks.toml; {_RESTART}'),
    )


def runtime_needs(settings: Settings) -> tuple[Needed, ...]:
    endpoint = parse_endpoint(settings.runtime_endpoint)
    return (
        _needed(
            endpoint, Use.CONNECT, "runtime_endpoint", f"the runtime's socket below /run, in its configuration; {_RESTART}"
        ),
    )


def driver_needs(settings: Settings) -> tuple[Needed, ...]:
    return (_setting(settings.nvml_library, "nvml_library"),) if "/" in settings.nvml_library else ()


def driver_file_needs(settings: Settings) -> tuple[Needed, ...]:
    by_files = settings.gpu_mode is GpuMode.DEVICES and settings.driver_root
    return (_folder(settings.driver_root, "driver_root"),) if by_files else ()


def cdi_needs(settings: Settings) -> tuple[Needed, ...]:
    by_names = settings.gpu_mode is GpuMode.CDI
    return tuple(_folder(folder, "cdi_spec_dirs") for folder in settings.cdi_spec_dirs) if by_names else ()


# ---- the API server


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubeconfig:
    """The parts of a kubeconfig's current context that are in other places."""

    server: str = ""  # URL of the server, or of the proxy to it
    files: Mapping[str, Path] = field(default_factory=dict)  # by the key that names them


def find_elsewhere(content: Any, folder: Path) -> Kubeconfig:
    """Find the server and the files. `content` is the YAML; invalid parts are left out, because `api` reports them."""
    context = _named(content, "contexts", "context", _text(content, "current-context"))
    cluster = _named(content, "clusters", "cluster", _text(context, "cluster"))
    user = _named(content, "users", "user", _text(context, "user"))
    named = {"certificate-authority": cluster, "client-certificate": user, "client-key": user, "tokenFile": user}
    files = {key: folder / path for key, table in named.items() if (path := _text(table, key))}
    plugin = _text(user.get("exec"), "command")
    if "/" in plugin:  # otherwise it is on the daemon's PATH
        files[_PLUGIN] = folder / plugin
    return Kubeconfig(server=_text(cluster, "proxy-url") or _text(cluster, "server"), files=files)


def _named(content: Any, tables: str, table: str, name: str) -> dict[str, Any]:
    entries = content.get(tables) if isinstance(content, dict) else None
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and entry.get("name") == name and isinstance(entry.get(table), dict):
            found: dict[str, Any] = entry[table]
            return found
    return {}


def _text(table: Any, key: str) -> str:
    value = table.get(key) if isinstance(table, dict) else None
    return value if isinstance(value, str) else ""


def api_needs(settings: Settings, kubeconfig: Kubeconfig) -> tuple[Needed, ...]:
    if not settings.report or not settings.kubeconfig:
        return ()
    inside = (
        _file(
            path,
            f"{key} in {settings.kubeconfig}",
            f"{_ETC}/{path.name}",
            f"{key}: {_ETC}/{path.name} in {settings.kubeconfig}",
        )
        for key, path in kubeconfig.files.items()
    )
    return (_setting(settings.kubeconfig, "kubeconfig"), *inside)


# ---- how to move it


def _file(path: Path, what: str, target: str, then: str) -> Needed:
    mode = "0755" if what.startswith(_PLUGIN) else "0600"
    return _needed(path, Use.READ, what, f"install -D -m {mode} {path} {target}; {then}; {_RESTART}")


def _setting(path: str, key: str) -> Needed:
    target = f"{_ETC}/{Path(path).name}"
    return _file(Path(path), key, target, f'{key} = "{target}" in hooks.toml')


def _folder(path: str, key: str) -> Needed:
    return _needed(Path(path), Use.LIST, key, f"{key} in hooks.toml: a folder that its unit does not hide; {_RESTART}")


def _needed(path: Path, use: Use, what: str, elsewhere: str) -> Needed:
    return Needed(path=path, use=use, what=what, elsewhere=elsewhere)

"""Install the CRI proxy on a node from a container with the image lading-node: `lading-hooks install-proxy`.

The node needs no Python. The image's script install-node.sh alone decides which files are written, kept and restored. The
command replaces itself by this script, so that signals reach it. The script runs on the node, with the node's own programs, and
gets the image as an open folder. Source: setns(2), proc(5): /proc/PID/fd.
"""

import argparse
import os
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from hooks.attach.namespaces import enter
from lading.errors import ConfigError, HostError

CONFIG_DIR: Final = Path("/etc/lading")
SCRIPT: Final = "share/lading/deploy/install-node.sh"
_NAMESPACES: Final = ("net", "uts", "ipc", "mnt")  # mnt last: with it /proc is the node's
_OF_THE_SCRIPT: Final = ("--wheel", "--source", "--image", "--packages", "--python", "--root", "--config")
_ENVIRONMENT: Final = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
_SHELL: Final = "/bin/bash"


def install_proxy(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="lading-hooks install-proxy",
        allow_abbrev=False,  # --config of the script is not --config-dir
        description="From a container with the image lading-node, install the CRI proxy and lading-hooks on the node, upgrade, "
        "roll back or uninstall them. The container is privileged and has the node's process ids.",
        epilog="Options are those of install-node.sh (--dry-run, --report, --node-name NAME, --no-kubelet, --rollback, "
        f"--uninstall, --force, --manual), but for {', '.join(_OF_THE_SCRIPT)}.",
    )
    parser.add_argument(
        "--config-dir",
        type=Path,
        default=CONFIG_DIR,
        metavar="DIR",
        help="hooks.toml, runtimeproxy.toml and KEYID.pub.pem of the container, as far as they are there, are given to the "
        f"script as --config [{CONFIG_DIR}]",
    )
    args, options = parser.parse_known_args(argv)
    if refused := [one for one in options if one.partition("=")[0] in _OF_THE_SCRIPT]:
        raise ConfigError(f"{refused[0]} has no meaning in a container", hint="configuration: --config-dir")
    image, mounts = os.open("/", os.O_PATH | os.O_DIRECTORY), os.open("/proc/self/ns/mnt", os.O_RDONLY)
    for fd in (image, mounts):  # without an open descriptor, the container's mount namespace ends with its last process
        os.set_inheritable(fd, True)
    root = f"/proc/self/fd/{image}"
    script = f"{root}{sysconfig.get_path('data')}/{SCRIPT}"
    given = [word for path in find_configuration(args.config_dir) for word in ("--config", f"{root}{path}")]
    enter_node()
    try:
        os.execve(_SHELL, [_SHELL, script, "--image", root, *given, *options], _ENVIRONMENT)  # noqa: S606 -- the node's own
    except OSError as e:
        raise HostError(f"cannot start {_SHELL} of the node: {e.strerror}") from e


def find_configuration(folder: Path) -> Iterator[Path]:
    """Yield the configuration files in this folder that install-node.sh accepts."""
    for path in sorted(folder.absolute().glob("*")):
        if path.name in {"hooks.toml", "runtimeproxy.toml"} or path.name.endswith(".pub.pem"):
            yield path


def enter_node() -> None:
    """Move this process, which has one thread, into the namespaces of process 1. Raise HostError."""
    try:
        if Path("/proc/1/ns/mnt").readlink() == Path("/proc/self/ns/mnt").readlink():
            raise HostError(
                "cannot install: process 1 is this container's", hint="hostPID: true; or ctr run --with-ns pid:/proc/1/ns/pid"
            )
        for fd in [os.open(f"/proc/1/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in _NAMESPACES]:
            enter(fd)
    except OSError as e:
        raise HostError(f"cannot enter the node's namespaces: {e.strerror}", hint="the container has to be privileged") from e

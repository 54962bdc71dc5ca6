"""Define the CDI hooks that call `nvidia-cdi-hook`, which makes symlinks and the library cache in a container.

The program comes with NVIDIA's container toolkit. Its hooks depend on its version, and an unknown hook makes the program, and
so the container, fail. So its `--help` is read, once for each version of the file.

Source: NVIDIA/nvidia-container-toolkit, cmd/nvidia-cdi-hook (enable-cuda-compat since 1.17.5, disable-device-node-modification
since 1.17.8), internal/discover/{hooks,symlinks,ldconfig,compat_libs}.go.

Tests: tests/unit/hooks/vendors/nvidia/test_cdi.py
"""

import functools
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from hooks.host.cdi_spec import HOOK_STAGE
from hooks.host.ldcache import ENV
from hooks.model.cdi import Hook
from hooks.vendors.nvidia.driver import DriverFiles
from lading.errors import HostError

_LINKS: Final = "create-symlinks"
_CACHE: Final = "update-ldcache"  # it fails on a host without /sbin/ldconfig
_COMPAT: Final = "enable-cuda-compat"
_OF_LDCACHE: Final = frozenset({_CACHE, _COMPAT})  # Lading's own hook does the work of these
_NEEDED: Final = frozenset({_LINKS, _CACHE})
_ANSWER_S: Final = 5.0
_COMMAND: Final = re.compile(r"^ +([a-z][a-z-]+)(?:, [a-z]+)* {2,}\S", re.MULTILINE)


def read_commands(program: Path) -> frozenset[str]:
    """Return the hooks that the program supports; empty if it is missing. Raise HostError if the program is unusable."""
    try:
        status = program.stat()
    except OSError:
        return frozenset()
    commands = _ask(str(program), (status.st_ino, status.st_size, status.st_mtime_ns))
    if missing := sorted(_NEEDED - commands):
        raise HostError(f"cannot use {program}: its --help lists no {' and no '.join(missing)}")
    return commands


@functools.lru_cache(maxsize=1)
def _ask(program: str, _state: tuple[int, int, int]) -> frozenset[str]:
    env = dict(one.split("=", 1) for one in ENV)
    try:
        done = subprocess.run(  # noqa: S603 -- a path from the configuration, which runs as root for each container anyway
            [program, "--help"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=env,
            timeout=_ANSWER_S,
            check=False,
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        raise HostError(f"cannot start {program}: {e}") from e
    if done.returncode:
        raise HostError(f"cannot use {program}: with --help it ends with status {done.returncode}")
    return frozenset(_COMMAND.findall(os.fsdecode(done.stdout)))


def make_hooks(program: Path, commands: frozenset[str], files: DriverFiles, version: str, *, ldcache: bool) -> tuple[Hook, ...]:
    """Return the hooks of a container with these files, in the order in which they run. `ldcache`: Lading's own hook makes the
    loader's cache."""
    commands -= _OF_LDCACHE if ldcache else frozenset()
    return tuple(
        Hook(hook_name=HOOK_STAGE, path=str(program), args=(program.name, *args), env=ENV)
        for args in _calls(files, version)
        if args[0] in commands
    )


def _calls(files: DriverFiles, version: str) -> Iterator[Sequence[str]]:
    links = [f"{target}::{files.folder}/{name}" for name, target in files.links.items()]
    yield (_LINKS, *(word for link in links for word in ("--link", link)))
    yield _COMPAT, f"--host-driver-version={version}"
    yield _CACHE, "--folder", files.folder
    yield ("disable-device-node-modification",)


def list_links(hooks: Iterable[Hook]) -> tuple[str, ...]:
    """Return the paths of the symlinks that these hooks make."""
    return tuple(word.rpartition("::")[2] for hook in hooks if hook.args[1] == _LINKS for word in hook.args if "::" in word)

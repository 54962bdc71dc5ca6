"""Name the hook by which a container's loader finds the driver's libraries: the program `lading-ldcache`, and its arguments.

The program makes the container's `/etc/ld.so.cache` before the container starts. It uses or hides the image's libraries for
CUDA Forward Compatibility. It needs nothing of the image, so it is a static program (vendors/nvidia/ldcache).

Tests: tests/unit/hooks/vendors/nvidia/test_ldcache.py
"""

import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from hooks.host.cdi_spec import HOOK_STAGE
from hooks.model.cdi import Hook

NAME: Final = "lading-ldcache"
# A hook without an environment gets the container's, with its LD_PRELOAD, and runs as root: so each hook has an environment.
ENV: Final = ("PATH=/usr/bin:/bin",)
_NO_COMPAT: Final = "--no-compat"


def built_program() -> Path:
    """Return the path of the program for this machine's architecture, whether or not it was built."""
    return Path(__file__).parents[1] / "vendors/nvidia/ldcache/built" / platform.machine() / NAME


def make_hook(program: Path, libraries: Iterable[str], version: str, *, compat: bool) -> Hook:
    """Return the hook of containers with these libraries of the driver. `compat`: the cards work with libraries of the image
    that are newer than the driver."""
    args = (NAME, "--driver", version, *(() if compat else (_NO_COMPAT,)), *libraries)
    return Hook(hook_name=HOOK_STAGE, path=str(program), args=args, env=ENV)


def list_libraries(paths: Iterable[str], version: str) -> tuple[str, ...]:
    """Return the paths that the cache lists: of each name the first, in order. The driver's whole version is left out where a
    library has a shorter name too, as ldconfig does."""
    by_name: dict[str, str] = {}
    for path in paths:
        name = path.rpartition("/")[2]
        if name.startswith("lib") and ".so" in name:
            by_name.setdefault(name, path)
    shorter = {name.partition(".so")[0] for name in by_name if not name.endswith(f".so.{version}")}
    return tuple(
        path
        for name, path in sorted(by_name.items())
        if not (name.endswith(f".so.{version}") and name.partition(".so")[0] in shorter)
    )


def without_compat(hooks: Iterable[Hook]) -> tuple[Hook, ...]:
    """Return the hooks, with the image's newer libcuda hidden: it would replace the library that enforces a share."""
    return tuple(map(_without_compat, hooks))


def _without_compat(hook: Hook) -> Hook:
    if hook.args[0] != NAME or _NO_COMPAT in hook.args:
        return hook
    return msgspec.structs.replace(hook, args=(*hook.args[:3], _NO_COMPAT, *hook.args[3:]))

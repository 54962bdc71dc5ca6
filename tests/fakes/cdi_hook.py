"""Simulate NVIDIA's nvidia-cdi-hook: list its hooks, and record the arguments and environment of each run."""

from collections.abc import Sequence
from pathlib import Path

HOOKS = ("update-ldcache", "create-symlinks", "chmod", "enable-cuda-compat", "disable-device-node-modification")


def write_cdi_hook(path: Path, *, hooks: Sequence[str] = HOOKS, notes: Path | None = None) -> Path:
    """Write the program. `notes`: the file to which each run adds its arguments and its environment."""
    listed = "".join(f"   {name}{' ' * (36 - len(name))}Do {name} in a container\n" for name in hooks)
    usage = f"NAME:\n   NVIDIA CDI Hook\n\nCOMMANDS:\n{listed}   help, h                             Shows a list of commands\n"
    note = f'printf "%s\\n" "$*" >> {notes}; env >> {notes}; echo end >> {notes}' if notes else "true"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\nif [ \"$1\" = --help ]; then cat <<'USAGE'\n{usage}USAGE\nexit 0; fi\n{note}\n")
    path.chmod(0o755)
    return path

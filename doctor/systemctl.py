"""Ask systemd about units. Blocks; decides nothing.

Source: systemctl(1) show, sd_booted(3).

Tests: tests/unit/doctor/test_units.py
"""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lading.errors import HostError

_BOOTED: Final = Path("run/systemd/system")  # exists if systemd runs: sd_booted(3)


def show_units(host_root: Path, properties: str, units: Sequence[str], answer_s: float) -> str | None:
    """Return what `systemctl show` prints; None if systemd does not run this node, or the host root is another node's."""
    if host_root != Path("/") or not (host_root / _BOOTED).is_dir():
        return None
    command = ["systemctl", "show", "--property", properties, *units]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=answer_s)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as e:
        raise HostError(f"cannot ask systemd about {', '.join(units)}: {e}") from e
    if done.returncode:
        raise HostError(f"cannot ask systemd about {', '.join(units)}: {done.stderr.strip()}")
    return done.stdout

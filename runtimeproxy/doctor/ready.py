"""Map each condition of /readyz (runtimeproxy.readiness) to what fixes it."""

from collections.abc import Iterator
from typing import Final

from lading.doctor.http import FILES, Said
from lading.doctor.http import decide_ready as decide_conditions
from lading.doctor.model import Verdict

MENDS: Final = {
    "runtime": "lading-runtimeproxy doctor --only runtime; systemctl restart containerd if it hangs (containers keep running)",
    "socket": "systemctl restart lading-runtimeproxy.socket lading-runtimeproxy",
    "hooks-dir": "lading-runtimeproxy doctor --only hooks-dir shows how to fix each file; "
    "if there is none: lading-hooks registration --write",
    "files": FILES,
    "hook": "lading-runtimeproxy doctor --only hooks; if it is 50-lading.json: "
    "systemctl restart lading-hooks.socket lading-hooks",
}


def decide_ready(said: Said) -> Iterator[Verdict]:
    return decide_conditions(said, MENDS)

"""What mends each condition of /readyz that does not hold (runtimeproxy.readiness has them)."""

from collections.abc import Iterator
from typing import Final

from lading.doctor.http import Said
from lading.doctor.http import decide_ready as decide_conditions
from lading.doctor.model import Verdict

MENDS: Final = {
    "runtime": "lading-runtimeproxy doctor --only runtime; systemctl restart containerd where it hangs (containers go on)",
    "socket": "systemctl restart lading-runtimeproxy.socket lading-runtimeproxy",
    "hooks-dir": "lading-runtimeproxy doctor --only hooks-dir has what mends each file; "
    "without any: lading-hooks registration --write",
    "hook": "lading-runtimeproxy doctor --only hooks; where it is 50-lading.json: "
    "systemctl restart lading-hooks.socket lading-hooks",
}


def decide_ready(said: Said) -> Iterator[Verdict]:
    return decide_conditions(said, MENDS)

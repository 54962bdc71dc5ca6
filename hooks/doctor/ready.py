"""How to fix each condition of /readyz that does not hold (hooks.daemon.readiness has them).

The daemon reports what is wrong, the doctor's other checks report why; this module says how to restore the condition.
"""

from collections.abc import Iterator
from typing import Final

from lading.doctor.http import FILES, Said
from lading.doctor.http import decide_ready as decide_conditions
from lading.doctor.model import Verdict

MENDS: Final = {
    "inventory": "lading-hooks doctor --only driver,gpus,vfs says which driver hangs, and what mends that; "
    "journalctl -t lading-hooks LADING_EVENT=inventory.failed -n 5",
    "reconciled": "lading-hooks doctor --only runtime; systemctl restart containerd where it hangs (containers go on); "
    "journalctl -t lading-hooks LADING_EVENT=ledger.failed -n 5",
    "ledger": "lading-hooks doctor --only ledger,disk says whether it is damaged or has no room, and what mends that; "
    "then systemctl restart lading-hooks",
    "socket": "systemctl restart lading-hooks.socket lading-hooks",
    "no-bypass": "lading-hooks doctor --only kubelet-endpoint, until that is ok; then kubectl -n NAMESPACE delete pod POD "
    "for each of them: made again, it goes through the proxy",
    "driver-files": "lading-hooks doctor --only driver,driver-files names the running and the installed versions, and the fix",
    "held-devices": "lading-hooks doctor --only gpus,gpu-nodes,vfs says what mends the device; or its pod gets another one by "
    "kubectl -n NAMESPACE delete pod POD (lading-hooks ledger has the pods)",
    "files": FILES,
    "reported": "lading-hooks doctor --only api says what is in the way, and what mends that; "
    "IPAddressAllow= of its unit, which has to have the API server's address; "
    "journalctl -t lading-hooks LADING_EVENT=report.failed -n 5",
}


def decide_ready(said: Said) -> Iterator[Verdict]:
    return decide_conditions(said, MENDS)

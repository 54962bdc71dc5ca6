"""Define the answer about a new container: its adjustment, and the work that must be done before the adjustment is sent.

Tests: tests/unit/simnode/test_profiles.py
"""

from dataclasses import dataclass

from hooks.model.attachment import WantedVf
from hooks.model.container import Adjustment
from hooks.model.grant import Grant
from hooks.model.inventory import Gpu
from lading.sharegrant import ShareGrant


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    adjustment: Adjustment
    grant: Grant | None = None  # to be recorded in the ledger before the adjustment is sent
    key_id: str = ""  # id of the key that signed the assignment, for the record
    share: ShareGrant | None = None  # to be written for the share server before the adjustment is sent
    preloads: tuple[str, ...] = ()  # environment variables of the pod that may circumvent the isolation; for the log
    attach: tuple[WantedVf, ...] = ()  # VFs to be moved into the pod before the adjustment is sent
    undivided: tuple[Gpu, ...] = ()  # cards on which MIG instances must be made before the answer is decided again
    reused: bool = False

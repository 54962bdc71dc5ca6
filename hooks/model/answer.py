"""Define the answer to a container: what it gets, and what has to be done before it is told so.

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
    grant: Grant | None = None  # to be recorded before the adjustment is answered
    key_id: str = ""  # id of the key that signed the assignment, for the record
    share: ShareGrant | None = None  # to be written for the share server before the adjustment is answered
    preloads: tuple[str, ...] = ()  # the pod's variables that may get past the isolation; for the log
    attach: tuple[WantedVf, ...] = ()  # to be brought into the pod before the adjustment is answered
    undivided: tuple[Gpu, ...] = ()  # cards on which instances have to be made, before it is decided again what it gets
    reused: bool = False

"""Define the devices that a container holds, as decisions use them, and their description in messages.

Tests: tests/unit/hooks/isolation/test_mps.py
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from hooks.model.assignment import GrantedDevices
from lading.amounts import first_few
from lading.vocabulary import PodUid

_LISTED: Final = 16  # devices in one message


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """Hold the devices that one live container holds."""

    pod: PodUid
    pod_name: str  # namespace/name, for messages
    container: str  # empty: a VF that is not back from this pod yet, whichever container has the grant
    devices: GrantedDevices
    program: str = ""  # program that holds the devices, if no pod does

    def holds(self, what: str) -> str:
        """Describe the holder in words."""
        if self.program:
            return f"{self.program} holds {what}"
        if self.container:
            return f"container {self.container} of pod {self.pod_name} holds {what}"
        return f"pod {self.pod_name} has {what} in its network namespace, or it is on its way back from there"


def listed(names: Sequence[str]) -> str:
    return first_few(names, _LISTED) or "none"

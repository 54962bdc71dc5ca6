"""Define the assignments that a node accepts: whose, and signed with which keys.

Tests: tests/unit/simnode/test_profiles.py
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from hooks.model.assignment import Form, FormName
from lading.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    accepted: frozenset[FormName]
    keys: Mapping[str, Ed25519PublicKey] = field(default_factory=dict)  # key id → public key
    foreign: frozenset[str] = frozenset()  # keys below lading.dev/ that another system uses

    def __post_init__(self) -> None:
        if Form.MANUAL in self.accepted and len(self.accepted) > 1:
            raise ConfigError(
                f"cannot accept assignments = {sorted(self.accepted)}: a node takes manual assignments or central's, not both",
                hint='assignments = ["signed"], ["signed", "unsigned"], ["unsigned"] or ["manual"]',
            )

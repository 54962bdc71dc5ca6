"""Check the signature of an assignment: two annotations and the known keys in, a key id out.

Refused: a signature of another form, one by a key that this node does not have, one that does not fit the text. The mechanism
is in lading/signature.py; this module has the messages for people.

Tests: tests/properties/test_assignment.py
"""

from collections.abc import Mapping

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from hooks.model.assignment import Refusal
from lading.devices.identity import shown
from lading.reasons import Reason
from lading.signature import FORM, parse_signature, verifies
from lading.vocabulary import ASSIGNMENT, ASSIGNMENT_SIGNATURE


def check_signature(written: str, text: str, keys: Mapping[str, Ed25519PublicKey]) -> str | Refusal:
    """Return the id of the key that signed this text."""
    signature = parse_signature(written)
    if signature is None:
        return Refusal(
            reason=Reason.SIGNATURE_INVALID,
            message=f"cannot use {ASSIGNMENT_SIGNATURE}: {shown(written)} is not of the form {FORM}",
        )
    key = keys.get(signature.key_id)
    if key is None:
        known = ", ".join(sorted(keys)) or "none"
        return Refusal(
            reason=Reason.SIGNATURE_KEY_UNKNOWN,
            message=f"cannot use {ASSIGNMENT_SIGNATURE}: signed with the key {signature.key_id!r}, and this node's keys are: "
            f"{known}; add that public key to the node's configuration",
        )
    if not verifies(signature, text, key):
        return Refusal(
            reason=Reason.SIGNATURE_INVALID,
            message=f"cannot use {ASSIGNMENT}: the key {signature.key_id!r} did not sign this text; "
            "an assignment cannot be edited, ask for a new one by recreating the pod",
        )
    return signature.key_id

"""Render the messages of refusals that several dialects have.

Tests: tests/unit/hooks/model/test_grant.py
"""

from collections.abc import Iterable

from hooks.model.assignment import Refusal, Trust
from lading.amounts import first_few
from lading.devices.identity import shown
from lading.reasons import Reason


def not_accepted(what: str, keys: Iterable[str], trust: Trust) -> Refusal:
    accepted = ", ".join(sorted(trust.accepted)) or "none"
    return Refusal(
        reason=Reason.FORM_NOT_ACCEPTED,
        message=f"cannot use {listed_keys(keys)}: {what}, and this node accepts: {accepted} (assignments in the node's "
        "hooks.toml)",
    )


def listed_keys(keys: Iterable[str]) -> str:
    return first_few([shown_key(key) for key in sorted(keys)], 4)


def shown_key(key: str) -> str:
    """Return an annotation's key for a message: unchanged if it is short and Lading's, else quoted."""
    return key if len(key) <= 80 and key.isascii() and key.isprintable() else shown(key)

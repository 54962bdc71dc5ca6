"""Parse the networks that a pod names for Multus in the annotation `k8s.v1.cni.cncf.io/networks`.

Source: Kubernetes Network Custom Resource Definition De-facto Standard v1.3, §4.1; Multus 4 (types.NetworkSelectionElement).

Tests: tests/unit/central/assignment/test_networks.py
"""

import re
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from lading.vocabulary import NETWORKS

DNS_LABEL: Final = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_LISTED: Final = re.compile(rf"(?:(?P<namespace>{DNS_LABEL})/)?(?P<name>{DNS_LABEL})(?:@(?P<interface>[^\s/@]{{1,15}}))?")
_KEYS: Final = frozenset({"name", "namespace"})


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableNetworks:
    """Hold the reason why the pod's annotation cannot be read, for the pod's events."""

    why: str


def parse_networks(text: str) -> list[dict[str, Any]] | UnreadableNetworks:
    """Parse the annotation: as JSON if it has one of the characters `[{"`, else as names separated by commas."""
    if not text:
        return []
    if not set(text) & set('[{"'):
        return _parse_list(text)
    try:
        result = msgspec.json.decode(text, type=list[dict[str, Any]])
    except (msgspec.MsgspecError, ValueError, RecursionError) as e:  # ValueError: half of a surrogate pair
        return UnreadableNetworks(why=f"cannot add VFs to the pod's {NETWORKS}: {e}")
    for i, one in enumerate(result):
        if not isinstance(one.get("name"), str) or not isinstance(one.get("namespace", ""), str | None):
            return UnreadableNetworks(why=f"cannot add VFs to the pod's {NETWORKS}: [{i}] has no name")
        # Go also reads `Name` as `name`, and the last key wins. Such keys are refused, so that all readers see one network.
        if alike := [key for key in one if key not in _KEYS and key.casefold() in _KEYS]:
            return UnreadableNetworks(
                why=f"cannot add VFs to the pod's {NETWORKS}: [{i}] has {alike[0]!r:.80}: write it in lower case"
            )
    return result


def _parse_list(text: str) -> list[dict[str, Any]] | UnreadableNetworks:
    result = []
    for item in text.split(","):
        match = _LISTED.fullmatch(item.strip())
        if match is None:
            return UnreadableNetworks(
                why=f"cannot add VFs to the pod's {NETWORKS}: {item.strip()!r:.80} is no network as ns/name@eth1"
            )
        result.append({key: value for key, value in match.groupdict().items() if value is not None})
    return result

"""Find unknown annotation keys below `lading.dev/`, and the valid key that is most like an unknown key.

Central refuses an unknown key on a pod that requests devices. A node refuses an unknown key on a pod whose devices are named by
hand. If they ignored a misspelt key, the pod would silently lack the devices that its author requested. A node does not check
the keys of a pod that central placed: a newer central may know more keys.

Tests: tests/unit/hooks/model/test_grant.py
"""

from collections.abc import Container, Iterable
from difflib import SequenceMatcher
from typing import Final

from lading.vocabulary import (
    ASSIGNMENT,
    ASSIGNMENT_SIGNATURE,
    GANG_ANNOTATIONS,
    MANUAL_ANNOTATIONS,
    PREFIX,
    REQUEST_ANNOTATIONS,
    RESERVED,
    WORKLOAD,
    is_manual,
    is_request_annotation,
)

_WRITTEN: Final = frozenset({ASSIGNMENT, ASSIGNMENT_SIGNATURE, WORKLOAD, *RESERVED})  # keys that central or nodes write
_OF_PEOPLE: Final = REQUEST_ANNOTATIONS | GANG_ANNOTATIONS | MANUAL_ANNOTATIONS
_LONGEST: Final = 128  # characters of a key that are compared; Kubernetes allows 63 after the slash


def find_unknown(keys: Iterable[str]) -> str:
    """Return the first unknown key below `lading.dev/`; empty if there is none."""
    return min((key for key in keys if key.startswith(PREFIX) and not _is_defined(key)), default="")


def describe_reserved(keys: Container[str]) -> str:
    """Return a message for the pod's author if the pod has a key that only the node may write; otherwise an empty text."""
    reserved = next((key for key in RESERVED if key in keys), "")
    return f"cannot use {reserved}: only the node writes it, into the container; remove it from the pod" if reserved else ""


def nearest_key(key: str) -> str:
    """Return the valid key that is most like this one."""
    matcher = SequenceMatcher(b=key.removeprefix(PREFIX)[:_LONGEST].lower())

    def likeness(valid: str) -> float:
        matcher.set_seq1(valid.removeprefix(PREFIX))
        return matcher.ratio()

    return max(sorted(_OF_PEOPLE), key=likeness)


def _is_defined(key: str) -> bool:
    return key in _OF_PEOPLE or key in _WRITTEN or is_manual(key) or is_request_annotation(key)

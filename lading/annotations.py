"""Find annotations below `lading.dev/` that do not exist, and the valid key that is most like one.

It takes keys of annotations. It returns the first unknown key, and the nearest valid one. Central refuses an unknown key on a
pod that requests devices, and a node on a pod whose devices are named by hand: if they ignored a misspelt key, the pod would
silently lack what its author requested. A node does not check the keys of a pod that central placed: a newer central may know
more keys.
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

_WRITTEN: Final = frozenset({ASSIGNMENT, ASSIGNMENT_SIGNATURE, WORKLOAD, *RESERVED})  # by central or by nodes
_OF_PEOPLE: Final = REQUEST_ANNOTATIONS | GANG_ANNOTATIONS | MANUAL_ANNOTATIONS
_LONGEST: Final = 128  # characters of a key that are compared; Kubernetes allows 63 after the slash


def find_unknown(keys: Iterable[str]) -> str:
    """Return the first unknown key below `lading.dev/`; empty if there is none."""
    return min((key for key in keys if key.startswith(PREFIX) and not _is_known(key)), default="")


def say_reserved(keys: Container[str]) -> str:
    """Return what is wrong with keys of a pod that only the node may write, for the pod's author; empty if it has none."""
    reserved = next((key for key in RESERVED if key in keys), "")
    return f"cannot use {reserved}: only the node writes it, into the container; remove it from the pod" if reserved else ""


def nearest_key(key: str) -> str:
    """Return the valid key that is most like this one."""
    matcher = SequenceMatcher(b=key.removeprefix(PREFIX)[:_LONGEST].lower())

    def likeness(valid: str) -> float:
        matcher.set_seq1(valid.removeprefix(PREFIX))
        return matcher.ratio()

    return max(sorted(_OF_PEOPLE), key=likeness)


def _is_known(key: str) -> bool:
    return key in _OF_PEOPLE or key in _WRITTEN or is_manual(key) or is_request_annotation(key)

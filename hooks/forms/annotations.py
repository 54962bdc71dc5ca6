"""Parse a pod's annotations into one typed assignment: find their dialect, and have it parse them.

A pod without an annotation of a dialect has no assignment. Refused, before a dialect reads any value: more keys than a pod
may have, two dialects on one pod, keys that only the node writes, a key that is nearly a valid one, and beside devices named by
hand every unknown key below `lading.dev/` that the node's configuration does not list.

A node accepts assignments made by hand or by central, not both: with both, a pod's author could take a card that central,
which cannot see the manual annotation before the pod runs, has assigned to another pod.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from hooks.forms.manual import Manual
from hooks.forms.messages import listed_keys, shown_key
from hooks.forms.signed import Central
from hooks.model.assignment import Assignment, Refusal, Trust
from hooks.ports import Dialect
from lading.annotations import describe_reserved, find_unknown, nearest_key
from lading.reasons import Reason
from lading.vocabulary import MAX_KEYS, PREFIX, PodUid, is_manual

# Singular for plural, another separator before the container, another case: gpu, vf.train, gpus-train, VFs.
_NEAR_MISS: Final = re.compile(r"(gpu|vf)s?(?:\.(.*))?|(gpu|vf)s[-_](.*)", re.IGNORECASE | re.DOTALL)
# Names of `resources.limits`, which mean nothing as annotations.
_LIMITS: Final = frozenset({"lading.dev/gpu-memory", "lading.dev/gpu-memory-percent", "lading.dev/gpu-core", "lading.dev/rdma"})


# Every dialect, one line for each.
DIALECTS: Sequence[Dialect] = (
    Manual(),
    Central(),
)


def prefixes() -> tuple[str, ...]:
    """Return how the annotations of all dialects begin."""
    return tuple(dict.fromkeys(prefix for dialect in DIALECTS for prefix in dialect.prefixes))


def parse_assignment(annotations: Mapping[str, str], *, pod: PodUid, node: str, trust: Trust) -> Assignment | Refusal | None:
    """Return the pod's assignment. The caller compares `gen` with earlier grants; the same annotations always give the same
    result."""
    begins = prefixes()  # computed once, because a pod may have 11,000 annotations
    every = [key for key in annotations if key.startswith(begins)]
    known = sorted(key for key in every if key not in trust.foreign)
    refusal = _check_number(every) or _check_keys([key for key in known if key.startswith(PREFIX)])
    if refusal is not None:
        return refusal
    result = [(dialect, keys) for dialect in DIALECTS if (keys := dialect.own(known))]
    match result:
        case []:
            return None
        case [(dialect, keys)]:
            return dialect.parse(annotations, keys, pod=pod, node=node, trust=trust)
        case _:
            between = ", and ".join(f"{listed_keys(keys)}, {dialect.text}" for dialect, keys in result)
            return Refusal(reason=Reason.ANNOTATION_CONFLICT, message=f"cannot choose between {between}: keep one")


def _check_number(ours: list[str]) -> Refusal | None:
    if len(ours) <= MAX_KEYS:
        return None
    return Refusal(
        reason=Reason.ANNOTATION_MALFORMED,
        message=f"the pod has {len(ours)} annotations that begin with {PREFIX}; at most {MAX_KEYS} are allowed",
    )


def _check_keys(ours: list[str]) -> Refusal | None:
    """Check the keys alone, whatever their values are."""
    if reserved := describe_reserved(ours):
        return Refusal(reason=Reason.ANNOTATION_RESERVED, message=reserved)
    for key in ours:
        meant = _meant(key)
        if meant:
            return Refusal(
                reason=Reason.ANNOTATION_MALFORMED,
                message=f"cannot use {shown_key(key)}: no such annotation, it would do nothing; write {meant}",
            )
    if any(map(is_manual, ours)) and (unknown := find_unknown(ours)):
        return Refusal(
            reason=Reason.ANNOTATION_MALFORMED,
            message=f"cannot use {shown_key(unknown)}: no such annotation; write {nearest_key(unknown)}, or remove it (a key "
            "of another system: foreign_annotations in the node's hooks.toml)",
        )
    return None


def _meant(key: str) -> str:
    """Return the key that the author of an unknown key meant; empty if the key is valid or does not concern Lading."""
    if key in _LIMITS:
        return f"{shown_key(key)} into resources.limits, or lading.dev/gpus or lading.dev/vfs to name devices by hand"
    match = _NEAR_MISS.fullmatch(key.removeprefix(PREFIX))
    if match is None or is_manual(key):
        return ""
    kind = (match[1] or match[3]).lower()
    container = match[2] or match[4] or ""
    return shown_key(f"{PREFIX}{kind}s.{container}" if container else f"{PREFIX}{kind}s")

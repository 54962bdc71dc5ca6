"""Parse a pod's annotations into one typed assignment: find their form, and check whether this node accepts it.

Enters: every annotation of the pod, who the pod and the node are, what the node trusts. Leaves: an Assignment; None if the pod
has no key of Lading; or a Refusal. Refused: more keys than a pod may have, both forms on one pod, keys that only the node
writes, a form that the node's configuration does not accept, a pod that asks for placement and was bound without an assignment,
a key that is nearly a valid one, and beside devices named by hand every unknown key below `lading.dev/` that the node's
configuration does not list.

A node accepts assignments made by hand or by central, not both: with both, a pod's author could take a card that central,
which cannot see the manual annotation before the pod runs, has assigned to another pod.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from hooks.forms.manual import is_manual, parse_manual, shown_key
from hooks.forms.signature import check_signature
from hooks.forms.signed import parse_central
from hooks.model.assignment import Assignment, Form, Refusal
from lading.annotations import find_unknown, nearest_key
from lading.errors import ConfigError
from lading.reasons import Reason
from lading.vocabulary import (
    ASSIGNMENT,
    ASSIGNMENT_SIGNATURE,
    ATTACHMENTS,
    GRANT,
    MAX_KEYS,
    PREFIX,
    REQUEST_ANNOTATIONS,
    PodUid,
)

# Singular for plural, another separator before the container, another case: gpu, vf.train, gpus-train, VFs.
_NEAR_MISS: Final = re.compile(r"(gpu|vf)s?(?:\.(.*))?|(gpu|vf)s[-_](.*)", re.IGNORECASE | re.DOTALL)
# Names of `resources.limits`, which mean nothing as annotations.
_LIMITS: Final = frozenset({"lading.dev/gpu-memory", "lading.dev/gpu-core", "lading.dev/rdma"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    accepted: frozenset[Form]
    keys: Mapping[str, Ed25519PublicKey] = field(default_factory=dict)  # by key id
    foreign: frozenset[str] = frozenset()  # keys below lading.dev/ that another system uses

    def __post_init__(self) -> None:
        if Form.MANUAL in self.accepted and len(self.accepted) > 1:
            raise ConfigError(
                f"cannot accept assignments = {sorted(self.accepted)}: a node takes manual assignments or central's, not both",
                hint='assignments = ["signed"], ["signed", "unsigned"], ["unsigned"] or ["manual"]',
            )


def parse_assignment(annotations: Mapping[str, str], *, pod: PodUid, node: str, trust: Trust) -> Assignment | Refusal | None:
    """Return the pod's assignment. The caller compares `gen` with earlier grants; the same annotations always give the same
    result."""
    every = [key for key in annotations if key.startswith(PREFIX)]
    ours = sorted(key for key in every if key not in trust.foreign)
    refusal = _check_number(every) or _check_keys(ours)
    if refusal is not None:
        return refusal
    if any(is_manual(key) for key in ours):
        if Form.MANUAL not in trust.accepted:
            return _not_accepted("devices named by hand", [k for k in ours if is_manual(k)], trust)
        return parse_manual(annotations)
    if ASSIGNMENT in annotations:
        return _parse_central(annotations, pod=pod, node=node, trust=trust)
    if requests := REQUEST_ANNOTATIONS.intersection(ours):
        return Refusal(
            reason=Reason.ASSIGNMENT_MISSING,
            message=f"cannot find {ASSIGNMENT}: the pod asks for placement with {_listed(requests)} and was bound without one; "
            "set schedulerName: lading and do not set nodeName",
        )
    return None


def _check_number(ours: list[str]) -> Refusal | None:
    if len(ours) <= MAX_KEYS:
        return None
    return Refusal(
        reason=Reason.ANNOTATION_MALFORMED,
        message=f"the pod has {len(ours)} annotations that begin with {PREFIX}; at most {MAX_KEYS} are allowed",
    )


def _check_keys(ours: list[str]) -> Refusal | None:
    """Check the keys alone, whatever their values are."""
    if reserved := [key for key in (GRANT, ATTACHMENTS) if key in ours]:
        return Refusal(
            reason=Reason.ANNOTATION_RESERVED,
            message=f"cannot use {reserved[0]}: only the node writes it, into the container; remove it from the pod",
        )
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
    manual = [key for key in ours if is_manual(key)]
    central = [key for key in ours if key in {ASSIGNMENT, ASSIGNMENT_SIGNATURE} or key in REQUEST_ANNOTATIONS]
    if manual and central:
        return Refusal(
            reason=Reason.ANNOTATION_CONFLICT,
            message=f"cannot choose between {_listed(manual)}, written by hand, and {_listed(central)}, for central: keep one",
        )
    if ASSIGNMENT_SIGNATURE in ours and ASSIGNMENT not in ours:
        return Refusal(
            reason=Reason.ANNOTATION_MALFORMED,
            message=f"cannot use {ASSIGNMENT_SIGNATURE}: there is no {ASSIGNMENT} that it could sign",
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


def _parse_central(annotations: Mapping[str, str], *, pod: PodUid, node: str, trust: Trust) -> Assignment | Refusal:
    """Parse central's assignment. The signature comes first: where signatures are required, a text without a valid one is not
    even parsed."""
    text, written = annotations[ASSIGNMENT], annotations.get(ASSIGNMENT_SIGNATURE)
    if written is not None and Form.SIGNED in trust.accepted:
        key_id = check_signature(written, text, trust.keys)
        if isinstance(key_id, Refusal):
            return key_id
        return parse_central(text, pod=pod, node=node, form=Form.SIGNED, key_id=key_id)
    if Form.UNSIGNED in trust.accepted:
        # Also with a signature: an attacker who could forge it could leave it out.
        return parse_central(text, pod=pod, node=node, form=Form.UNSIGNED)
    if Form.SIGNED in trust.accepted:
        return Refusal(
            reason=Reason.SIGNATURE_MISSING,
            message=f"cannot use {ASSIGNMENT}: this node accepts signed ones only, and there is no {ASSIGNMENT_SIGNATURE}",
        )
    return _not_accepted("an assignment by central", [ASSIGNMENT], trust)


def _not_accepted(what: str, keys: list[str], trust: Trust) -> Refusal:
    accepted = ", ".join(sorted(trust.accepted)) or "none"
    return Refusal(
        reason=Reason.FORM_NOT_ACCEPTED,
        message=f"cannot use {_listed(keys)}: {what}, and this node accepts: {accepted} (assignments in the node's hooks.toml)",
    )


def _listed(keys: Iterable[str]) -> str:
    names = sorted(keys)
    return ", ".join(shown_key(key) for key in names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")

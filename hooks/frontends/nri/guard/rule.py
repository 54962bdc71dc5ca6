"""Decide whether the runtime may create or start a container, given the adjustments of the plugins before.

A runtime that loses a plugin during a call continues without that plugin's answer. So a container must have the annotation
`lading.dev/grant`, which lading-hooks adds to each container that it answers. A guarded pod's container without this annotation
is refused. A pod that has the annotation itself is refused too, because a runtime may be configured to copy annotations of pods
into containers. The build asks this rule about each set of annotations, and compiles its verdicts into the guard.
"""

from collections.abc import Container, Iterable, Mapping

from hooks.forms.annotations import prefixes
from hooks.model.assignment import Refusal
from lading.annotations import describe_reserved
from lading.reasons import Reason
from lading.vocabulary import GRANT


def is_guarded(pod: Iterable[str]) -> bool:
    """Return whether a pod with these annotations needs the answer of lading-hooks."""
    begins = prefixes()
    return any(key.startswith(begins) for key in pod)


def check_container(pod: Mapping[str, str], container: Container[str]) -> Refusal | None:
    """Return why a container is refused; None if it is allowed. `pod`, `container`: their annotations after all adjustments."""
    if reserved := describe_reserved(pod):
        return Refusal(reason=Reason.ANNOTATION_RESERVED, message=reserved)
    if GRANT in container or not is_guarded(pod):
        return None
    return Refusal(
        reason=Reason.UNGRANTED,
        message="cannot create or start the container: its pod has lading.dev/ annotations, and lading-hooks has not answered; "
        "this is retried automatically",
    )

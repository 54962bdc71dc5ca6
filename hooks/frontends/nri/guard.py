"""Decide whether a container may be created, or started, as the plugins before left it.

A runtime that loses a plugin while it asks it goes on without its answer. So whether Lading has answered is decided by what is
in the container: `lading.dev/grant`, which Lading gives to each container that it is asked about. Without it a guarded pod gets
no container. A pod that carries the annotation itself is refused, because a runtime may be configured to copy annotations of a
pod into its containers. In containers of other pods, cards are hidden as Lading would do it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from hooks.model.assignment import Refusal
from hooks.model.container import Container, EnvVar, Sandbox
from lading.annotations import say_reserved
from lading.reasons import Reason
from lading.vocabulary import GRANT


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardRules:
    prefixes: tuple[str, ...]  # of the annotations that make a pod a guarded one
    hidden: Mapping[str, str] = field(default_factory=dict)  # environment that hides cards; empty if they are not hidden
    exempt_namespaces: frozenset[str] = frozenset()  # whose containers may see cards


def check_container(sandbox: Sandbox, annotations: Mapping[str, str], rules: GuardRules) -> Refusal | None:
    """Return why the container may not be; None if it may. `annotations`: the container's, with what plugins have added."""
    if reserved := say_reserved(sandbox.annotations):
        return Refusal(reason=Reason.ANNOTATION_RESERVED, message=reserved)
    if GRANT in annotations or not any(key.startswith(rules.prefixes) for key in sandbox.annotations):
        return None
    return Refusal(
        reason=Reason.UNGRANTED,
        message="cannot create or start the container: its pod has lading.dev/ annotations, and lading-hooks has not answered; "
        "this is retried automatically",
    )


def hide_cards(sandbox: Sandbox, container: Container, rules: GuardRules) -> tuple[EnvVar, ...]:
    """Return the variables to replace in a container about which Lading was not asked, so that it sees no cards."""
    if GRANT in container.annotations or sandbox.namespace in rules.exempt_namespaces:
        return ()
    shown = {env.name for env in container.env if rules.hidden.get(env.name, env.value) != env.value}
    return tuple(EnvVar(name, value) for name, value in rules.hidden.items() if name in shown)

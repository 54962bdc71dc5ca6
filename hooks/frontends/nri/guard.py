"""Decide whether the runtime may create or start a container, given the adjustments of the plugins before the guard.

A runtime that loses a plugin during a call continues without that plugin's answer. So the guard checks the container for the
annotation `lading.dev/grant`, which lading-hooks adds to each container that it answers. A guarded pod's container without this
annotation is refused. A pod that has the annotation itself is refused too, because a runtime may be configured to copy pod
annotations into containers. In containers of other pods, the guard hides the cards as lading-hooks would.
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
    prefixes: tuple[str, ...]  # annotation prefixes that make a pod guarded, such as lading.dev/
    hidden: Mapping[str, str] = field(default_factory=dict)  # environment that hides cards; empty if none are hidden
    exempt_namespaces: frozenset[str] = frozenset()  # namespaces whose containers may see cards


def check_container(sandbox: Sandbox, annotations: Mapping[str, str], rules: GuardRules) -> Refusal | None:
    """Return why the container is refused; None if it is allowed. `annotations`: the container's, with plugins' additions."""
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
    """Return the environment variables to replace, so that a container without Lading's grant sees no cards."""
    if GRANT in container.annotations or sandbox.namespace in rules.exempt_namespaces:
        return ()
    shown = {env.name for env in container.env if rules.hidden.get(env.name, env.value) != env.value}
    return tuple(EnvVar(name, value) for name, value in rules.hidden.items() if name in shown)

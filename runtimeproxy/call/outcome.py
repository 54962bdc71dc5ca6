"""Define how a held call ends: it is forwarded, changed or not, or refused with the gRPC status that says what a caller may
expect of a retry."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from lading.refusals import render_refusal
from protos.hook.v1 import hook_pb2 as hook
from runtimeproxy.call.call_context import CallContext


@dataclass(frozen=True, slots=True)
class Forward:
    """Send these bytes to the runtime, or the original ones (None). `observe`: what the runtime's answer is about, if the gate
    wants to see it."""

    message: bytes | None = None
    observe: CallContext | None = None


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer the caller with this gRPC status; the runtime gets nothing."""

    status: int
    message: str
    reason: str = ""  # the label of its metric


Outcome = Forward | Refuse


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRefusal:
    """An expected "no", from a hook (`hook` names its registration; `reason` is then the hook's own code) or from the proxy."""

    reason: str
    message: str
    hook: str = ""

    @property
    def outcome(self) -> Refuse:
        return Refuse(*render_refusal(self.reason, self.message), self.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The answers of the hooks of a stage."""

    adjustments: tuple[tuple[str, hook.Adjustment], ...] = ()  # (name of the registration, its answer), in hook order
    forgiven: Mapping[str, CallRefusal] = field(default_factory=dict)  # what failed and did not end the chain, by name

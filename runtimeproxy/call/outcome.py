"""Define the outcomes of a held call: forwarded, changed or not, or refused with a gRPC status.

The status tells the caller whether a retry may succeed.

Tests: tests/unit/runtimeproxy/test_gate.py
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from lading.reasons import render_refusal
from protos.hook.v1 import hook_pb2 as hook
from runtimeproxy.call.call_context import CallContext


@dataclass(frozen=True, slots=True)
class Forward:
    """Send these bytes to the runtime, or the original bytes (None). `observe`: the call's context, if the gate needs the
    runtime's answer."""

    message: bytes | None = None
    observe: CallContext | None = None


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer the caller with this gRPC status; the runtime gets nothing."""

    status: int
    message: str
    reason: str = ""  # label of the metric


Outcome = Forward | Refuse


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRefusal:
    """Describe a refusal by a hook or by the proxy. `hook` names the hook's registration; `reason` is then the hook's code."""

    reason: str
    message: str
    hook: str = ""

    @property
    def outcome(self) -> Refuse:
        return Refuse(*render_refusal(self.reason, self.message), self.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    adjustments: tuple[tuple[str, hook.Adjustment], ...] = ()  # (name of the registration, its answer), in hook order
    forgiven: Mapping[str, CallRefusal] = field(default_factory=dict)  # failures that did not end the chain, by registration

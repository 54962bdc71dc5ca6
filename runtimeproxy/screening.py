"""Decide which pods are guarded, and which registrations are asked or notified about a pod.

A message that contains no registered or guarded prefix need not be parsed. Protobuf keeps a string's bytes together, so no
annotation in it has such a prefix. A message that contains a prefix may still be unrelated: kubectl repeats a pod's manifest in
an annotation's value.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from lading.reasons import Reason
from lading.vocabulary import MAX_KEYS, RESERVED
from protos.cri.runtime.v1 import api_pb2 as cri
from protos.hook.v1 import hook_pb2 as hook
from runtimeproxy.adjustment.merge import RESERVED_ANNOTATIONS
from runtimeproxy.call.call_context import CallContext
from runtimeproxy.call.calls import Stage
from runtimeproxy.call.outcome import Answers, CallRefusal
from runtimeproxy.chain.registrations import Registration, decide_hidden
from runtimeproxy.protobuf.wire import contains

# A guarded pod may not set these keys: they make the runtime apply devices and properties without any check.
_SMUGGLED = tuple(prefix for prefix in RESERVED_ANNOTATIONS if prefix != "io.kubernetes.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Screening:
    """Hold the rules of one set of registrations. Immutable: a call keeps the rules that it began with."""

    registrations: tuple[Registration, ...] = ()
    guarded_prefixes: tuple[str, ...] = ()
    _guarded: tuple[bytes, ...] = field(init=False)  # a message with none of these mentions no guarded prefix
    _prefixes: tuple[bytes, ...] = field(init=False)  # a message with none of these mentions no prefix at all

    def __post_init__(self) -> None:
        registered = (prefix for registration in self.registrations for prefix in registration.prefixes or ())
        object.__setattr__(self, "_guarded", _shortest(self.guarded_prefixes))
        object.__setattr__(self, "_prefixes", _shortest({*self.guarded_prefixes, *registered}))

    @property
    def every_pod(self) -> bool:
        return any(registration.prefixes is None for registration in self.registrations)

    @property
    def hides(self) -> bool:
        return any(registration.hide_unassigned for registration in self.registrations)

    def must_read(self, stage: Stage, keys: Callable[[], Collection[str]]) -> bool:
        """Return whether a Run or Create call is parsed even without a prefix in it. `keys`: cached annotations of its pod."""
        return self.every_pod or (stage is Stage.CREATE_CONTAINER and (self.hides or self.concerns(keys())))

    def mentions_guarded(self, message: bytes) -> bool:
        return any(contains(message, prefix) for prefix in self._guarded)

    def mentions_prefix(self, message: bytes) -> bool:
        return any(contains(message, prefix) for prefix in self._prefixes)

    def guarded(self, keys: Collection[str]) -> tuple[str, ...]:
        """Return the annotation keys that make a pod guarded, sorted."""
        return tuple(sorted(key for key in keys if key.startswith(self.guarded_prefixes)))

    def concerns(self, keys: Collection[str]) -> bool:
        guarded = any(key.startswith(self.guarded_prefixes) for key in keys)
        return guarded or any(registration.wants(keys) for registration in self.registrations)

    def adjusters(self, stage: Stage, keys: Collection[str]) -> tuple[Registration, ...]:
        return tuple(r for r in self.registrations if r.adjusts(stage) and r.wants(keys))

    def observers(self, stage: Stage, keys: Collection[str]) -> tuple[Registration, ...]:
        return tuple(r for r in self.registrations if r.observes(stage) and r.wants(keys))

    def hidden(self, keys: Collection[str], request: cri.CreateContainerRequest) -> tuple[tuple[str, hook.Adjustment], ...]:
        """Return the static adjustments for this container, each with the name of its registration."""
        hiding = [
            (r.name, hide) for r in self.registrations if r.hide_unassigned and not r.wants(keys) for hide in r.hide_unassigned
        ]
        adjustments = [(name, decide_hidden(hide, request)) for name, hide in hiding]
        return tuple((name, adjustment) for name, adjustment in adjustments if adjustment)

    def refuse_many(self, guarded: Collection[str]) -> CallRefusal | None:
        """Refuse a pod with more than MAX_KEYS guarded annotations: reading them would delay calls of other pods."""
        if len(guarded) <= MAX_KEYS:
            return None
        prefixes = " or ".join(self.guarded_prefixes)
        message = f"the pod has {len(guarded)} annotations that begin with {prefixes}; at most {MAX_KEYS} are allowed"
        return CallRefusal(reason=Reason.ANNOTATION_MALFORMED, message=message)

    def refuse_incomplete(self, request: cri.CreateContainerRequest) -> CallRefusal | None:
        """Refuse a request without the sandbox's metadata: containerd crashes on it, and a hook needs the pod's identity."""
        if request.sandbox_config.HasField("metadata"):
            return None
        return CallRefusal(
            reason=Reason.REQUEST_UNREADABLE, message="the CreateContainer request has no sandbox_config.metadata"
        )

    def refuse_smuggled(self, context: CallContext, *, guarded: bool) -> CallRefusal | None:
        """Refuse a caller's annotations that only the node may write. Lading's own keys are refused for every container."""
        container, sandbox = context.container, context.sandbox
        for key in sorted(container.annotations) if container else ():
            if key in RESERVED or (guarded and key.startswith(_SMUGGLED)):
                return _reserved(key, f"container {container.name!r}" if container else "")
        for key in sorted(sandbox.annotations) if guarded else ():
            if key in RESERVED or key.startswith(_SMUGGLED):
                return _reserved(key, f"pod {sandbox.namespace}/{sandbox.name}")
        return None

    def refuse_removed(self, context: CallContext) -> CallRefusal | None:
        """Refuse a container whose pod lost a guarded key after its sandbox was created: its devices would be missing."""
        removed = self.guarded(context.keys.difference(context.sandbox.annotations))
        if not removed:
            return None
        pod = f"{context.sandbox.namespace}/{context.sandbox.name}"
        message = f"annotation {removed[0]!r} was removed from pod {pod} after its sandbox was created: recreate the pod"
        return CallRefusal(reason=Reason.ASSIGNMENT_CHANGED, message=message)

    def refuse_unclaimed(self, guarded: Collection[str]) -> CallRefusal | None:
        """Refuse a container if a guarded annotation of its pod is claimed by no registration."""
        asking = [r for r in self.registrations if r.adjusts(Stage.CREATE_CONTAINER)]
        for key in guarded:
            if not any(r.claims(key) for r in asking):
                point = Stage.CREATE_CONTAINER.pre
                message = f"no valid hook registration has a prefix of annotation {key!r} and asks for {point}"
                return CallRefusal(reason=Reason.NO_REGISTRATION, message=message)
        return None

    def refuse_unanswered(self, keys: Collection[str], answers: Answers) -> CallRefusal | None:
        """Refuse a container if no hook answered for a guarded annotation of its pod. Policy Ignore forgives a hook's failure,
        but the container must not start without the answer."""
        answered = {name for name, _ in answers.adjustments}
        for key in self.guarded(keys):
            claiming = [r.name for r in self.adjusters(Stage.CREATE_CONTAINER, keys) if r.claims(key)]
            if not answered.intersection(claiming):
                failed = [answers.forgiven[name] for name in claiming if name in answers.forgiven]
                return failed[0] if failed else self.refuse_unclaimed((key,))
        return None


def _shortest(prefixes: Collection[str]) -> tuple[bytes, ...]:
    """Return the prefixes that contain no other of them: a message with `lading.dev/gpu` has `lading.dev/` too."""
    encoded = {prefix.encode() for prefix in prefixes}
    return tuple(sorted(prefix for prefix in encoded if not any(part != prefix and part in prefix for part in encoded)))


def _reserved(key: str, where: str) -> CallRefusal:
    return CallRefusal(
        reason=Reason.ANNOTATION_RESERVED, message=f"annotation {key!r} of {where} is written by the node only: remove it"
    )

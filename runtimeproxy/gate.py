"""Decide one held call: screen it, ask the chain, and end it in exactly one way, whatever raises in between.

Enters: a `HeldCall`. Leaves: `Forward` or `Refuse`, and nothing else: an internal error refuses a guarded pod's call and
forwards all others; teardown is always forwarded. Refuses a guarded pod's container unless every guarded annotation was
answered by a registration that claims it, and requests that cannot be read where that could hide a guarded pod.

Source: docs/hook-api.md; CRI's Stop and Remove calls, which kubelet retries without end.
"""

import asyncio
import traceback
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol, TypeVar

from google.protobuf.message import DecodeError, Message

from lading.errors import RuntimeUnavailableError
from lading.http2.messages import Status
from lading.log import Event, Log
from lading.reasons import Reason
from lading.tracing import OFF, Span, Tracing
from protos.cri.runtime.v1 import api_pb2 as cri
from protos.hook.v1 import hook_pb2 as hook
from runtimeproxy.adjustment.apply import apply_adjustment
from runtimeproxy.adjustment.merge import Merged, merge
from runtimeproxy.call.calls import HeldCall, Stage, held_paths
from runtimeproxy.call.known import Known
from runtimeproxy.call.outcome import Answers, Forward, Outcome, Refusal, Refuse
from runtimeproxy.call.projection import sandbox_of_list
from runtimeproxy.call.subject import Subject, known_keys, subject_made, subject_of
from runtimeproxy.chain.chain import Chain, Question
from runtimeproxy.chain.registrations import FailurePolicy, Registration
from runtimeproxy.screening import Screening

LARGE: Final = 1 << 20  # bytes; searching and parsing larger ones on the loop would delay the other connections
FIND_TIMEOUT_S: Final = 2.0  # for the runtime's answer about an unknown sandbox
_MAKES: Final = (Stage.RUN_POD_SANDBOX, Stage.CREATE_CONTAINER)
_REMOVES: Final = (Stage.REMOVE_POD_SANDBOX, Stage.REMOVE_CONTAINER)

Answer = TypeVar("Answer")


class Sandboxes(Protocol):
    """The part of lading.runtime.RuntimeClient that the gate uses."""

    async def sandbox_status(self, sandbox_id: str) -> cri.PodSandboxStatusResponse | None: ...


class Gate:
    def __init__(
        self, chain: Chain, runtime: Sandboxes, log: Log, *, guarded_prefixes: Sequence[str], tracing: Tracing = OFF
    ) -> None:
        self.known = Known()
        self._tracing = tracing
        self._chain = chain
        self._runtime = runtime
        self._log = log
        self._screening = Screening(guarded_prefixes=tuple(guarded_prefixes))

    @property
    def held_paths(self) -> frozenset[bytes]:
        return held_paths(self._screening.registrations, guarded=bool(self._screening.guarded_prefixes))

    def use(self, registrations: tuple[Registration, ...]) -> None:
        """Use these registrations for calls that begin from now on. Call it on the loop's thread."""
        self._screening = Screening(registrations=registrations, guarded_prefixes=self._screening.guarded_prefixes)
        self._chain.retain({registration.endpoint for registration in registrations})

    def screen(self, call: HeldCall) -> Outcome | None:
        """Return the outcome of a call that needs no hook, without parsing its message; None if `handle` must decide."""
        screening, stage = self._screening, call.method.stage
        if len(call.message) >= LARGE:
            return None
        keys = known_keys(stage, call.message, self.known)
        if stage is None or stage in _MAKES:
            named = screening.names_anybody(call.message)
            return None if named or self._must_read(stage, keys) else self._forward(call)
        if screening.asked(stage, keys):
            return None
        return self._forward(call, observe=_observes(stage, screening, keys))

    def _must_read(self, stage: Stage | None, keys: Collection[str]) -> bool:
        """Tell whether a call that makes something is read whatever its message contains. `keys`: known of its sandbox."""
        return self._screening.must_read(stage, keys) or self._must_find(stage)

    def _must_find(self, stage: Stage | None) -> bool:
        """Tell whether the runtime is asked about any unknown sandbox: before the first list its pod may have guarded keys."""
        return stage is Stage.CREATE_CONTAINER and not self.known.listed and bool(self._screening.guarded_prefixes)

    async def handle(self, call: HeldCall) -> Outcome:
        """Ask the hooks that the call concerns. Raises nothing but the cancellation of its own task."""
        try:
            return await self._decide(call)
        except asyncio.CancelledError:
            self._log.info(Event.CALL_CANCELLED, method=call.method.name)
            raise
        except Exception as e:  # noqa: BLE001  an internal error must not leave a caller waiting
            return await self._after_error(call, e)

    def observed(self, call: HeldCall, outcome: Forward, status: int, reply: bytes) -> None:
        """Process the runtime's answer to a call that was forwarded with `observe`. `reply`: message bytes, without a
        prefix."""
        try:
            self._observe(call, outcome, status, reply)
        except Exception as e:  # noqa: BLE001  the caller has its answer; only `known` lacks this call
            self._log.error(
                Event.CALL_FORWARDED, f"cannot observe: {_where(e)}", method=call.method.name, reason=Reason.INTERNAL
            )

    async def _decide(self, call: HeldCall) -> Outcome:
        screening, stage = self._screening, call.method.stage
        if stage is None:
            named = await _look(call, lambda: screening.names_guarded(call.message))
            return self._refuse(call, _another_way(call)) if named else self._forward(call)
        must_read = stage not in _MAKES or self._must_read(stage, known_keys(stage, call.message, self.known))
        if not (must_read or await _look(call, lambda: screening.names_anybody(call.message))):
            return self._forward(call)
        try:
            request = await _look(call, lambda: call.method.parse(call.message))
        except DecodeError:
            return await self._unreadable(call, screening)
        subject = await self._subject(call, request)
        lost = None
        find = stage is Stage.CREATE_CONTAINER and await _look(call, lambda: screening.concerns(subject.keys))
        if find or self._must_find(stage):
            lost = await self._find(subject)
            subject = await self._subject(call, request)  # with what the runtime said about its sandbox
            if not lost:
                self.known.learn_sandbox(subject.sandbox)  # a pod may be annotated long after its sandbox was made
        refusal = await _look(call, lambda: _refusal(stage, screening, subject, lost))
        if refusal:
            return self._refuse(call, refusal, subject)
        return await self._ask(call, stage, screening, subject)

    async def _subject(self, call: HeldCall, request: Message) -> Subject:
        if call.method.stage in _MAKES:
            return await _look(call, lambda: subject_of(request, self.known))
        return subject_of(request, self.known)  # it reads more of `known` than another thread may

    async def _ask(self, call: HeldCall, stage: Stage, screening: Screening, subject: Subject) -> Outcome:
        with self._tracing.begin(f"CRI {call.method.name}", parent=call.traceparent) as span:
            _note_subject(span, subject)
            outcome = await self._answer(replace(call, traceparent=span.traceparent), stage, screening, subject)
            match outcome:
                case Refuse():
                    span.note(lading_outcome="refused", lading_reason=outcome.reason)
                case Forward():
                    span.note(lading_outcome="forwarded" if outcome.message is None else "adjusted")
            return outcome

    async def _answer(self, call: HeldCall, stage: Stage, screening: Screening, subject: Subject) -> Outcome:
        asked, questions = await _look(call, lambda: _questions(call, stage, screening, subject))
        answers = await self._chain.ask(stage, questions, call.deadline, keep_going=call.method.teardown)
        observe = await _look(call, lambda: _observes(stage, screening, subject.keys))
        if isinstance(answers, Refusal):
            return self._refuse(call, answers, subject)
        if call.method.teardown:
            for forgiven in answers.forgiven.values():
                self._say_ignored(call, forgiven, subject)
            return self._forward(call, subject, observe=observe)
        usable = self._without_invalid(call, stage, asked, answers, subject)
        merged = await _look(call, lambda: _merged(stage, screening, subject, usable))
        if isinstance(merged, Refusal):
            return self._refuse(call, merged, subject)
        if merged.empty:
            return self._forward(call, subject, observe=observe)
        return await self._adjust(call, stage, merged, subject, observe=observe)

    async def _adjust(self, call: HeldCall, stage: Stage, merged: Merged, subject: Subject, *, observe: bool) -> Outcome:
        applied = await _look(call, lambda: apply_adjustment(call.message, merged.adjustment, stage))
        fields = _fields(call, subject)
        owners = ",".join(dict.fromkeys(merged.owners.values()))
        if applied.env_replaced:
            self._log.info(Event.ENV_REPLACED, ",".join(applied.env_replaced), **fields, hook=owners)
        self._log.info(Event.CALL_ADJUSTED, **fields, hook=owners)
        if not (observe and _large(call)):
            return Forward(applied.message, observe=observe)
        request = await _look(call, lambda: call.method.parse(applied.message))
        return Forward(applied.message, observe=observe, subject=replace(await self._subject(call, request), create=None))

    def _without_invalid(
        self, call: HeldCall, stage: Stage, asked: Sequence[Registration], answers: Answers, subject: Subject
    ) -> Answers:
        """Return the answers without those that no request can carry, where policy Ignore applies: they are failures like any
        other."""
        ignored = {registration.name for registration in asked if registration.policy is FailurePolicy.IGNORE}
        if not ignored:
            return answers
        usable, forgiven = [], dict(answers.forgiven)
        for name, adjustment in answers.adjustments:
            alone = merge([(name, adjustment)], stage) if name in ignored else None
            if isinstance(alone, Refusal):
                self._say_ignored(call, alone, subject)
                forgiven[name] = alone
            else:
                usable.append((name, adjustment))
        return Answers(adjustments=tuple(usable), forgiven=forgiven)

    async def _find(self, subject: Subject) -> Refusal | None:
        """Learn from the runtime what a container's request does not say of its sandbox (its runtime handler)."""
        sandbox_id = subject.sandbox.id
        if self.known.sandbox(sandbox_id):
            return None
        try:
            async with asyncio.timeout(FIND_TIMEOUT_S):
                found = await self._runtime.sandbox_status(sandbox_id)
        except (RuntimeUnavailableError, TimeoutError) as e:
            message = f"cannot ask the runtime about sandbox {sandbox_id}: {e or 'no answer'}"
            return Refusal(reason=Reason.NOT_RECONCILED, message=message)
        if found is None:
            return Refusal(reason=Reason.NOT_RECONCILED, message=f"the runtime knows no sandbox {sandbox_id}")
        self.known.learn_sandbox(sandbox_of_list(found.status))
        return None

    async def _unreadable(self, call: HeldCall, screening: Screening) -> Outcome:
        """Refuse the request if its pod might be guarded, or might get cards that are to be hidden from it; forward all
        others."""
        hides = call.method.stage is Stage.CREATE_CONTAINER and screening.hides
        if call.method.teardown or not (hides or await self._may_be_guarded(call, screening)):
            return self._forward(call)
        message = f"the {call.method.name} request cannot be parsed as a runtime.v1 message"
        return self._refuse(call, Refusal(reason=Reason.REQUEST_UNREADABLE, message=message))

    async def _may_be_guarded(self, call: HeldCall, screening: Screening) -> bool:
        keys = known_keys(call.method.stage, call.message, self.known)
        return bool(screening.guarded(keys)) or await _look(call, lambda: screening.names_guarded(call.message))

    async def _after_error(self, call: HeldCall, error: Exception) -> Outcome:
        self._log.error(Event.CALL_REFUSED, f"internal error: {_where(error)}", method=call.method.name, reason=Reason.INTERNAL)
        try:
            guarded = await self._may_be_guarded(call, self._screening)
        except Exception:  # noqa: BLE001  the same error may occur here: then it is unknown, and counts as guarded
            guarded = True
        if call.method.teardown or not guarded:
            return Forward(None, observe=call.method.stage in _REMOVES)
        message = f"cannot adjust {call.method.name}: an error in lading-runtimeproxy ({type(error).__name__}), see its log"
        return Refusal(reason=Reason.INTERNAL, message=message).outcome

    def _observe(self, call: HeldCall, outcome: Forward, status: int, reply: bytes) -> None:
        stage, screening, known = call.method.stage, self._screening, self.known
        if stage is None:
            return
        subject = outcome.subject
        if subject is None:
            request = call.method.parse(call.message if outcome.message is None else outcome.message)
            subject = subject_of(request, known)
        done = status == Status.OK
        if done:
            subject = subject_made(subject, stage, reply)
        if done and stage in _MAKES and known.sandbox(subject.sandbox.id) is None:
            known.learn_sandbox(subject.sandbox)
        if done and stage is Stage.CREATE_CONTAINER and subject.container:
            known.learn_container(subject.sandbox.id, subject.container)
        for registration in screening.told(stage, subject.keys):
            told = hook.ObserveRequest(
                stage=stage.name, sandbox=subject.sandbox, container=subject.container, grpc_status=status
            )
            self._chain.observe(registration, stage, told)
        if done and stage is Stage.REMOVE_POD_SANDBOX:
            known.forget_sandbox(subject.sandbox.id)
        elif done and stage is Stage.REMOVE_CONTAINER and subject.container:
            known.forget_container(subject.container.id)

    def _forward(self, call: HeldCall, subject: Subject | None = None, *, observe: bool = False) -> Forward:
        if self._log.debug_enabled:
            self._log.debug(Event.CALL_FORWARDED, **_fields(call, subject))
        kept = replace(subject, create=None) if observe and subject and _large(call) else None
        return Forward(None, observe=observe, subject=kept)

    def _refuse(self, call: HeldCall, refusal: Refusal, subject: Subject | None = None) -> Outcome:
        fields = _fields(call, subject)
        self._log.warning(Event.CALL_REFUSED, refusal.message, **fields, hook=refusal.hook, reason=refusal.reason)
        return refusal.outcome

    def _say_ignored(self, call: HeldCall, refusal: Refusal, subject: Subject) -> None:
        fields = _fields(call, subject)
        self._log.warning(Event.HOOK_IGNORED, refusal.message, **fields, hook=refusal.hook, reason=refusal.reason)


def _observes(stage: Stage, screening: Screening, keys: Collection[str]) -> bool:
    """Return whether the reply is needed: a hook is notified, or `known` learns or forgets."""
    if stage in _REMOVES or screening.told(stage, keys):
        return True
    return stage in _MAKES and screening.concerns(keys)


def _refusal(stage: Stage, screening: Screening, subject: Subject, lost: Refusal | None) -> Refusal | None:
    """Return a refusal that needs no hook. `lost`: why the runtime did not describe the sandbox."""
    if stage not in _MAKES:
        return None
    refusal = screening.refuse_many(subject) or screening.refuse_incomplete(subject) or screening.refuse_smuggled(subject)
    if refusal or stage is Stage.RUN_POD_SANDBOX:
        return refusal
    guarded = screening.guarded(subject.keys)
    return screening.refuse_unclaimed(guarded) or screening.refuse_removed(subject) or (lost if guarded else None)


def _merged(stage: Stage, screening: Screening, subject: Subject, answers: Answers) -> Merged | Refusal:
    if stage is Stage.CREATE_CONTAINER and (refusal := screening.refuse_unanswered(subject.keys, answers)):
        return refusal
    return merge([*answers.adjustments, *screening.hidden(subject)], stage)


def _questions(
    call: HeldCall, stage: Stage, screening: Screening, subject: Subject
) -> tuple[tuple[Registration, ...], list[Question]]:
    """Return the registrations to ask, and the questions."""
    asked = screening.asked(stage, subject.keys)
    return asked, [_question(registration, call, stage, subject) for registration in asked]


def _question(registration: Registration, call: HeldCall, stage: Stage, subject: Subject) -> Question:
    request = hook.AdjustRequest(
        stage=stage.name,
        sandbox=subject.sandbox,
        container=subject.shown_container(registration.env_values),
        traceparent=call.traceparent,
    )
    return Question(registration=registration, request=request)


def _another_way(call: HeldCall) -> Refusal:
    message = f"{call.method.name} would create a guarded pod's containers without its hooks: not supported"
    return Refusal(reason=Reason.CREATED_ANOTHER_WAY, message=message)


def _fields(call: HeldCall, subject: Subject | None) -> dict[str, Any]:
    fields: dict[str, Any] = {"method": call.method.name}
    if subject is not None:
        sandbox, container = subject.sandbox, subject.container
        fields |= {"namespace": sandbox.namespace, "pod": sandbox.name, "pod_uid": sandbox.uid}
        fields |= {"container": container.name} if container else {}
    return fields


def _note_subject(span: Span, subject: Subject) -> None:
    sandbox, container = subject.sandbox, subject.container
    name = container.name if container else ""
    span.note(k8s_namespace_name=sandbox.namespace, k8s_pod_name=sandbox.name, k8s_pod_uid=sandbox.uid, k8s_container_name=name)


def _large(call: HeldCall) -> bool:
    return len(call.message) >= LARGE


async def _look(call: HeldCall, look: Callable[[], Answer]) -> Answer:
    """Look at a message, or at what was parsed from it; at a large one in a thread."""
    return await asyncio.to_thread(look) if _large(call) else look()


def _where(error: Exception) -> str:
    """Return type and place of an error. Not its text, which may quote the message of a pod."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {frame.filename.rpartition('/')[2]}:{frame.lineno}"

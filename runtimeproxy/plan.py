"""Plan one held call: the questions for hooks and runtime, and the end of the call once they are answered.

A plan follows from the message, the registrations and the cached pod; planning has no side effects. A guarded pod's container
is refused unless, for every guarded annotation, a registration that claims it answered. An unreadable request is refused if it
could hide a guarded pod. Teardown is always forwarded.

Source: docs/hook-api.md; CRI's Stop and Remove calls, which kubelet retries without end.

Tests: tests/unit/runtimeproxy/test_gate.py
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError, Message

from lading.reasons import Reason
from protos.cri.runtime.v1 import api_pb2 as cri
from protos.hook.v1 import hook_pb2 as hook
from runtimeproxy.adjustment.apply import apply_adjustment
from runtimeproxy.adjustment.merge import merge
from runtimeproxy.call.call_context import CallContext, adjusted, cached_keys, context_by_id, context_of
from runtimeproxy.call.calls import HeldCall, Stage, read_id
from runtimeproxy.call.outcome import Answers, CallRefusal, Forward
from runtimeproxy.call.projection import container_of_config
from runtimeproxy.call.sandbox_cache import SandboxCache
from runtimeproxy.chain.chain import Question
from runtimeproxy.chain.registrations import FailurePolicy
from runtimeproxy.screening import Screening

MAKES: Final = (Stage.RUN_POD_SANDBOX, Stage.CREATE_CONTAINER)
REMOVES: Final = (Stage.REMOVE_POD_SANDBOX, Stage.REMOVE_CONTAINER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """Hold the end of a call, and the details for its log record."""

    end: Forward | CallRefusal
    context: CallContext | None = None
    ignored: tuple[CallRefusal, ...] = ()  # hook failures that policy Ignore forgave
    owners: tuple[str, ...] = ()  # registrations whose adjustments were applied
    env_replaced: tuple[str, ...] = ()
    learn: bool = False  # whether to cache the context's sandbox, as in `HookQuestions`

    @property
    def unchanged(self) -> bool:
        """Return whether the call is forwarded as it came, and nothing failed."""
        return isinstance(self.end, Forward) and self.end.message is None and not self.ignored


@dataclass(frozen=True, slots=True, kw_only=True)
class HookQuestions:
    """Hold the questions for the hooks, perhaps none. The answers go to `finish_call`."""

    stage: Stage
    context: CallContext
    questions: tuple[Question, ...]
    hidden: tuple[tuple[str, hook.Adjustment], ...] = ()  # static adjustments, with the names of their registrations
    learn: bool = False  # whether to cache the sandbox: a pod may get annotations long after its sandbox was made


@dataclass(frozen=True, slots=True)
class FindSandbox:
    """Request the runtime's description of a sandbox, because the call lacks its runtime handler, and then a new plan."""

    sandbox_id: str


def plan_call(
    call: HeldCall, screening: Screening, cache: SandboxCache, described: CallRefusal | bool = False
) -> Decided | HookQuestions | FindSandbox:
    """Return the next step of a call. `described`: True if the runtime described the sandbox, or a refusal with the cause."""
    stage = call.method.stage
    if stage is None:
        return Decided(end=_created_otherwise(call) if screening.mentions_guarded(call.message) else Forward())
    # Any unknown sandbox may belong to a guarded pod until the runtime's lists were read once.
    must_find = stage is Stage.CREATE_CONTAINER and not cache.listed and bool(screening.guarded_prefixes)
    if stage in MAKES:
        must_read = must_find or screening.must_read(stage, lambda: cached_keys(stage, call.message, cache))
        if not (must_read or screening.mentions_prefix(call.message)):
            return Decided(end=Forward())
    else:
        context = context_by_id(stage, read_id(call.message), cache)
        if not screening.adjusters(stage, context.keys):
            return _forward(stage, screening, context)
    try:
        request = call.method.parse(call.message)
    except DecodeError:
        return _unreadable(call, screening, cache)
    context = context_of(request, cache)
    learn = False
    if isinstance(request, cri.CreateContainerRequest) and (must_find or screening.concerns(context.keys)):
        if not described and cache.sandbox(context.sandbox.id) is None:
            return FindSandbox(context.sandbox.id)
        learn = not isinstance(described, CallRefusal)
    if refusal := _refusal(request, screening, context, described if isinstance(described, CallRefusal) else None):
        return Decided(end=refusal, context=context, learn=learn)
    return HookQuestions(
        stage=stage,
        context=context,
        questions=_questions(call, request, stage, screening, context),
        hidden=screening.hidden(context.keys, request) if isinstance(request, cri.CreateContainerRequest) else (),
        learn=learn,
    )


def finish_call(call: HeldCall, screening: Screening, planned: HookQuestions, answers: Answers | CallRefusal) -> Decided:
    """Return the end of the call, given the hooks' answers."""
    stage, context = planned.stage, planned.context
    if isinstance(answers, CallRefusal):
        return Decided(end=answers, context=context)
    if call.method.teardown:
        return _forward(stage, screening, context, ignored=tuple(answers.forgiven.values()))
    answers, ignored = _without_invalid(stage, planned.questions, answers)
    refusal = screening.refuse_unanswered(context.keys, answers) if stage is Stage.CREATE_CONTAINER else None
    merged = refusal or merge([*answers.adjustments, *planned.hidden], stage)
    if isinstance(merged, CallRefusal):
        return Decided(end=merged, context=context, ignored=ignored)
    if merged.empty:
        return _forward(stage, screening, context, ignored=ignored)
    applied = apply_adjustment(call.message, merged.adjustment, stage)
    observe = adjusted(context, stage, merged.adjustment) if _observes(stage, screening, context.keys) else None
    return Decided(
        end=Forward(applied.message, observe),
        context=context,
        ignored=ignored,
        owners=tuple(dict.fromkeys(merged.owners.values())),
        env_replaced=applied.env_replaced,
    )


def may_be_guarded(call: HeldCall, screening: Screening, cache: SandboxCache) -> bool:
    keys = cached_keys(call.method.stage, call.message, cache)
    return bool(screening.guarded(keys)) or screening.mentions_guarded(call.message)


def _forward(stage: Stage, screening: Screening, context: CallContext, *, ignored: tuple[CallRefusal, ...] = ()) -> Decided:
    observe = context if _observes(stage, screening, context.keys) else None
    return Decided(end=Forward(None, observe), context=context, ignored=ignored)


def _observes(stage: Stage, screening: Screening, keys: Collection[str]) -> bool:
    """Return whether the runtime's reply is needed, to notify a hook or to update the sandbox cache."""
    return stage in REMOVES or bool(screening.observers(stage, keys)) or (stage in MAKES and screening.concerns(keys))


def _unreadable(call: HeldCall, screening: Screening, cache: SandboxCache) -> Decided:
    """Refuse an unparsable request if its pod may be guarded, or if cards must be hidden from it; forward any other."""
    hides = call.method.stage is Stage.CREATE_CONTAINER and screening.hides
    if call.method.teardown or not (hides or may_be_guarded(call, screening, cache)):
        return Decided(end=Forward())
    message = f"the {call.method.name} request cannot be parsed as a runtime.v1 message"
    return Decided(end=CallRefusal(reason=Reason.REQUEST_UNREADABLE, message=message))


def _refusal(request: Message, screening: Screening, context: CallContext, lost: CallRefusal | None) -> CallRefusal | None:
    """Return the refusal that needs no hook's answer, if any. `lost`: why the runtime did not describe the sandbox."""
    guarded = screening.guarded(context.keys)
    match request:
        case cri.RunPodSandboxRequest():
            return screening.refuse_many(guarded) or screening.refuse_smuggled(context, guarded=bool(guarded))
        case cri.CreateContainerRequest():
            return (
                screening.refuse_many(guarded)
                or screening.refuse_incomplete(request)
                or screening.refuse_smuggled(context, guarded=bool(guarded))
                or screening.refuse_unclaimed(guarded)
                or screening.refuse_removed(context)
                or (lost if guarded else None)
            )
        case _:
            return None


def _questions(
    call: HeldCall, request: Message, stage: Stage, screening: Screening, context: CallContext
) -> tuple[Question, ...]:
    questions = []
    for registration in screening.adjusters(stage, context.keys):
        container = context.container
        if container and isinstance(request, cri.CreateContainerRequest):
            container = container_of_config(request.config, container, env_values=registration.env_values)
        adjusting = hook.AdjustRequest(
            stage=stage.name, sandbox=context.sandbox, container=container, traceparent=call.traceparent
        )
        questions.append(Question(registration=registration, request=adjusting))
    return tuple(questions)


def _without_invalid(
    stage: Stage, questions: tuple[Question, ...], answers: Answers
) -> tuple[Answers, tuple[CallRefusal, ...]]:
    """Move invalid adjustments of registrations with policy Ignore to the failures. Return the answers left, and the failures.

    An adjustment is invalid if the stage's request cannot carry it.
    """
    ignoring = {q.registration.name for q in questions if q.registration.policy is FailurePolicy.IGNORE}
    alone = {name: merge([(name, adjustment)], stage) for name, adjustment in answers.adjustments if name in ignoring}
    invalid = {name: merged for name, merged in alone.items() if isinstance(merged, CallRefusal)}
    if not invalid:
        return answers, ()
    usable = tuple((name, adjustment) for name, adjustment in answers.adjustments if name not in invalid)
    return Answers(adjustments=usable, forgiven={**answers.forgiven, **invalid}), tuple(invalid.values())


def _created_otherwise(call: HeldCall) -> CallRefusal:
    message = f"{call.method.name} would create a guarded pod's containers without its hooks: not supported"
    return CallRefusal(reason=Reason.CREATED_ANOTHER_WAY, message=message)

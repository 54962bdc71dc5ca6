"""Carry out the plan of each held call, so that the call ends in exactly one way, even after an exception.

After an internal error, a guarded pod's call is refused and any other call is forwarded; teardown is always forwarded.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, ParamSpec, Protocol, TypeVar

from lading.errors import RuntimeUnavailableError, place_of
from lading.http2.messages import GrpcStatus
from lading.log import Event, Log
from lading.reasons import Reason
from lading.tracing import OFF, Span, Tracing
from protos.cri.runtime.v1 import api_pb2 as cri
from protos.hook.v1 import hook_pb2 as hook
from runtimeproxy.call.call_context import CallContext, context_by_id, context_made
from runtimeproxy.call.calls import HeldCall, Method, Stage, held_paths, read_id
from runtimeproxy.call.outcome import Answers, CallRefusal, Forward, Outcome
from runtimeproxy.call.projection import sandbox_of_list
from runtimeproxy.call.sandbox_cache import SandboxCache
from runtimeproxy.chain.chain import Chain
from runtimeproxy.chain.registrations import Registration
from runtimeproxy.plan import MAKES, REMOVES, Decided, FindSandbox, HookQuestions, finish_call, may_be_guarded, plan_call
from runtimeproxy.screening import Screening

LARGE: Final = 1 << 20  # bytes; searching or parsing a larger message on the event loop would delay other connections
FIND_TIMEOUT_S: Final = 2.0  # seconds to wait for the runtime's answer about an unknown sandbox

Later = Callable[[], Coroutine[Any, Any, Outcome]]
P = ParamSpec("P")
R = TypeVar("R")


class Sandboxes(Protocol):
    """Declare the part of lading.runtime.RuntimeClient that the gate uses."""

    async def sandbox_status(self, sandbox_id: str) -> cri.PodSandboxStatusResponse | None: ...


class Gate:
    def __init__(
        self,
        chain: Chain,
        runtime: Sandboxes,
        log: Log,
        *,
        guarded_prefixes: Sequence[str],
        tracing: Tracing = OFF,
        defer: Callable[[Callable[[], None]], object] = lambda do: do(),
    ) -> None:
        """Create a gate. `defer` gets functions that may run after the call was forwarded, such as logging."""
        self.cache = SandboxCache()
        self._defer = defer
        self._tracing = tracing
        self._chain = chain
        self._runtime = runtime
        self._log = log
        self._screening = Screening(guarded_prefixes=tuple(guarded_prefixes))

    @property
    def held_paths(self) -> frozenset[bytes]:
        return held_paths(self._screening.registrations, guarded=bool(self._screening.guarded_prefixes))

    def use(self, registrations: tuple[Registration, ...]) -> None:
        """Use these registrations for calls that begin from now on. Must run on the event loop's thread."""
        self._screening = Screening(registrations=registrations, guarded_prefixes=self._screening.guarded_prefixes)
        self._chain.use(registrations)

    def handle(self, call: HeldCall) -> Outcome | Later:
        """Return the call's outcome, or a coroutine function for it if a hook, the runtime or a thread must be awaited.
        Neither raises, except for CancelledError when the coroutine's task is cancelled."""
        screening = self._screening
        if _large(call):
            return partial(self._wait, call, screening)
        try:
            planned = plan_call(call, screening, self.cache)
            if isinstance(planned, HookQuestions) and not planned.questions:
                self._learn(planned)
                with self._begin_span(call, planned) as span:
                    planned = _finish(call, screening, planned, Answers(), span)
            if isinstance(planned, Decided):
                return self._end(call, planned)
            return partial(self._wait, call, screening, planned)
        except Exception as e:  # noqa: BLE001  an internal error must not leave a caller waiting
            self._log_error(call, e)
            return _after_error(call, screening, self.cache, e)

    def observed(self, method: Method, context: CallContext, status: int, reply: bytes) -> None:
        """Process the runtime's answer to a call that was forwarded with `observe`. `reply` has no gRPC prefix."""
        try:
            self._observe(method, context, status, reply)
        except Exception as e:  # noqa: BLE001  the caller has its answer; only `cache` lacks this call
            self._log.error(Event.CALL_FORWARDED, f"cannot observe: {place_of(e)}", method=method.name, reason=Reason.INTERNAL)

    async def _wait(
        self, call: HeldCall, screening: Screening, planned: Decided | HookQuestions | FindSandbox | None = None
    ) -> Outcome:
        try:
            planned = planned or await _run(call, plan_call, call, screening, self.cache)
            if isinstance(planned, FindSandbox):
                described = await self._find(planned.sandbox_id)
                planned = await _run(call, plan_call, call, screening, self.cache, described)
            if isinstance(planned, HookQuestions):
                self._learn(planned)
                with self._begin_span(call, planned) as span:
                    for question in planned.questions:
                        question.request.traceparent = span.traceparent
                    answers = await self._chain.collect_answers(
                        planned.stage, planned.questions, call.deadline, keep_going=call.method.teardown
                    )
                    planned = await _run(call, _finish, call, screening, planned, answers, span)
            assert isinstance(planned, Decided)  # noqa: S101  a sandbox is looked for once
            return self._end(call, planned)
        except asyncio.CancelledError:
            self._log.info(Event.CALL_CANCELLED, method=call.method.name)
            raise
        except Exception as e:  # noqa: BLE001  as above
            self._log_error(call, e)
            return await _run(call, _after_error, call, screening, self.cache, e)

    async def _find(self, sandbox_id: str) -> CallRefusal | bool:
        """Cache a sandbox that the runtime describes. Return True, or a refusal that says why the runtime did not."""
        try:
            async with asyncio.timeout(FIND_TIMEOUT_S):
                described = await self._runtime.sandbox_status(sandbox_id)
        except (RuntimeUnavailableError, TimeoutError) as e:
            message = f"cannot ask the runtime about sandbox {sandbox_id}: {e or 'no answer'}"
            return CallRefusal(reason=Reason.NOT_RECONCILED, message=message)
        if described is None:
            return CallRefusal(reason=Reason.NOT_RECONCILED, message=f"the runtime knows no sandbox {sandbox_id}")
        self.cache.learn_sandbox(sandbox_of_list(described.status))
        return True

    def _learn(self, planned: Decided | HookQuestions) -> None:
        if planned.learn and planned.context:
            self.cache.learn_sandbox(planned.context.sandbox)

    def _begin_span(self, call: HeldCall, planned: HookQuestions) -> Span:
        span = self._tracing.begin(f"CRI {call.method.name}", parent=call.traceparent)
        sandbox, container = planned.context.sandbox, planned.context.container
        name = container.name if container else ""
        span.note(
            k8s_namespace_name=sandbox.namespace, k8s_pod_name=sandbox.name, k8s_pod_uid=sandbox.uid, k8s_container_name=name
        )
        return span

    def _observe(self, method: Method, context: CallContext, status: int, reply: bytes) -> None:
        stage, screening, cache = method.stage, self._screening, self.cache
        if stage is None:
            return
        done = status == GrpcStatus.OK
        if done:
            context = context_made(context, stage, reply)
        if done and stage in MAKES and cache.sandbox(context.sandbox.id) is None:
            cache.learn_sandbox(context.sandbox)
        if done and stage is Stage.CREATE_CONTAINER and context.container:
            cache.learn_container(context.sandbox.id, context.container)
        for registration in screening.observers(stage, context.keys):
            notification = hook.ObserveRequest(
                stage=stage.name, sandbox=context.sandbox, container=context.container, grpc_status=status
            )
            self._chain.observe(registration, stage, notification)
        if done and stage is Stage.REMOVE_POD_SANDBOX:
            cache.forget_sandbox(context.sandbox.id)
        elif done and stage is Stage.REMOVE_CONTAINER and context.container:
            cache.forget_container(context.container.id)

    def _log_error(self, call: HeldCall, error: Exception) -> None:
        where = f"internal error: {place_of(error)}"
        self._log.error(Event.CALL_REFUSED, where, method=call.method.name, reason=Reason.INTERNAL)

    def _end(self, call: HeldCall, decided: Decided) -> Outcome:
        self._learn(decided)
        if isinstance(decided.end, CallRefusal):  # the refused caller may read the log at once
            self._log_end(call, decided)
            return decided.end.outcome
        if not decided.unchanged or self._log.debug_enabled:
            self._defer(partial(self._log_end, call, decided))
        return decided.end

    def _log_end(self, call: HeldCall, decided: Decided) -> None:
        log, end = self._log, decided.end
        fields = _fields(call, decided.context)
        for refusal in decided.ignored:
            log.warning(Event.HOOK_IGNORED, refusal.message, **fields, hook=refusal.hook, reason=refusal.reason)
        if isinstance(end, CallRefusal):
            log.warning(Event.CALL_REFUSED, end.message, **fields, hook=end.hook, reason=end.reason)
            return
        owners = ",".join(decided.owners)
        if decided.env_replaced:
            log.info(Event.ENV_REPLACED, ",".join(decided.env_replaced), **fields, hook=owners)
        if end.message is not None:
            log.info(Event.CALL_ADJUSTED, **fields, hook=owners)
        else:
            log.debug(Event.CALL_FORWARDED, **fields)


def _finish(
    call: HeldCall, screening: Screening, planned: HookQuestions, answers: Answers | CallRefusal, span: Span
) -> Decided:
    decided = finish_call(call, screening, planned, answers)
    match decided.end:
        case CallRefusal(reason=reason):
            span.note(lading_outcome="refused", lading_reason=reason)
        case Forward(message):
            span.note(lading_outcome="forwarded" if message is None else "adjusted")
    return decided


def _after_error(call: HeldCall, screening: Screening, cache: SandboxCache, error: Exception) -> Outcome:
    method, context = call.method, None
    try:
        guarded = may_be_guarded(call, screening, cache)
        if method.stage in REMOVES:
            context = context_by_id(method.stage, read_id(call.message), cache)
    except Exception:  # noqa: BLE001  the same error may occur here: then it is unknown, and counts as guarded
        guarded = True
    if method.teardown or not guarded:
        return Forward(observe=context)
    message = f"cannot adjust {method.name}: an error in lading-runtimeproxy ({type(error).__name__}), see its log"
    return CallRefusal(reason=Reason.INTERNAL, message=message).outcome


def _fields(call: HeldCall, context: CallContext | None) -> dict[str, Any]:
    fields: dict[str, Any] = {"method": call.method.name}
    if context is not None:
        sandbox, container = context.sandbox, context.container
        fields |= {"namespace": sandbox.namespace, "pod": sandbox.name, "pod_uid": sandbox.uid}
        fields |= {"container": container.name} if container else {}
    return fields


def _large(call: HeldCall) -> bool:
    return len(call.message) >= LARGE


async def _run(call: HeldCall, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a function that reads the call's message; for a message of `LARGE` bytes or more, in a thread."""
    return await asyncio.to_thread(function, *args, **kwargs) if _large(call) else function(*args, **kwargs)

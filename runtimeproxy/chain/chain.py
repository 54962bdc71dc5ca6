"""Ask hook servers, one after the other, each with its deadline and failure policy. Probe all of them between questions.

Source: protos/hook/v1/hook.proto.
"""

import asyncio
import contextlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from lading.log import Event, Log, printable
from lading.reasons import Reason
from protos.hook.v1 import hook_pb2 as hook
from runtimeproxy.call.calls import Stage
from runtimeproxy.call.outcome import Answers, CallRefusal
from runtimeproxy.chain.endpoint import RESTART_WAIT_S, Endpoint, Failure
from runtimeproxy.chain.registrations import FailurePolicy, Registration

SHARE_OF_CALLER: Final = 0.5  # part of the caller's deadline for all hooks; the other half is the runtime's
MESSAGE_MAX: Final = 1024  # characters of a hook's refusal; the limit of kubelet's events
PROBE_S: Final = 5.0  # seconds between probes of a server

_REASON_CODE: Final = re.compile(r"[a-z0-9]{1,32}(-[a-z0-9]{1,32}){0,8}")
_EVENT_OF: Final = {Reason.HOOK_TIMEOUT: Event.HOOK_TIMEOUT, Reason.HOOK_INVALID: Event.HOOK_INVALID}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    registration: Registration
    request: hook.AdjustRequest  # `deadline_ms` is set when the question is asked


class Chain:
    def __init__(
        self,
        log: Log,
        *,
        answered: Callable[[str, float, Failure | None], None] = lambda *_: None,
    ) -> None:
        """Create a chain that trusts the sockets of root and of this process's user. `answered` is called after each
        question, with the registration's name, the seconds, and the failure or None."""
        self._log = log
        self._answered = answered
        self._registrations: tuple[Registration, ...] = ()
        self._changed = asyncio.Event()  # set when there are other registrations
        self._endpoints: dict[str, Endpoint] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def collect_answers(
        self, stage: Stage, questions: Sequence[Question], deadline: float | None, *, keep_going: bool = False
    ) -> Answers | CallRefusal:
        """Ask the questions in turn; `deadline` in loop.time(). With `keep_going` (teardown), ask all of them, even after a
        refusal or failure."""
        loop = asyncio.get_running_loop()
        until = None if deadline is None else loop.time() + max(0.0, deadline - loop.time()) * SHARE_OF_CALLER
        adjustments: list[tuple[str, hook.Adjustment]] = []
        forgiven: dict[str, CallRefusal] = {}
        for question in questions:
            registration = question.registration
            own = loop.time() + registration.deadline_s(stage.pre)
            answer = await self._answer_to(question, own if until is None else min(own, until))
            ignored = False
            if isinstance(answer, Failure):
                ignored = registration.policy is FailurePolicy.IGNORE
                self._report(stage, registration, answer, ignored=ignored)
                message = f"hook {registration.name}: {answer.message}"
                answer = CallRefusal(reason=answer.reason, message=message, hook=registration.name)
            if isinstance(answer, hook.Adjustment):
                adjustments.append((registration.name, answer))
            elif ignored or keep_going:
                forgiven[registration.name] = answer
            else:
                return answer
        return Answers(adjustments=tuple(adjustments), forgiven=forgiven)

    def observe(self, registration: Registration, stage: Stage, request: hook.ObserveRequest) -> None:
        """Queue a notification and return. Delivery is best effort, and in order for each endpoint."""
        deadline_s = registration.deadline_s(stage.post)
        self._endpoint(registration).observe(request, name=registration.name, deadline_s=deadline_s)

    def use(self, registrations: tuple[Registration, ...]) -> None:
        """Probe the servers of these registrations from now on. Close the other endpoints after RESTART_WAIT_S seconds: until
        then, open questions may be answered."""
        self._registrations = registrations
        self._changed.set()
        endpoints = {registration.endpoint for registration in registrations}
        for path in [p for p in self._endpoints if p not in endpoints]:
            closing = self._endpoints.pop(path).close(grace_s=RESTART_WAIT_S)
            task = asyncio.get_running_loop().create_task(closing)
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def silences(self) -> dict[str, str]:
        """Return why each server does not answer, by registration; the text is empty for a server that answers."""
        return {registration.name: self._endpoint(registration).silence for registration in self._registrations}

    async def keep_probing(self) -> None:
        """Probe all servers every PROBE_S seconds, and at once when registrations change. Never returns."""
        while True:
            self._changed.clear()
            await asyncio.gather(*(endpoint.probe() for endpoint in {self._endpoint(r) for r in self._registrations}))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PROBE_S):  # wait_for loses a cancellation that comes with the event (bpo-37658)
                    await self._changed.wait()

    async def close(self) -> None:
        """Close all endpoints, drop their queued notifications, and wait for all tasks to end. Idempotent."""
        endpoints, self._endpoints = list(self._endpoints.values()), {}
        await asyncio.gather(*self._closing, *(endpoint.close(grace_s=None) for endpoint in endpoints))

    def _endpoint(self, registration: Registration) -> Endpoint:
        path = registration.endpoint
        if path not in self._endpoints:
            self._endpoints[path] = Endpoint(path, self._log, owner_uid=os.geteuid())
        return self._endpoints[path]

    async def _answer_to(self, question: Question, until: float) -> hook.Adjustment | CallRefusal | Failure:
        registration = question.registration
        patient = registration.policy is FailurePolicy.FAIL
        endpoint = self._endpoint(registration)
        began = asyncio.get_running_loop().time()
        answer = await endpoint.adjust(question.request, until=until, patient=patient)
        read = _parse_answer(answer, registration) if isinstance(answer, bytes) else answer
        took_s = asyncio.get_running_loop().time() - began
        failure = read if isinstance(read, Failure) else None
        self._answered(registration.name, took_s, failure)
        endpoint.record(failure, name=registration.name)
        return read

    def _report(self, stage: Stage, registration: Registration, failure: Failure, *, ignored: bool) -> None:
        event = Event.HOOK_IGNORED if ignored else _EVENT_OF.get(failure.reason, Event.HOOK_FAILED)
        self._log.warning(event, failure.message, hook=registration.name, method=stage.value, reason=failure.reason.value)


def _parse_answer(answer: bytes, registration: Registration) -> hook.Adjustment | CallRefusal | Failure:
    try:
        response = hook.AdjustResponse.FromString(answer)
    except DecodeError:
        return Failure(reason=Reason.HOOK_INVALID, message=f"{registration.endpoint}: the answer is not an AdjustResponse")
    match response.WhichOneof("result"):
        case "adjustment":
            return response.adjustment
        case "refusal":
            reason = response.refusal.reason
            return CallRefusal(
                reason=reason if _REASON_CODE.fullmatch(reason) else Reason.HOOK_INVALID.value,
                message=printable(response.refusal.message)[:MESSAGE_MAX],
                hook=registration.name,
            )
        case _:
            message = f"{registration.endpoint} answered neither an adjustment nor a refusal"
            return Failure(reason=Reason.HOOK_INVALID, message=message)

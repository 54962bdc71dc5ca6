"""Simulate the node for a front end: give the answers that the test sets, and record the front end's calls."""

import asyncio
from collections.abc import Awaitable

from hooks.model.assignment import Refusal
from hooks.model.container import Adjustment, Answer, Container, Sandbox


class ScriptedNode:
    def __init__(self) -> None:
        self.answer: Answer | Refusal | Exception = Answer(adjustment=Adjustment())
        self.prepares = False  # whether work has to be waited for, which ends when `may_end` is set
        self.may_end = asyncio.Event()
        self.asked: list[tuple[str, ...]] = []
        self.sandbox = Sandbox()  # the sandbox in the last call
        self.container = Container()

    def adjust_container(self, sandbox: Sandbox, container: Container) -> Answer | Refusal | Awaitable[Answer | Refusal]:
        self._note("adjust", sandbox)
        self.container = container
        if self.prepares and not self.may_end.is_set():
            return self._adjust_later()
        return self._answer()

    def refused(self, sandbox: Sandbox, container: Container, refusal: Refusal) -> None:
        self.asked.append(("refused", sandbox.id, container.name, refusal.reason))

    async def _adjust_later(self) -> Answer | Refusal:
        await self._wait("adjusted")
        return self._answer()

    def _answer(self) -> Answer | Refusal:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def sandbox_created(self, sandbox: Sandbox) -> Awaitable[None] | None:
        self._note("created", sandbox)
        return self._wait("prepared") if self.prepares else None

    def compare_soon(self) -> None:
        self.asked.append(("compare",))

    def stopping(self, sandbox: Sandbox) -> Awaitable[None] | None:
        self._note("stopping", sandbox)
        return self._wait("undone") if self.prepares else None

    def stopped(self, sandbox: Sandbox) -> None:
        self._note("stopped", sandbox)

    def sandbox_removed(self, sandbox: Sandbox) -> None:
        self._note("removed", sandbox)

    def _note(self, what: str, sandbox: Sandbox) -> None:
        self.asked.append((what, sandbox.id))
        self.sandbox = sandbox

    async def _wait(self, what: str) -> None:
        await self.may_end.wait()
        self.asked.append((what,))

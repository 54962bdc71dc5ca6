"""Track whether each registered hook server answers: by its last question, and by a probe every few seconds between questions.

A probe is an HTTP/2 greeting: a server that hangs still accepts connections, so only its own greeting counts. A question that
failed in the last minute outweighs it, because a server that greets and then answers garbage does not work.
"""

import asyncio
import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lading.liveness import HELLO, find_silence
from runtimeproxy.chain.endpoint import Failure
from runtimeproxy.chain.registrations import Registration

LOOK_S: Final = 5.0
REMEMBER_S: Final = 60.0


@dataclass(slots=True)
class _Seen:
    silence: str = "not probed yet"
    failure: str = ""  # why the last question failed; empty if it was answered
    failed_at: float = 0.0


class HookWatch:
    def __init__(self) -> None:
        self._endpoints: dict[str, Path] = {}  # socket path by name of the registration
        self._seen: dict[str, _Seen] = {}
        self._changed = asyncio.Event()

    def use(self, registrations: tuple[Registration, ...]) -> None:
        self._endpoints = {r.name: Path(r.endpoint) for r in registrations}
        self._seen = {name: self._seen.get(name, _Seen()) for name in self._endpoints}
        self._changed.set()

    def answered(self, name: str, failure: Failure | None) -> None:
        if seen := self._seen.get(name):
            seen.failure = failure.message if failure else ""
            seen.failed_at = asyncio.get_running_loop().time()
            if not failure:
                seen.silence = ""

    def silences(self) -> dict[str, str]:
        """Return why each server does not answer, by name; the text is empty for a server that answers."""
        since = asyncio.get_running_loop().time() - REMEMBER_S
        return {name: seen.silence or (seen.failure if seen.failed_at > since else "") for name, seen in self._seen.items()}

    async def keep_looking(self) -> None:
        """Probe all servers every LOOK_S seconds, and at once when registrations change. Never returns."""
        while True:
            self._changed.clear()
            await asyncio.gather(*(self._look(name, path) for name, path in self._endpoints.items()))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):  # wait_for loses a cancellation that comes with the event (bpo-37658)
                    await self._changed.wait()

    async def _look(self, name: str, path: Path) -> None:
        silence = await find_silence(path, hello=HELLO)
        if seen := self._seen.get(name):
            seen.silence = silence

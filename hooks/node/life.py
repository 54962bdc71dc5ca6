"""The life of a sandbox as the node notes it: which event makes which note of a pod, and when a note is forgotten.

The runtime's lists are requested at one moment and compared at a later one. The notes say what happened since, so that the
comparison neither releases what was granted meanwhile nor keeps what has stopped. Times are on `time.monotonic()`.

| event | the proxy reported, or the node did | note |
|---|---|---|
| CALLED | CreateContainer | IN_USE |
| PREPARING | work outside the container began | IN_USE until PREPARED |
| PREPARED | that work ended | IN_USE |
| STOP_CALLED | StopPodSandbox is about to go to the runtime | STOPPING |
| STOPPED | the runtime stopped, or removed, the sandbox | STOPPED, no longer STOPPING |
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum, auto
from typing import Final, NamedTuple

from lading.vocabulary import PodUid

# A stop that is under way for so long has no caller any more: kubelet gives up after two minutes, and asks again.
STOPPING_S: Final = 150.0


class LifeEvent(StrEnum):
    CALLED = auto()
    PREPARING = auto()
    PREPARED = auto()
    STOP_CALLED = auto()
    STOPPED = auto()


class Note(StrEnum):
    IN_USE = auto()  # no comparison that began before takes anything from the pod
    STOPPING = auto()
    STOPPED = auto()  # what its containers held is free once they have exited


class _Step(NamedTuple):
    note: Note
    clears: Note | None = None
    until: float = 0.0  # added to the time of the event


_STEPS: Final[Mapping[LifeEvent, _Step]] = {
    LifeEvent.CALLED: _Step(Note.IN_USE),
    LifeEvent.PREPARING: _Step(Note.IN_USE, until=math.inf),
    LifeEvent.PREPARED: _Step(Note.IN_USE),
    LifeEvent.STOP_CALLED: _Step(Note.STOPPING),
    LifeEvent.STOPPED: _Step(Note.STOPPED, clears=Note.STOPPING),
}


@dataclass(slots=True)
class Life:
    """The notes of a node's pods."""

    _notes: dict[Note, dict[PodUid, float]] = field(default_factory=lambda: {note: {} for note in Note})

    def happened(self, event: LifeEvent, pod: PodUid, now: float) -> None:
        step = _STEPS[event]
        self._notes[step.note][pod] = now + step.until
        if step.clears is not None:
            self._notes[step.clears].pop(pod, None)

    def in_use_since(self, began: float) -> set[PodUid]:
        return {pod for pod, at in self._notes[Note.IN_USE].items() if at >= began}

    def stopping(self, now: float) -> set[PodUid]:
        return {pod for pod, at in self._notes[Note.STOPPING].items() if at >= now - STOPPING_S}

    @property
    def stopped(self) -> frozenset[PodUid]:
        return frozenset(self._notes[Note.STOPPED])

    def stopped_at(self, pod: PodUid) -> float | None:
        return self._notes[Note.STOPPED].get(pod)

    def compared(self, began: float, now: float, *, holders: Collection[PodUid]) -> None:
        """Forget what the lists of a comparison that began then contain. `holders`: pods without a ready sandbox that still
        hold something: they have not exited."""
        stopped, stopping = self._notes[Note.STOPPED], self.stopping(now)
        self._notes = {
            Note.IN_USE: {pod: at for pod, at in self._notes[Note.IN_USE].items() if at >= began},
            Note.STOPPING: {pod: at for pod, at in self._notes[Note.STOPPING].items() if pod in stopping},
            Note.STOPPED: {pod: at for pod, at in stopped.items() if at >= began or pod in holders},
        }

"""Keep notes about pods whose sandboxes are used or stopped: which event makes which note, and when a note is deleted.

The runtime's lists are requested at one moment and compared with the ledger at a later one. The notes record the events in
between, so that the comparison neither releases a new grant nor keeps one of a stopped pod. Times are on `time.monotonic()`.

| event | the proxy reported, or the node did | note |
|---|---|---|
| CALLED | CreateContainer | IN_USE |
| PREPARING | work outside the container began | IN_USE until PREPARED |
| PREPARED | that work ended | IN_USE |
| STOP_CALLED | StopPodSandbox is about to go to the runtime | STOPPING |
| STOPPED | the runtime stopped, or removed, the sandbox | STOPPED, no longer STOPPING |

Tests: tests/unit/hooks/node/test_node.py
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum, auto
from typing import Final, NamedTuple

from lading.vocabulary import PodUid

# A stop in progress has no caller any more after this many seconds: kubelet gives up after two minutes, and calls again.
STOPPING_S: Final = 150.0


class LifeEvent(StrEnum):
    CALLED = auto()
    PREPARING = auto()
    PREPARED = auto()
    STOP_CALLED = auto()
    STOPPED = auto()


class Note(StrEnum):
    IN_USE = auto()  # a comparison that began earlier releases no grant of the pod
    STOPPING = auto()
    STOPPED = auto()  # the pod's devices are free once its containers have exited


class _Step(NamedTuple):
    note: Note
    clears: Note | None = None
    until: float = 0.0  # seconds added to the event's time


_STEPS: Final[Mapping[LifeEvent, _Step]] = {
    LifeEvent.CALLED: _Step(Note.IN_USE),
    LifeEvent.PREPARING: _Step(Note.IN_USE, until=math.inf),
    LifeEvent.PREPARED: _Step(Note.IN_USE),
    LifeEvent.STOP_CALLED: _Step(Note.STOPPING),
    LifeEvent.STOPPED: _Step(Note.STOPPED, clears=Note.STOPPING),
}


@dataclass(slots=True)
class Life:
    """Hold the notes about a node's pods."""

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
        """Delete old notes after a comparison whose lists were requested at `began`: the lists contain the earlier events.
        STOPPING notes last for STOPPING_S. `holders`: pods without a ready sandbox that still hold devices, and so keep their
        STOPPED note."""
        stopped, stopping = self._notes[Note.STOPPED], self.stopping(now)
        self._notes = {
            Note.IN_USE: {pod: at for pod, at in self._notes[Note.IN_USE].items() if at >= began},
            Note.STOPPING: {pod: at for pod, at in self._notes[Note.STOPPING].items() if pod in stopping},
            Note.STOPPED: {pod: at for pod, at in stopped.items() if at >= began or pod in holders},
        }

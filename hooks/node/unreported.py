"""Decide which pods have ended without a report: the daemon did not run, or was killed when it was called.

The input is the runtime's lists, one comparison after the other; the result is the pods that count as stopped. A single list is
not believed: it may be older than a call that was answered, and a runtime that lost its state lists no sandbox.

| what the lists show | when it is believed |
|---|---|
| sandboxes, but for the pod no ready sandbox and no live container | in two comparisons in succession after the start |
| no sandbox and no container at all | when all comparisons of `EMPTY_S` have shown it |

Tests: tests/unit/hooks/node/test_node.py
"""

import contextlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hooks.ledger.reconcile import find_over
from hooks.model.grant import Grant
from hooks.model.lists import Lists
from lading.errors import HostError
from lading.files import replace_file
from lading.vocabulary import PodUid

# Empty lists are believed after this many seconds. A runtime reads its state from disk before it answers, and kubelet starts a
# booting node's pods within a minute.
EMPTY_S: Final = 60.0
AGAIN_S: Final = 2.0  # seconds between the comparisons after a start; calls from before the start are over by then
_FILE: Final = "no-sandboxes"  # file beside the ledger, for `lading-hooks ledger`: Unix time when empty lists are believed


@dataclass(slots=True)
class UnreportedEnds:
    """Keep the results of one daemon's comparisons. `folder` is the ledger's folder."""

    folder: Path
    _over: frozenset[PodUid] | None = None  # ended pods in the comparison before; None before the first
    _started: bool = False  # True after two comparisons that agree, after the start
    _empty_since: float | None = None  # seconds, on the clock that never goes back

    def find(
        self, grants: Collection[Grant], holders: Collection[PodUid], lists: Lists, *, now: float, unix: int
    ) -> frozenset[PodUid]:
        """Return the pods that count as stopped after this comparison. `holders`: pods that hold anything; `now`: seconds on
        the clock that never goes back; `unix`: Unix time."""
        if lists.sandboxes or not holders:
            self._note_empty(None, unix)
            return self._find_over(grants, lists)
        if lists.containers:  # containers without sandboxes: the lists contradict themselves
            self._note_empty(None, unix)
        elif self._empty_since is None:
            self._note_empty(now, unix)
        elif now - self._empty_since >= EMPTY_S:
            return frozenset(holders)
        return frozenset()

    def _find_over(self, grants: Collection[Grant], lists: Lists) -> frozenset[PodUid]:
        if self._started:
            return frozenset()
        before, self._over = self._over, frozenset(grant.pod for grant in find_over(grants, lists))
        self._started = before == self._over
        return self._over & before if before is not None else frozenset()

    def wait_s(self, now: float) -> float | None:
        """Return the seconds until the next comparison is needed; None if none is."""
        if self._empty_since is not None:
            return max(AGAIN_S, self._empty_since + EMPTY_S - now)
        return None if self._started else AGAIN_S

    def _note_empty(self, since: float | None, unix: int) -> None:
        if since is None and self._empty_since is None and self._over is not None:
            return
        self._empty_since = since
        path = self.folder / _FILE
        with contextlib.suppress(HostError, OSError):  # the file is only shown to people
            if since is None:
                path.unlink(missing_ok=True)
            else:
                replace_file(path, b"%d\n" % (unix + EMPTY_S), mode=0o600)


def read_empty_until(folder: Path) -> int | None:
    """Return the Unix time when a daemon believes that no pod is left; None if it is not waiting for that time."""
    try:
        return int((folder / _FILE).read_bytes()[:20])
    except (OSError, ValueError):
        return None

"""Run the guard: a plugin in a separate process, called after lading-hooks, which refuses containers without a grant (`guard`).

A container that was created without a guard is refused when the runtime starts it. The guard decides from its configuration and
the call alone: no ledger, no devices, no network. While it is connected to the runtime, the guard holds a lock, by which
lading-hooks detects that the node is guarded. The kernel frees the lock when the process ends.
"""

import fcntl
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from google.protobuf.message import Message

from hooks.frontends.nri.conversation import NriCallError
from hooks.frontends.nri.guard import GuardRules, check_container, hide_cards
from hooks.frontends.nri.messages import Runtime, read_container, read_sandbox
from hooks.frontends.nri.plugin import Handler, Request
from lading.errors import HostError
from lading.refusals import render_refusal
from protos.nri.v1alpha1 import nri_pb2 as nri

NAME: Final = "ladingguard"
INDEX: Final = "99"


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardPlugin:
    rules: GuardRules
    name: str = NAME
    index: str = INDEX

    def handlers(self, runtime: Runtime) -> Mapping[nri.Event, Handler]:
        return {nri.CREATE_CONTAINER: self._create, nri.START_CONTAINER: self._start}

    def synchronized(self, pods: Sequence[nri.PodSandbox]) -> None:
        """Do nothing: lading-hooks compares the pods that run already."""

    def _create(self, request: Request) -> Message:
        self._check(request)
        response = nri.CreateContainerResponse()
        for env in hide_cards(read_sandbox(request.pod), read_container(request.container), self.rules):
            response.adjust.env.add(key=env.name, value=env.value)
        return response

    def _start(self, request: Request) -> Message:
        self._check(request)
        return nri.Empty()

    def _check(self, request: Request) -> None:
        refusal = check_container(read_sandbox(request.pod), request.container.annotations, self.rules)
        if refusal is not None:
            raise NriCallError(*render_refusal(refusal.reason, refusal.message))


class GuardLock:
    """Hold the lock file of guards: connected guards share the lock, and lading-hooks tries to take it."""

    def __init__(self, path: Path) -> None:
        """Open the lock file, or create it. Raise HostError."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as e:
            raise HostError(f"cannot open {path}: {e.strerror}") from e

    def show(self, guarding: bool) -> None:
        """Show whether this process guards the node."""
        fcntl.flock(self._fd, fcntl.LOCK_SH if guarding else fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._fd)


def find_guard(path: Path) -> str:
    """Return an error if no guard is connected; empty if one is. `path`: the guards' lock file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return _NONE
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return ""
    finally:
        os.close(fd)
    return _NONE


_NONE: Final = (
    "no guard is connected to the runtime: if lading-hooks dies while it is asked, a container starts without devices"
)

"""The launched guard as a process with a socket, as the runtime starts it; and what the Python guard says to the same bytes."""

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from hooks.forms.annotations import prefixes
from hooks.frontends.nri.conversation import NriCall, NriCallError, NriConversation, Reply
from hooks.frontends.nri.guard import GuardRules
from hooks.frontends.nri.guard_plugin import GuardPlugin
from hooks.frontends.nri.mux import RUNTIME, MalformedError
from hooks.frontends.nri.plugin import PLUGIN_SERVICE, RUNTIME_SERVICE, NriService
from lading.http2.messages import GrpcStatus
from lading.log import Log

WAIT_S = 20.0
UNREADABLE = "the message is no request"
SANITIZED = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


class Said(NamedTuple):
    """An answer."""

    stream: int
    payload: bytes = b""
    status: int = 0
    words: str = ""

    @property
    def unreadable(self) -> bool:
        return self.words.startswith(UNREADABLE)


def said_in(reply: Reply) -> Said:
    return Said(reply.stream, reply.payload) if reply.error is None else _refused(reply.stream, reply.error)


def _refused(stream: int, error: NriCallError) -> Said:
    """Each guard has its own words for a method that it does not know."""
    return Said(stream, status=error.status, words="" if error.status == GrpcStatus.UNIMPLEMENTED else error.message)


@contextmanager
def started(program: Path) -> Iterator[tuple[socket.socket, "subprocess.Popen[bytes]"]]:
    """The runtime's end of the socket, and the process, which ends with it."""
    ours, its = socket.socketpair()
    ours.settimeout(WAIT_S)
    with ours:
        with its:
            env = {"NRI_PLUGIN_NAME": "ladingguard", "NRI_PLUGIN_IDX": "99", "NRI_PLUGIN_SOCKET": str(its.fileno())}
            env["ASAN_OPTIONS"] = "detect_leaks=0"  # it allocates nothing; looking takes long
            process = subprocess.Popen([program], env=env, pass_fds=[its.fileno()], stderr=subprocess.PIPE)
        try:
            yield ours, process
        finally:
            process.kill()
            process.communicate()


def answers_of(program: Path, data: bytes) -> tuple[list[Said], int, str]:
    """Return the guard's answers to these bytes of the runtime, its exit status once the socket ends, and its stderr."""
    with started(program) as (ours, process):
        ours.sendall(data)
        ours.shutdown(socket.SHUT_WR)
        received = b""
        while some := ours.recv(1 << 16):
            received += some
        _, words = process.communicate(timeout=WAIT_S)
        return read(received), process.returncode, words.decode()


def read(received: bytes) -> list[Said]:
    """Answers in what it sent, after its registration."""
    runtime = NriConversation(answers_on=RUNTIME)
    first, *rest = runtime.receive(received)
    assert isinstance(first, NriCall)
    assert (first.service, first.method) == (RUNTIME_SERVICE, "RegisterPlugin")
    return [said_in(one) for one in rest if isinstance(one, Reply)]


class PythonGuard:
    """Answers of the Python guard, that hides nothing. It is configured already, as a runtime does it first: a damaged stream
    may lack that."""

    def __init__(self, log: Log) -> None:
        self._service = NriService(GuardPlugin(rules=GuardRules(prefixes=prefixes())), log)
        self._service.answer(NriCall(stream=1, service=PLUGIN_SERVICE, method="Configure", payload=b""))

    def answers(self, data: bytes) -> list[Said]:
        conversation = NriConversation()
        found: list[Said] = []
        try:
            for one in conversation.receive(data):
                if isinstance(one, NriCall):
                    found.append(self.answer(one))
                elif one.error is not None:
                    break
        except MalformedError:
            pass
        return found

    def answer(self, call: NriCall) -> Said:
        try:
            payload = self._service.answer(call)
        except NriCallError as e:
            return _refused(call.stream, e)
        assert isinstance(payload, bytes)
        return Said(call.stream, payload)


def sanitizers_work(folder: Path) -> bool:
    """Return whether the machine's compiler has the sanitizers of addresses and of undefined behaviour."""
    source = folder / "trial.c"
    source.write_text("int main(void) { return 0; }\n")
    command = ["cc", "-fsanitize=address,undefined", str(source), "-o", str(folder / "trial")]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        return False
    return subprocess.run([folder / "trial"], capture_output=True, check=False, env=dict(os.environ)).returncode == 0

"""Run the compiled guard as a process with a socket, as the runtime starts it, and compute the expected answers in Python."""

import os
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from google.protobuf.message import Message

from hooks.frontends.nri.conversation import NriCall, NriCallError, NriConversation, Reply
from hooks.frontends.nri.guard.launched import INDEX, NAME
from hooks.frontends.nri.guard.rule import check_container
from hooks.frontends.nri.messages import Runtime, read_container
from hooks.frontends.nri.plugin import PLUGIN_SERVICE, RUNTIME_SERVICE, Handler, NriService, Request
from hooks.frontends.nri.sieve import MalformedError
from hooks.frontends.nri.wire import RUNTIME
from lading.http2.messages import GrpcStatus
from lading.log import Log
from lading.reasons import render_refusal
from lading.vocabulary import GRANT
from protos.nri.v1alpha1 import nri_pb2 as nri

WAIT_S = 20.0
UNREADABLE = "the message is no request"
VISIBLE: Final = "VISIBLE"
HIDDEN: Final = {VISIBLE: "void", "OTHER_CARDS": "none"}
EXEMPT: Final = ("kube-system", "monitoring")
ARGUMENTS: Final = ("--hide", "VISIBLE=void", "--hide", "OTHER_CARDS=none", "--exempt", ",".join(EXEMPT))
SANITIZED = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


class Said(NamedTuple):
    """Hold one answer of the guard to a call of the runtime."""

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
    """Return the answer for an error. The text for an unknown method is left out, because tests must not compare it."""
    return Said(stream, status=error.status, words="" if error.status == GrpcStatus.UNIMPLEMENTED else error.message)


@contextmanager
def started(program: Path) -> Iterator[tuple[socket.socket, "subprocess.Popen[bytes]"]]:
    """Start the guard. Yield the runtime's end of the socket, and the guard's process, which is killed afterwards."""
    ours, its = socket.socketpair()
    ours.settimeout(WAIT_S)
    with ours:
        with its:
            env = {"NRI_PLUGIN_NAME": NAME, "NRI_PLUGIN_IDX": INDEX, "NRI_PLUGIN_SOCKET": str(its.fileno())}
            env["ASAN_OPTIONS"] = "detect_leaks=0"  # it allocates nothing; looking takes long
            process = subprocess.Popen([program, *ARGUMENTS], env=env, pass_fds=[its.fileno()], stderr=subprocess.PIPE)
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
        _, text = process.communicate(timeout=WAIT_S)
        return read(received), process.returncode, text.decode()


def read(received: bytes) -> list[Said]:
    """Return the answers in the bytes that the guard sent, without the guard's registration."""
    runtime = NriConversation(answers_on=RUNTIME)
    first, *rest = runtime.receive(received)
    assert isinstance(first, NriCall)
    assert (first.service, first.method) == (RUNTIME_SERVICE, "RegisterPlugin")
    return [said_in(one) for one in rest if isinstance(one, Reply)]


class ExpectedPlugin:
    """Implement the guard's rule, and the hiding of cards, in Python."""

    name: Final = NAME
    index: Final = INDEX

    def handlers(self, runtime: Runtime) -> Mapping[nri.Event, Handler]:
        return {nri.CREATE_CONTAINER: self._create, nri.START_CONTAINER: self._start}

    def synchronized(self, pods: Sequence[nri.PodSandbox]) -> None:
        pass

    def _create(self, request: Request) -> Message:
        self._start(request)
        response = nri.CreateContainerResponse()
        container = read_container(request.container)
        if GRANT not in container.annotations and request.pod.namespace not in EXEMPT:
            shown = {env.name for env in container.env if HIDDEN.get(env.name, env.value) != env.value}
            for name in (name for name in HIDDEN if name in shown):
                response.adjust.env.add(key=name, value=HIDDEN[name])
        return response

    def _start(self, request: Request) -> Message:
        refusal = check_container(request.pod.annotations, request.container.annotations)
        if refusal is not None:
            raise NriCallError(*render_refusal(refusal.reason, refusal.message))
        return nri.Empty()


class Expected:
    """Compute the expected answers in Python. The plugin is already configured, because a damaged stream may lack the runtime's
    first call, Configure."""

    def __init__(self, log: Log) -> None:
        self._service = NriService(ExpectedPlugin(), log)
        self._service.answer(NriCall(stream=1, service=PLUGIN_SERVICE, method="Configure", payload=b""))

    def answers(self, data: bytes) -> list[Said]:
        conversation = NriConversation()
        saids: list[Said] = []
        try:
            for one in conversation.receive(data):
                if isinstance(one, NriCall):
                    saids.append(self.answer(one))
                elif one.error is not None:
                    break
        except MalformedError:
            pass
        return saids

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

"""Compare the compiled guard's answers with those expected in Python, also for damaged bytes."""

import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hooks.frontends.nri.conversation import NriCall, NriCallError, NriConversation, Reply
from hooks.frontends.nri.guard.launched import IGNORED, PROGRAM
from hooks.frontends.nri.plugin import PLUGIN_SERVICE
from hooks.frontends.nri.sieve import MAX_KEPT
from hooks.frontends.nri.wire import MAX_RECEIVED, PLUGIN, RUNTIME, render_pieces
from lading import __version__
from lading.http2.messages import GrpcStatus
from lading.log import Log
from lading.vocabulary import ATTACHMENTS, GRANT
from protos.nri.v1alpha1 import nri_pb2 as nri
from simnode.patience import wait_until
from tests.docs import ROOT
from tests.fakes.guard import EXEMPT, HIDDEN, Expected, Said, answers_of, said_in, started

GOLDEN: Final = sorted((ROOT / "tests/golden/nri").glob("*.bin"))
GUARDED: Final = {"lading.dev/gpus": "0"}
_METHODS: Final = ("CreateContainer", "StartContainer", "StateChange", "Synchronize")
_SLOW: Final = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])

KEYS = st.sampled_from([*GUARDED, GRANT, ATTACHMENTS, "lading.dev", "lading.dev/", "lading.dev/grant.x", "xlading.dev/gpus"])
NAMESPACES = st.sampled_from([*EXEMPT, "default", ""]) | st.text(max_size=70)
ENTRIES = st.builds(
    "{}{}{}".format,
    st.sampled_from([*HIDDEN, "A"]),
    st.sampled_from(["=", "", "x="]),
    st.sampled_from(["void", "", "all", "none"]),
) | st.text(max_size=600)
ANNOTATIONS = st.dictionaries(KEYS | st.text(max_size=200), st.text(max_size=20), max_size=4)


class Asked:
    """Send calls to the guard, and compute the expected answers to the same calls."""

    def __init__(self, ours: socket.socket, log: Log) -> None:
        self._socket = ours
        self._runtime = NriConversation(answers_on=RUNTIME)
        self._expected = Expected(log)
        self._plugin = NriConversation()
        assert self.ask("Configure", nri.ConfigureRequest(runtime_version="2.1.9").SerializeToString())[0].status == 0

    def ask(self, method: str, payload: bytes, service: str = PLUGIN_SERVICE) -> tuple[Said, Said]:
        """Return the guard's answer and the expected answer."""
        _, data = self._runtime.call(service, method, payload)
        self._socket.sendall(data)
        return self._reply(), self._expected.answer(next(self._plugin.receive(data)))  # type: ignore[arg-type]

    def _reply(self) -> Said:
        while data := self._socket.recv(1 << 16):
            for one in self._runtime.receive(data):
                if isinstance(one, Reply):
                    return said_in(one)
        raise AssertionError("it ended")


@pytest.fixture
def asked(program: Path, log: Log) -> Iterator[Asked]:
    with started(program) as (ours, _):
        yield Asked(ours, log)


def request(
    pod: dict[str, str], container: dict[str, str], *, namespace: str = "n", env: Sequence[str] = ("A=b",)
) -> nri.ContainerRequest:
    return nri.ContainerRequest(
        pod=nri.PodSandbox(id="s", name="p", namespace=namespace, annotations=pod),
        container=nri.Container(id="c", name="main", env=env, annotations=container),
    )


def change(event: nri.Event, what: nri.ContainerRequest) -> nri.StateChangeEvent:
    return nri.StateChangeEvent(event=event, pod=what.pod, container=what.container)


@pytest.mark.parametrize(
    ("pod", "container", "reason"),
    [
        ({}, {}, ""),
        ({"other": "x"}, {}, ""),
        (GUARDED, {GRANT: ""}, ""),
        (GUARDED, {"lading.dev/grants": ""}, "ungranted"),
        (GUARDED, {}, "ungranted"),
        ({GRANT: ""}, {GRANT: ""}, "annotation-reserved"),
        ({**GUARDED, ATTACHMENTS: ""}, {GRANT: ""}, "annotation-reserved"),
    ],
)
def test_a_guarded_container_passes_only_with_an_answer(
    asked: Asked, pod: dict[str, str], container: dict[str, str], reason: str
) -> None:
    what = request(pod, container)
    for method, message in (
        ("CreateContainer", what),
        ("StartContainer", what),
        ("StateChange", change(nri.START_CONTAINER, what)),
    ):
        answer, expected = asked.ask(method, message.SerializeToString())
        assert answer == expected
        assert answer.words.split(": ")[1:2] == ([reason] if reason else [])


def test_it_subscribes_to_the_same_events_and_takes_a_list_in_parts(asked: Asked) -> None:
    configured, expected = asked.ask("Configure", b"")
    assert configured == expected
    for more in (True, False):
        part = nri.SynchronizeRequest(pods=[nri.PodSandbox(id="s")], more=more)
        answer, expected = asked.ask("Synchronize", part.SerializeToString())
        assert answer == expected
        assert nri.SynchronizeResponse.FromString(answer.payload).more is more


@pytest.mark.parametrize("service", [PLUGIN_SERVICE, "x"])
def test_a_method_that_it_does_not_know_is_unimplemented(asked: Asked, service: str) -> None:
    """Check the status, because after UNIMPLEMENTED the runtime sends the event by StateChange; a success would lose it."""
    answer, expected = asked.ask("NewEvent", b"", service)
    assert answer.status == expected.status == GrpcStatus.UNIMPLEMENTED


@pytest.mark.parametrize(
    ("env", "more", "hides"),
    [
        (["VISIBLE=all"], {}, {"VISIBLE": "void"}),
        (["A=b", "VISIBLE=all", "OTHER_CARDS=0,1", "VISIBLE=0"], {}, {"VISIBLE": "void", "OTHER_CARDS": "none"}),
        (["VISIBLE"], {}, {"VISIBLE": "void"}),
        (["VISIBLE=void" + "x" * 600], {}, {"VISIBLE": "void"}),
        (["VISIBLE=void", "OTHER_CARDS=none", "VISIBLE_NOT=all", "VISIBL=all"], {}, {}),
        (["VISIBLE=all"], {"container": {GRANT: ""}}, {}),
        (["VISIBLE=all"], {"namespace": EXEMPT[1]}, {}),
        (["VISIBLE=all"], {"namespace": f"{EXEMPT[0]},{EXEMPT[1]}"}, {"VISIBLE": "void"}),
        (["VISIBLE=all"], {"namespace": "monitor"}, {"VISIBLE": "void"}),
    ],
    ids=["one", "several", "no value", "long", "hidden already", "granted", "exempt", "a list", "a part of a name"],
)
def test_a_container_without_a_grant_sees_no_cards(
    asked: Asked, env: list[str], more: dict[str, Any], hides: dict[str, str]
) -> None:
    answer, expected = asked.ask(
        "CreateContainer", request(**{"pod": {}, "container": {}, "env": env, **more}).SerializeToString()
    )
    assert answer == expected
    result = nri.CreateContainerResponse.FromString(answer.payload).adjust
    assert {one.key: one.value for one in result.env} == hides
    assert asked.ask("StartContainer", request({}, {}, env=env).SerializeToString())[0].payload == b""


@_SLOW
@given(
    pod=ANNOTATIONS,
    container=ANNOTATIONS,
    method=st.sampled_from(["CreateContainer", "StartContainer"]),
    more=ANNOTATIONS,
    namespaces=st.tuples(NAMESPACES, NAMESPACES),
    env=st.lists(ENTRIES, max_size=4),
)
def test_every_request_is_decided_alike(
    asked: Asked,
    pod: dict[str, str],
    container: dict[str, str],
    method: str,
    more: dict[str, str],
    namespaces: tuple[str, str],
    env: list[str],
) -> None:
    """Check a request whose pod and container are each sent in two fields, which protobuf merges."""
    data = request(pod, container, namespace=namespaces[0], env=env).SerializeToString()
    data += request(more, {}, namespace=namespaces[1]).SerializeToString()
    answer, expected = asked.ask(method, data)
    assert answer == expected


@_SLOW
@given(
    method=st.sampled_from(_METHODS),
    what=st.builds(
        lambda pod, container: request(pod, container, env=["VISIBLE=all"]).SerializeToString(), ANNOTATIONS, ANNOTATIONS
    )
    | st.binary(),
    at=st.integers(0, 300),
    cut=st.integers(0, 300),
    put=st.binary(max_size=8),
)
def test_a_damaged_request_is_decided_alike_or_refused(
    asked: Asked, method: str, what: bytes, at: int, cut: int, put: bytes
) -> None:
    """Check that both decide alike, or at least one finds the message unreadable. Python reads more fields, and finds more
    errors; the guard does not read protobuf groups."""
    answer, expected = asked.ask(method, what[:at] + put + what[at + cut :])
    assert answer.unreadable or expected.unreadable or answer == expected


def check_stream(program: Path, log: Log, data: bytes) -> list[Said]:
    """Check that the answers are those that Python gives before it finds that the stream is broken, and that the guard ends."""
    answers = Expected(log).answers(data)
    result, status, text = answers_of(program, data)
    assert status in {0, 1}, text
    assert len(result) >= len(answers)
    for answer, expected in zip(result, answers, strict=False):
        assert answer.unreadable or expected.unreadable or answer == expected
    return result


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_what_containerd_sent_is_answered_as_expected(path: Path, program: Path, log: Log) -> None:
    result = check_stream(program, log, path.read_bytes())
    assert [one for one in result if one.status] == [one for one in Expected(log).answers(path.read_bytes()) if one.status]
    assert any("ungranted" in one.words for one in result)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
@_SLOW
@given(cut=st.integers(0, 9000))
def test_a_stream_that_ends_anywhere_is_answered_so_far(path: Path, program: Path, log: Log, cut: int) -> None:
    data = path.read_bytes()[:cut]
    expected = Expected(log).answers(data)
    result, status, _ = answers_of(program, data)
    assert status == 0
    assert result[: len(expected)] == expected


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
@_SLOW
@given(at=st.integers(0, 9000), cut=st.integers(0, 12), put=st.binary(max_size=12))
def test_a_damaged_stream_does_not_make_it_fail(path: Path, program: Path, log: Log, at: int, cut: int, put: bytes) -> None:
    data = path.read_bytes()
    check_stream(program, log, data[:at] + put + data[at + cut :])


@_SLOW
@given(st.binary(min_size=1, max_size=200))
def test_nor_do_random_bytes(program: Path, log: Log, data: bytes) -> None:
    check_stream(program, log, data)


def test_bytes_one_by_one_are_read_as_at_once(asked: Asked, program: Path, log: Log) -> None:
    data = GOLDEN[0].read_bytes()
    whole, _, _ = answers_of(program, data)
    with started(program) as (ours, process):
        for number in range(len(data)):
            ours.sendall(data[number : number + 1])
        ours.shutdown(socket.SHUT_WR)
        received = b""
        while some := ours.recv(1 << 16):
            received += some
        assert process.wait(20) == 0
    runtime = NriConversation(answers_on=RUNTIME)
    assert [said_in(one) for one in runtime.receive(received) if isinstance(one, Reply)] == whole


def test_a_message_of_the_largest_size_is_announced_and_a_larger_one_ends_it(program: Path) -> None:
    def begun(size: int) -> int:
        return answers_of(program, render_pieces(PLUGIN, size.to_bytes(4, "big") + b"\0\0\0\1\1\0" + b"\x0a"))[1]

    assert (begun(MAX_RECEIVED), begun(MAX_RECEIVED + 1)) == (0, 1)


def large_request() -> bytes:
    return request(GUARDED, {"x": "y" * (8 << 20)}).SerializeToString()


def test_a_large_request_is_decided_alike(asked: Asked) -> None:
    answer, expected = asked.ask("CreateContainer", large_request())
    assert answer == expected
    assert "ungranted" in answer.words


def test_a_request_is_decided_that_python_cannot_hold(asked: Asked) -> None:
    """Check a request over Python's size limit. The guard keeps only whether certain annotations are present."""
    request = nri.ContainerRequest(pod=nri.PodSandbox(annotations={"x": "y" * MAX_KEPT})).SerializeToString()
    answer, expected = asked.ask("CreateContainer", request)
    assert (answer.status, expected.status) == (0, GrpcStatus.RESOURCE_EXHAUSTED)
    answer, expected = asked.ask("CreateContainer", large_request())
    assert answer == expected


def test_a_list_of_large_pods_in_one_message_is_taken(asked: Asked) -> None:
    large = {"example.com/large": "x" * (250 << 10)}
    pods = [nri.PodSandbox(id=str(number), annotations=large) for number in range(250)]
    containers = [nri.Container(id=str(number), annotations=large) for number in range(10)]
    answer, expected = asked.ask("Synchronize", nri.SynchronizeRequest(pods=pods, containers=containers).SerializeToString())
    assert answer == expected
    assert answer.status == 0


PODS = st.builds(lambda name, keys: nri.PodSandbox(id=name, annotations=keys), st.text(max_size=200), ANNOTATIONS)
CONTAINERS = st.builds(lambda env, keys: nri.Container(env=[env], annotations=keys), st.text(max_size=200), ANNOTATIONS)


@_SLOW
@given(
    pods=st.lists(PODS, max_size=4),
    containers=st.lists(CONTAINERS, max_size=4),
    more=st.booleans(),
    at=st.none() | st.integers(0, 2000),
    put=st.binary(max_size=8),
)
def test_every_list_is_answered_alike_whole_or_damaged(
    asked: Asked, pods: list[nri.PodSandbox], containers: list[nri.Container], more: bool, at: int | None, put: bytes
) -> None:
    data = nri.SynchronizeRequest(pods=pods, containers=containers, more=more).SerializeToString()
    if at is not None:
        answer, expected = asked.ask("Synchronize", data[:at] + put + data[at + 4 :])
        assert answer.unreadable or expected.unreadable or answer == expected
    answer, expected = asked.ask("Synchronize", data)
    assert answer == expected


def test_it_says_its_version_and_why_it_does_not_start(program: Path) -> None:
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False, env={})
    assert (done.returncode, done.stdout) == (0, f"{__version__}\n")
    done = subprocess.run([program], capture_output=True, text=True, check=False, env={})
    assert done.returncode == 2
    assert "NRI_PLUGIN_SOCKET" in done.stderr


def test_it_ends_if_the_runtime_refuses_it(program: Path) -> None:
    runtime = NriConversation(answers_on=RUNTIME)
    data = runtime.refuse(NriCall(stream=1, service="", method="", payload=b""), NriCallError(2, "not today"))
    _, status, text = answers_of(program, data)
    assert status == 1
    assert "not today" in text


def test_a_launched_guard_that_answered_late_to_the_list_shows_that_it_is_ignored_until_it_is_called(program: Path) -> None:
    runtime = NriConversation(answers_on=RUNTIME)

    def ask(method: str, timeout_s: float = 0.0, pause_s: float = 0.0) -> None:
        request = nri.SynchronizeRequest(pods=[nri.PodSandbox(id="s")]) if method == "Synchronize" else nri.ConfigureRequest()
        _, data = runtime.call(PLUGIN_SERVICE, method, request.SerializeToString(), timeout_s=timeout_s)
        ours.sendall(data[:20])
        time.sleep(pause_s)  # the runtime sends its list so slowly
        ours.sendall(data[20:])
        while not any(isinstance(one, Reply) for one in runtime.receive(ours.recv(1 << 16))):
            pass

    def named(expected: str) -> None:
        comm = Path(f"/proc/{process.pid}/comm")
        wait_until(
            lambda: comm.read_text().strip() == expected, f"the guard has the name {expected}"
        )  # it is set after the answer

    with started(program) as (ours, process):
        ask("Synchronize", timeout_s=20.0)
        named(program.name)
        ask("Synchronize", timeout_s=0.1, pause_s=0.1)
        named(IGNORED)
        ask("Configure")
        named(PROGRAM)
        assert process.poll() is None

import asyncio
import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from doctor.processes import Process, find_processes, read_process
from doctor.read import read_listener, read_socket
from doctor.sockets import SocketReading, decide_socket
from lading.checks.model import Verdict
from lading.errors import HostError
from lading.sockets import Access
from tests.unit.doctor.verdicts import only, states

WELL = SocketReading(
    path=Path("/run/lading/x.sock"),
    daemon="lading-x",
    wanted=Access(0, 0, 0o600),
    access=Access(0, 0, 0o600),
    is_socket=True,
    folder=Access(0, 0, 0o700),
    holder=Process(pid=77, argv=("/opt/lading/bin/python3", "/opt/lading/bin/lading-x")),
)


@pytest.mark.parametrize(
    ("changes", "state", "word"),
    [
        ({}, Verdict.OK, "77"),
        ({"holder": Process(pid=1, argv=("/sbin/init",))}, Verdict.OK, "init"),  # systemd's
        ({"access": None}, Verdict.FAILED, "not there"),
        ({"is_socket": False}, Verdict.FAILED, "not a socket"),
        ({"holder": None}, Verdict.FAILED, "no process listens"),
        ({"silence": "no answer"}, Verdict.FAILED, "no answer"),
        ({"holder": Process(pid=77, argv=("/usr/bin/nc", "-lU"))}, Verdict.WARNING, "nc"),
    ],
)
def test_one_finding(changes: dict[str, object], state: Verdict, word: str) -> None:
    verdict = only(decide_socket(replace(WELL, **changes)))  # type: ignore[arg-type]
    assert verdict.verdict is state
    assert word in verdict.what


@pytest.mark.parametrize(
    ("changes", "state", "mend"),
    [
        ({"access": Access(1000, 0, 0o600)}, Verdict.FAILED, "chown 0:0"),
        ({"access": Access(0, 0, 0o666)}, Verdict.FAILED, "chmod 0600"),
        ({"access": Access(0, 7, 0o600)}, Verdict.WARNING, "chown 0:0"),
        ({"access": Access(0, 0, 0o660)}, Verdict.WARNING, "chmod 0600"),
        ({"folder": Access(0, 0, 0o777)}, Verdict.FAILED, "chmod go-w /run/lading"),
    ],
)
def test_what_someone_else_could_do(changes: dict[str, object], state: Verdict, mend: str) -> None:
    trust, answered = decide_socket(replace(WELL, **changes))  # type: ignore[arg-type]
    assert (trust.verdict, answered.verdict) == (state, Verdict.OK)
    assert mend in trust.mend


def test_a_sticky_folder_lets_no_one_replace_it() -> None:
    assert states(decide_socket(replace(WELL, folder=Access(0, 0, 0o1777)))) == [Verdict.OK]


# ---- read


def reading(path: Path) -> SocketReading:
    return asyncio.run(read_socket(path, daemon="d", wanted=Access(0, 0, 0o600)))


def test_what_is_at_a_path(tmp_path: Path) -> None:
    assert reading(tmp_path / "none").access is None
    (tmp_path / "file").touch()
    assert reading(tmp_path / "file").is_socket is False


async def test_who_listens_and_answers(tmp_path: Path) -> None:
    path = tmp_path / "s"

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    async with await asyncio.start_unix_server(greet, path):
        result = await read_socket(path, daemon="d", wanted=Access(0, 0, 0o600))
    assert result.holder == read_process(Path("/proc"), os.getpid())
    assert result.silence == ""
    assert read_listener(path) is None  # the socket's file is left, and no one listens there


def test_a_socket_with_a_full_backlog_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as full, socket.socket(socket.AF_UNIX) as first:
        full.bind(str(path))
        full.listen(0)
        first.connect(str(path))
        with pytest.raises(HostError):
            read_listener(path)


# ---- processes


def test_processes_by_what_they_were_started_as(tmp_path: Path) -> None:
    for pid, argv in ((7, b"/usr/bin/kubelet\0--v=2\0"), (8, b"sh\0-c\0kubelet\0"), (9, b"")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cmdline").write_bytes(argv)
    (tmp_path / "self").mkdir()
    assert find_processes(tmp_path, "kubelet") == (Process(pid=7, argv=("/usr/bin/kubelet", "--v=2")),)
    assert read_process(tmp_path, 99) == Process(pid=99)


def test_a_script_is_named_as_itself() -> None:
    script = Process(pid=5, argv=("/usr/bin/python3", "/opt/lading/bin/lading-hooks", "--config", "x"))
    assert str(script) == "lading-hooks (pid 5)"
    assert script.is_named("lading-hooks")
    assert not script.is_named("x")

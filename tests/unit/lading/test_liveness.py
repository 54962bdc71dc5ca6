import asyncio
import os
import socket
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from lading.liveness import HELLO, PROBE_TIMEOUT_S, find_own_silence, find_silence, keep_fed, notify, read_watchdog_s
from lading.log import Event, Level, Log, LogfmtSink
from tests.fakes.simulated_time import run_simulated


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="lading-") as folder:
        yield Path(folder) / "x.sock"


@pytest.fixture
def listener(path: Path) -> Iterator[socket.socket]:
    """Listen without accepting."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(1)
        yield listening


async def answering(path: Path, heard: list[bytes]) -> asyncio.Server:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(100))
        writer.write(b"!")
        writer.close()

    return await asyncio.start_unix_server(answer, path)


def test_who_answers_is_alive(path: Path) -> None:
    heard: list[bytes] = []

    async def ask() -> str:
        async with await answering(path, heard):
            return await find_silence(path, hello=HELLO)

    assert asyncio.run(ask()) == ""
    assert heard == [HELLO]


@pytest.mark.usefixtures("listener")
def test_a_listener_that_no_one_accepts_on_is_silent(path: Path) -> None:
    assert str(path) in run_simulated(find_silence(path))


@pytest.mark.parametrize("accepts", [True, False])
def test_a_full_accept_queue_is_waited_for(path: Path, listener: socket.socket, accepts: bool) -> None:
    """Check connect() with a full queue: it returns EAGAIN, which asyncio takes for a connection under way."""

    async def ask() -> str:
        asking = asyncio.create_task(find_silence(path))
        await asyncio.sleep(0.9 * PROBE_TIMEOUT_S)  # it has met the full queue, again and again
        for _ in range(len(waiting) + 1 if accepts else 0):
            connection, _ = await asyncio.get_running_loop().sock_accept(listener)
            with connection:
                connection.send(b"!")
        return await asking

    listener.setblocking(False)
    waiting: list[socket.socket] = []
    try:
        while not waiting or waiting[-1].connect_ex(str(path)) == 0:
            waiting.append(socket.socket(socket.AF_UNIX))
            waiting[-1].setblocking(False)
        waiting.pop().close()  # the one that was not let in
        silence = run_simulated(ask())
        assert (str(path) in silence) is not accepts
        assert (silence == "") is accepts
    finally:
        for one in waiting:
            one.close()


def test_who_closes_without_a_word_is_silent(path: Path) -> None:
    async def ask() -> str:
        async with await asyncio.start_unix_server(lambda _, writer: writer.close(), path):
            return await find_silence(path)

    assert str(path) in asyncio.run(ask())


def test_a_socket_file_that_is_deleted(path: Path) -> None:
    """Check that the missing file counts as the silence of another program: a restart would not create systemd's socket
    again."""
    assert str(path) in asyncio.run(find_silence(path))
    assert asyncio.run(find_own_silence(path)) == ""


@pytest.mark.usefixtures("listener")
def test_our_own_socket_unanswered_is_silence(path: Path) -> None:
    assert str(path) in run_simulated(find_own_silence(path))


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "own"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_how_long_systemd_waits(variables: dict[str, str], seconds: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WATCHDOG_USEC", "WATCHDOG_PID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, str(os.getpid()) if value == "own" else value)
    assert read_watchdog_s() == seconds


class Watched:
    """Represent a daemon with scripted answers, and systemd's end of the notification socket."""

    def __init__(self, path: Path, answers: list[str]) -> None:
        self.heard: list[bytes] = []
        self.events: list[Event] = []
        self._answers = answers
        self._systemd = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._systemd.bind(str(path))
        self._systemd.setblocking(False)

    def write(self, level: Level, event: Event, message: str, fields: dict[str, str]) -> None:
        self.events.append(event)

    async def find_silence(self) -> str:
        if not self._answers:
            raise asyncio.CancelledError
        return self._answers.pop(0)

    def run(self) -> None:
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(keep_fed(self.find_silence, Log(self)))
        with self._systemd:
            while True:
                try:
                    self.heard.append(self._systemd.recv(100))
                except BlockingIOError:
                    return


def test_the_watchdog_is_fed_only_while_there_is_an_answer(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "2000")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    monkeypatch.setenv("NOTIFY_SOCKET", str(path))
    watched = Watched(path, ["", "", "hangs", "hangs", ""])
    watched.run()
    assert watched.heard == [b"WATCHDOG=1"] * 3
    assert watched.events == [Event.PROBE_FAILED]  # once for one silence


def test_the_watchdog_of_a_slow_daemon_is_fed_in_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watchdog_s, notifications = 30.0, path.with_name("notify")
    monkeypatch.setenv("WATCHDOG_USEC", f"{watchdog_s * 1e6:.0f}")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    monkeypatch.setenv("NOTIFY_SOCKET", str(notifications))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(watchdog_s / 4)  # the probe's turn comes late, as each turn of the loop does
        writer.write(b"!")
        writer.close()

    async def watch(systemd: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        async with await asyncio.start_unix_server(answer, path):
            feeding = loop.create_task(keep_fed(partial(find_own_silence, path), Log(LogfmtSink())))
            for _ in range(5):
                async with asyncio.timeout(watchdog_s):
                    assert await loop.sock_recv(systemd, 100) == b"WATCHDOG=1"
            feeding.cancel()

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(notifications))
        systemd.setblocking(False)
        run_simulated(watch(systemd))


def test_without_a_watchdog_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WATCHDOG_USEC", raising=False)

    async def asked() -> str:
        raise AssertionError

    asyncio.run(keep_fed(asked, Log(LogfmtSink())))


@pytest.fixture
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """Yield the value of NOTIFY_SOCKET, and the socket of a service manager that listens there."""
    abstract = f"lading-test-{tmp_path.name}"
    text, address = (f"@{abstract}", f"\0{abstract}") if request.param == "abstract" else (str(tmp_path / "n"),) * 2
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as listening:
        listening.bind(address)
        yield text, listening


@pytest.mark.parametrize("manager", ["abstract", "path"], indirect=True)
def test_the_manager_is_reported(manager: tuple[str, socket.socket], monkeypatch: pytest.MonkeyPatch) -> None:
    text, listening = manager
    monkeypatch.setenv("NOTIFY_SOCKET", text)
    notify("READY=1")
    notify("STOPPING=1")
    assert [listening.recv(100), listening.recv(100)] == [b"READY=1", b"STOPPING=1"]


@pytest.mark.parametrize("said", ["", "/absent/notify", "@lading-test-nobody", "/" + "x" * 200])
def test_no_manager_is_no_failure(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", said)
    notify("READY=1")
    monkeypatch.delenv("NOTIFY_SOCKET")
    notify("READY=1")

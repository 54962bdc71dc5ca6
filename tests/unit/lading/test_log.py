import array
import contextlib
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lading.log import Event, JournalSink, Level, Log, LogfmtSink, printable, stderr_is_journal


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[JournalSink]:
    with contextlib.closing(JournalSink("lading-hooks", str(tmp_path / "journal"))) as sink:
        yield sink


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(tmp_path / "journal"))
        server.settimeout(5)
        yield server


def logfmt(**fields: object) -> str:
    """Return the line of a record with these fields."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as pipe:
        Log(LogfmtSink(writing)).info(Event.GRANT_CREATED, str(fields.pop("message", "")), **fields)
        os.close(writing)
        lines = pipe.read().splitlines(keepends=True)
    assert len(lines) == 1
    return lines[0].decode()


def parse_journal(record: bytes) -> dict[str, str]:
    """Parse the native protocol as journald does."""
    fields = {}
    while record:
        line, _, record = record.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            (size,) = struct.unpack("<Q", record[:8])
            value, record = record[8 : 8 + size], record[8 + size + 1 :]
        fields[name.decode()] = value.decode()
    return fields


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text_1", "plain text_1"),
        ("naïve 日本 ½ e\u0301", "naïve 日本 ½ e\u0301"),
        ("a\nb\r\tc\0", r"a\x0ab\x0d\x09c\x00"),
        ("\x1b[31mred\x7f\x9b", r"\x1b[31mred\x7f\x9b"),
        ("abc\u202edcb", r"abc\u202edcb"),
        ("a\u2028b\u2029\u200b\ufeff\u00a0", r"a\u2028b\u2029\u200b\ufeff\xa0"),
        (b"\xff".decode("utf-8", "surrogateescape"), r"\udcff"),
        ("tag \U000e0041", r"tag \U000e0041"),
        ("<img onerror=x>", "<img onerror=x>"),
    ],
)
def test_what_no_terminal_should_get_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_logfmt_line() -> None:
    line = logfmt(pod="default/a", device="GPU 0", empty="", none=None, count=3, message='say "hi"')
    assert line == 'level=info event=grant.created pod=default/a device="GPU 0" count=3 msg="say \\"hi\\""\n'


def test_a_value_cannot_forge_a_second_record_or_field() -> None:
    line = logfmt(pod='a level=error\nlevel=error event=x" y="z', message="\u2028\x85next")
    assert line.count("\n") == 1
    assert "\u2028" not in line
    assert line.split()[0] == "level=info"
    assert '\\" y=\\"z"' in line


def test_invalid_utf8_is_one_record() -> None:
    assert r"\udcfe" in logfmt(pod=b"\xfe".decode("utf-8", "surrogateescape"))


def test_level_says_what_is_written() -> None:
    written: list[Event] = []

    class Sink:
        def write(self, level: Level, event: Event, message: str, fields: dict[str, str]) -> None:
            written.append(event)

    log = Log(Sink(), Level.WARNING)
    log.debug(Event.CALL_FORWARDED)
    log.info(Event.GRANT_CREATED)
    log.warning(Event.HOOK_TIMEOUT)
    log.error(Event.LEDGER_FAILED)
    assert written == [Event.HOOK_TIMEOUT, Event.LEDGER_FAILED]
    assert not log.debug_enabled
    assert Log(Sink(), Level.DEBUG).debug_enabled


def test_journal_fields(sink: JournalSink, journal: socket.socket) -> None:
    log = Log(sink)
    log.warning(Event.HOOK_TIMEOUT, "two  spaces\nand a line", pod_uid="u-1", hook="a=b")
    assert parse_journal(journal.recv(65536)) == {
        "MESSAGE": r'hook.timeout pod_uid=u-1 hook="a=b" two  spaces\x0aand a line',
        "PRIORITY": "4",
        "SYSLOG_IDENTIFIER": "lading-hooks",
        "LADING_EVENT": "hook.timeout",
        "LADING_POD_UID": "u-1",
        "LADING_HOOK": "a=b",
    }


def test_a_record_over_the_datagram_limit_goes_as_a_sealed_memfd(sink: JournalSink, journal: socket.socket) -> None:
    Log(sink).error(Event.CALL_REFUSED, "x" * 4_000_000)
    data, ancillary, *_ = journal.recvmsg(65536, socket.CMSG_SPACE(4))
    assert data == b""
    fds = array.array("i", ancillary[0][2])
    with os.fdopen(fds[0], "rb") as memfd:
        memfd.seek(0)
        record = parse_journal(memfd.read())
        with pytest.raises(PermissionError):
            os.pwrite(fds[0], b"y", 0)
    assert record["MESSAGE"] == "call.refused " + "x" * 4_000_000
    assert record["LADING_EVENT"] == "call.refused"


def test_a_journal_that_does_not_read_holds_no_one_up(
    sink: JournalSink, journal: socket.socket, capfd: pytest.CaptureFixture[str]
) -> None:
    """Check that such records are not written to stderr either, which journald reads too."""
    log = Log(sink)
    while not log.dropped:
        log.info(Event.GRANT_CREATED)
    log.info(Event.GRANT_CREATED)
    assert capfd.readouterr().err == ""
    journal.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while journal.recv(65536):
            pass
    log.info(Event.GRANT_RELEASED)
    text = parse_journal(journal.recv(65536))
    assert (text["LADING_EVENT"], text["LADING_RECORDS"]) == ("log.dropped", "2")
    assert parse_journal(journal.recv(65536))["LADING_EVENT"] == "grant.released"
    log.info(Event.GRANT_RELEASED)
    assert parse_journal(journal.recv(65536))["LADING_EVENT"] == "grant.released"
    assert log.dropped == 2


def test_a_pipe_that_no_one_reads_holds_no_one_up() -> None:
    reading, writing = os.pipe()
    log = Log(LogfmtSink(writing))
    while not log.dropped:
        log.info(Event.GRANT_CREATED, "x" * 10_000)  # longer than a pipe takes in one go
    os.set_blocking(reading, False)
    with contextlib.suppress(BlockingIOError):
        while os.read(reading, 65536):
            pass
    log.info(Event.GRANT_RELEASED)
    lines = os.read(reading, 65536).decode().splitlines()
    assert [line.split()[1] for line in lines if line] == ["event=log.dropped", "event=grant.released"]
    os.close(reading)
    os.close(writing)


def test_without_a_journal_the_record_goes_to_stderr(sink: JournalSink, capfd: pytest.CaptureFixture[str]) -> None:
    Log(sink).info(Event.DAEMON_STARTED)
    assert "event=daemon.started" in capfd.readouterr().err


@pytest.mark.parametrize(("inode_off_by", "to_journal"), [(0, True), (1, False)])
def test_the_journal_is_used_where_stderr_is_its_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inode_off_by: int, to_journal: bool
) -> None:
    with open(tmp_path / "stderr", "w") as stderr:
        stat = os.fstat(stderr.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{stat.st_dev}:{stat.st_ino + inode_off_by}")
        monkeypatch.setattr("sys.stderr", stderr)
        assert stderr_is_journal() is to_journal


@pytest.mark.parametrize("stream", ["", "nonsense", "1:2:3", "a:b"])
def test_a_journal_stream_that_says_nothing(monkeypatch: pytest.MonkeyPatch, stream: str) -> None:
    monkeypatch.setenv("JOURNAL_STREAM", stream)
    assert not stderr_is_journal()


def test_a_log_that_cannot_be_written_stops_no_one() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    Log(LogfmtSink(writing)).info(Event.DAEMON_STARTED)
    os.close(writing)


def test_watchdogs_own_words_are_no_records() -> None:
    """Check, in a process without pytest's handlers, that the library's message at a stop is not logged."""
    script = (
        "import logging; from lading.log import Level, open_log; open_log('lading-hooks', Level.INFO);"
        "logging.getLogger('watchdog.observers.inotify').error('queue_events() called when the thread is inactive')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == ""

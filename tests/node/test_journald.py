"""Check Lading's records in the real journal: fields, sizes, hostile text, a journal that hangs, each recipe of the docs."""

import contextlib
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lading.log import Event, JournalSink, Log
from lading.reasons import Reason
from simnode.daemons import render_flat_toml
from tests.fakes import private_journald
from tests.fakes.needs import need
from tests.fakes.private_journald import PrivateJournald
from tests.started import short_folder

ROOT = Path(__file__).parents[2]
# In a block of code up to its comment, in a text up to its backquote, in --help up to two blanks.
RECIPE = re.compile(r"journalctl (?:-|LADING_)(?:(?!  | #|`|$).)*", re.MULTILINE)
UID = "5f0d2c61-1111-4222-8333-444455556666"


@pytest.fixture
def journald() -> Iterator[PrivateJournald]:
    without = private_journald.missing()
    need(not without, without)
    with short_folder() as folder, PrivateJournald(folder) as journald:
        yield journald


@contextlib.contextmanager
def log_of(journald: PrivateJournald, identifier: str = "lading-hooks") -> Iterator[Log]:
    with contextlib.closing(JournalSink(identifier, str(journald.native))) as sink:
        yield Log(sink)


def test_a_record_can_be_found_by_each_of_its_fields(journald: PrivateJournald) -> None:
    with log_of(journald) as log:
        log.warning(Event.GRANT_REFUSED, "cannot give GPU 0: held", pod_uid=UID, reason=Reason.DEVICE_HELD, pod="train-0")
        log.info(Event.GRANT_CREATED, pod_uid="another")
    (record,) = journald.read("-t", "lading-hooks", f"LADING_EVENT={Event.GRANT_REFUSED}")
    assert record["MESSAGE"] == (f"grant.refused pod_uid={UID} reason=device-held pod=train-0 cannot give GPU 0: held")
    assert (record["PRIORITY"], record["SYSLOG_IDENTIFIER"], record["_PID"]) == ("4", "lading-hooks", str(os.getpid()))
    assert journald.read(f"LADING_POD_UID={UID}") == journald.read("LADING_REASON=device-held") == [record]
    assert len(journald.read("-p", "info", "-t", "lading-hooks")) == 2
    assert journald.read("-p", "warning", "-t", "lading-hooks") == [record]


@pytest.mark.parametrize("size", [100_000, 1_000_000, 4_000_000])
def test_a_record_of_any_size_is_whole(journald: PrivateJournald, size: int) -> None:
    """Check that a record over the socket's size limit is sent as a memfd."""
    with log_of(journald) as log:
        log.info(Event.CALL_REFUSED, "x" * size, pod_uid=UID)
        assert log.dropped == 0
    (record,) = journald.read(f"LADING_POD_UID={UID}")
    assert len(record["MESSAGE"]) > size


@pytest.mark.parametrize(
    "text", ["a\nLADING_EVENT=forged", "\x1b[31mred", "a\u202eb\u2028c", "nul\0nul", "\udcff", "=", "日本"]
)
def test_hostile_text_is_one_record_of_text(journald: PrivateJournald, text: str) -> None:
    with log_of(journald) as log:
        log.info(Event.GRANT_CREATED, text, pod=text)
    (record,) = journald.read("-t", "lading-hooks")
    assert record["LADING_EVENT"] == "grant.created"
    assert isinstance(record["LADING_POD"], str)  # journalctl shows what is not printable as a list of bytes
    assert record["LADING_POD"].isprintable()
    assert record["MESSAGE"].isprintable()


def test_a_journal_that_hangs_holds_no_one_up_and_what_was_dropped_is_counted(journald: PrivateJournald) -> None:
    with log_of(journald) as log:
        journald.stop_reading()
        began = time.monotonic()
        for _ in range(2000):  # more than any queue: 10, or 512 where systemd booted
            log.info(Event.GRANT_CREATED)
        assert time.monotonic() - began < 2
        assert log.dropped > 0
        dropped = log.dropped
        journald.read_on()
        taken = len(journald.read("-t", "lading-hooks"))
        assert taken + dropped == 2000
        log.info(Event.GRANT_RELEASED)
    (text,) = journald.read(f"LADING_EVENT={Event.LOG_DROPPED}")
    assert text["LADING_RECORDS"] == str(dropped)
    assert len(journald.read("-t", "lading-hooks")) == taken + 2


def test_a_daemon_whose_stderr_is_the_journal_writes_fields(journald: PrivateJournald, short_folder: Path) -> None:
    config = short_folder / "runtimeproxy.toml"
    settings = {"listen": str(short_folder / "run/cri.sock"), "runtime_endpoint": str(short_folder / "none"), "metrics": ""}
    config.write_text(render_flat_toml({**settings, "hooks_dir": str(short_folder / "hooks.d")}))
    with journald.open_stream("python3") as stderr:
        result = os.fstat(stderr.fileno())
        daemon = subprocess.Popen(
            [
                "nsenter",
                f"--mount=/proc/{journald.pid}/ns/mnt",
                "--",
                str(Path(sys.executable).with_name("lading-runtimeproxy")),
                "--config",
                str(config),
            ],
            stderr=stderr.fileno(),
            stdin=subprocess.DEVNULL,
            env={**os.environ, "JOURNAL_STREAM": f"{result.st_dev}:{result.st_ino}"},
        )
    try:
        started = ["-t", "lading-runtimeproxy", f"LADING_EVENT={Event.DAEMON_STARTED}"]
        until = time.monotonic() + 20
        while not (records := journald.read(*started)):
            assert daemon.poll() is None
            assert time.monotonic() < until
    finally:
        daemon.terminate()
        daemon.wait()
    assert records[0]["LADING_LISTEN"] == settings["listen"]
    assert records[0]["_TRANSPORT"] == "journal"


def seed(journald: PrivateJournald) -> None:
    """Log one record of each kind that a recipe searches."""
    pod = {"namespace": "default", "pod": "train-0", "pod_uid": UID}
    with log_of(journald, "lading-hooks") as log:
        log.warning(Event.GRANT_REFUSED, "held", **pod, container="train", reason=Reason.DEVICE_HELD)
        log.info(Event.GRANT_CREATED, **pod, container="train", devices="GPU-1")
        log.error(Event.CONTAINER_BYPASSED, "went past", **pod, container="train")
        log.warning(Event.DEVICE_UNHEALTHY, "Xid 79", **pod, device="GPU-1")
        log.error(Event.LEDGER_FAILED, "disk full")
        log.warning(Event.REPORT_FAILED, "no such resource")
        log.info(Event.VF_ATTACHED, **pod, device="0000:3b:00.2", ifname="rdma0")
        log.error(Event.VF_ATTACH_FAILED, "no answer", **pod, device="0000:3b:00.2")
        log.error(Event.VF_RELEASE_FAILED, "no answer", **pod, device="0000:3b:00.2")
        log.error(Event.INVENTORY_FAILED, "no answer of NVML")
        log.warning(Event.INVENTORY_CHANGED, "cannot write /var/run/cdi/lading.dev-gpu.json")
        log.error(Event.CONTAINER_STOPPED, "ran without its devices", **pod, container="train")
        log.warning(Event.NODE_TAINTED, "no guard is connected")
        log.warning(Event.HOLDER_FOREIGN, "pod default/before uses it", device="GPU-2")
        log.warning(Event.RELEASE_FORCED, "freed", device="GPU-1")
        log.error(Event.SHARE_BYPASSED, "uses GPU-1 past the share server", **pod, device="GPU-1")
        log.error(Event.MPS_FAILED, "no answer", device="GPU-1")
        log.error(Event.MIG_FAILED, "in use", device="GPU-1")
        log.error(Event.MPS_FAULT, "a fatal fault", device="GPU-1")
        log.warning(Event.ENV_PRELOADS, "LD_PRELOAD", **pod)
        log.warning(Event.DEVICE_DIRTY, "a process computes on it", device="GPU-1")
    with log_of(journald, "lading-runtimeproxy") as log:
        log.warning(Event.CALL_REFUSED, "held", **pod, method="CreateContainer", reason=Reason.DEVICE_HELD)
        log.warning(Event.HOOK_TIMEOUT, "late", hook="50-lading.json")
        log.error(Event.RUNTIME_UNREACHABLE, "no such file")
        log.info(Event.DAEMON_STOPPED, lost_calls=0)
    with log_of(journald, "another") as log:
        log.info(Event.DAEMON_STARTED)


def recipes() -> list[str]:
    files = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "hooks/main.py", ROOT / "runtimeproxy/main.py"]
    result = [recipe.strip() for path in files for recipe in RECIPE.findall(path.read_text())]
    # The other commands read the journal of other units.
    return [recipe for recipe in result if not recipe.startswith(("journalctl -u", "journalctl --"))]


def test_the_recipes_are_found() -> None:
    assert len(recipes()) >= 18
    assert "journalctl LADING_POD_UID=<uid>" in recipes()
    assert "journalctl -t lading-hooks LADING_EVENT=grant.refused" in recipes()


def test_each_recipe_of_the_docs_finds_some_records_and_not_all(journald: PrivateJournald) -> None:
    seed(journald)
    everything = len(journald.read())
    for recipe in recipes():
        _, *text = shlex.split(recipe.replace("<uid>", UID))
        assert 0 < len(journald.read(*text)) < everything, recipe

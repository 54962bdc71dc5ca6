r"""Log one record per event, to journald (native protocol, with fields) where stderr is its stream, else as logfmt to stderr.

`journalctl -t lading-hooks LADING_EVENT=grant.refused LADING_POD_UID=…` finds a record. Values come from pods and images:
control characters, line breaks, bidirectional overrides and invalid UTF-8 are escaped, so that a record is one line and
a terminal shows its content. Values of environment variables, mount sources and whole messages are never logged. A log without
a reader blocks no daemon: a record that cannot be written at once is dropped, and the number of dropped records
is logged later.

Source: systemd's Native Journal Protocol (fields `NAME=value\n`, or `NAME\n<u64 LE length><bytes>\n`), sd_journal_send(3);
unix(7): a datagram socket whose receiver's queue is full (net.unix.max_dgram_qlen, 512 if systemd booted) returns EAGAIN.
"""

import errno
import fcntl
import logging
import os
import select
import socket
import struct
import sys
import unicodedata
from enum import StrEnum
from typing import Final, Protocol

JOURNAL_SOCKET: Final = "/run/systemd/journal/socket"


class Level(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


_PRIORITY: Final = {Level.ERROR: 3, Level.WARNING: 4, Level.INFO: 6, Level.DEBUG: 7}
_RANK: Final = {level: rank for rank, level in enumerate(Level)}


class Event(StrEnum):
    """Name the events that can be logged. Append only: recipes and alerts use these names."""

    DAEMON_STARTED = "daemon.started"
    DAEMON_STOPPING = "daemon.stopping"
    DAEMON_STOPPED = "daemon.stopped"
    SOCKET_ACCESS = "socket.access"  # owner or mode of the daemon's socket is wrong
    METRICS_LISTENING = "metrics.listening"
    METRICS_FAILED = "metrics.failed"
    PROBE_FAILED = "probe.failed"  # the daemon's own socket does not answer: systemd's watchdog is not notified
    LOG_DROPPED = "log.dropped"  # records that the journal did not take
    TRACES_FAILED = "traces.failed"  # the collector of otlp_endpoint does not accept them; logged once a minute
    # proxy
    CONNECTION_OPENED = "connection.opened"
    CONNECTION_CLOSED = "connection.closed"
    CONNECTION_REJECTED = "connection.rejected"
    CONNECTION_BROKEN = "connection.broken"  # malformed HTTP/2, and which side sent it
    RUNTIME_UNREACHABLE = "runtime.unreachable"
    RUNTIME_REACHABLE = "runtime.reachable"
    CALL_FORWARDED = "call.forwarded"
    CALL_ADJUSTED = "call.adjusted"
    CALL_REFUSED = "call.refused"
    CALL_CANCELLED = "call.cancelled"
    ENV_REPLACED = "env.replaced"
    HOOK_REGISTERED = "hook.registered"
    HOOK_REMOVED = "hook.removed"
    HOOK_INVALID = "hook.invalid"
    HOOK_FAILED = "hook.failed"
    HOOK_TIMEOUT = "hook.timeout"
    HOOK_IGNORED = "hook.ignored"  # a hook failed, and its policy is Ignore
    HOOK_BACK = "hook.back"
    PODS_KNOWN = "pods.known"
    # hooks
    INVENTORY_CHANGED = "inventory.changed"
    INVENTORY_FAILED = "inventory.failed"
    DRIVER_EXCHANGED = "driver.exchanged"  # the process has NVML of another version than the kernel module, and starts anew
    DEVICE_UNHEALTHY = "device.unhealthy"
    DEVICE_HEALTHY = "device.healthy"
    DEVICE_DIRTY = "device.dirty"  # no grant holds the card, and it has not been clean for 30 s
    DEVICE_CLEAN = "device.clean"  # the card is clean again, after a device.dirty
    DEVICE_NOT_RESTORED = "device.not-restored"  # clocks or power limit were not restored after a card's last holder
    GRANT_CREATED = "grant.created"
    GRANT_REUSED = "grant.reused"
    GRANT_REFUSED = "grant.refused"
    GRANT_RELEASED = "grant.released"
    GRANT_ADOPTED = "grant.adopted"  # a grant was found in the runtime's annotations, not in the ledger
    ENV_PRELOADS = "env.preloads"  # a container with an isolated share loads a library of its own before others
    MPS_STARTED = "mps.started"  # the MPS control daemon of a card runs
    MPS_STOPPED = "mps.stopped"  # the daemon stopped, and the card's compute mode is the default again
    MPS_FAILED = "mps.failed"  # the control daemon cannot be started, queried or stopped; retried
    MPS_FAULT = "mps.fault"  # a client's fatal fault ends all clients of the card
    MPS_RECOVERED = "mps.recovered"  # the faulted clients ended, and the server accepts clients again
    MIG_FAILED = "mig.failed"  # an instance cannot be made or removed on demand; retried
    LEDGER_RECONCILED = "ledger.reconciled"
    LEDGER_FAILED = "ledger.failed"
    HOLDER_FOREIGN = "holder.foreign"  # a pod uses a card that the ledger did not grant
    CDI_UNAVAILABLE = (
        "cdi.unavailable"  # gpu_mode cdi, and the runtime does not give CDI devices: containers with GPUs are refused
    )
    MEMLOCK_SMALL = "memlock.small"
    CONTAINER_BYPASSED = "container.bypassed"  # a container runs without the devices of its pod's annotations
    CONTAINER_STOPPED = "container.stopped"  # Lading stopped a container without its devices; kubelet creates it again
    CONTAINER_STOP_FAILED = "container.stop-failed"  # a container without its devices cannot be stopped; retried
    VF_ATTACHED = "vf.attached"
    VF_RELEASED = "vf.released"
    VF_ATTACH_FAILED = "vf.attach-failed"
    VF_RELEASE_FAILED = "vf.release-failed"  # the release is in the journal and is retried
    VF_UNKNOWN_HOLDER = "vf.unknown-holder"  # a VF's network device is in a namespace that Lading did not choose
    DEVICE_INFO_FAILED = "device-info.failed"  # attach = "cni": files about VFs for the cluster's CNI cannot be written
    RELEASE_FORCED = "release.forced"  # `lading-hooks release --force`, with the user and process that ran it
    REPORT_APPLIED = "report.applied"  # central's view of this node is up to date; INFO the first time and after a failure
    REPORT_FAILED = "report.failed"
    SHARE_BYPASSED = "share.bypassed"  # a container does not keep to its share of a card
    SHARE_WATCH_FAILED = "share.watch-failed"  # the memory or the processes of shares cannot be read; logged once
    NODE_TAINTED = "node.tainted"  # no pod is placed on this node; the record has the reason
    NODE_UNTAINTED = "node.untainted"
    NODE_TAINT_FAILED = "node.taint-failed"  # the API server did not accept the taint; retried
    NRI_CONNECTED = "nri.connected"  # the runtime asks this plugin from now on
    NRI_LOST = "nri.lost"  # the runtime no longer asks this plugin; the record has the reason
    NRI_SLOW = "nri.slow"  # a call took longer than its budget: the runtime created no other container meanwhile
    # shares
    SHARE_SERVED = "share.served"  # a container's socket was created
    SHARE_REFUSED = "share.refused"  # a process was refused, or a grant cannot be read
    # central
    REQUEST_MALFORMED = "request.malformed"  # a request does not follow the extender's protocol
    LEADER_STARTED = "leader.started"
    LEADER_STOPPED = "leader.stopped"
    WATCH_SYNCED = "watch.synced"
    WATCH_FAILED = "watch.failed"
    ANNOUNCE_FAILED = "announce.failed"  # the Service may still point at the previous leader
    QUOTA_UNWRITTEN = "quota.unwritten"  # the use of quotas is not written into their objects; logged once, until it is
    QUOTA_TAKEN_BACK = "quota.taken-back"  # pods of a quota that uses more than it may are evicted
    ROOM_KEPT = "room.kept"  # devices are reserved for a pod or gang that waited too long
    GANG_PLANNED = "gang.planned"  # each member of a gang has a node, and its devices there are held
    GANG_PLACED = "gang.placed"  # the gang's minimum is bound
    GANG_UNDONE = "gang.undone"  # a gang's plan ended before its minimum was bound
    ADMISSION_ANSWERED = "admission.answered"  # a Workload of Kueue fits now, or it does not
    ADMISSION_FAILED = "admission.failed"  # the answer about a Workload could not be written; logged once, until one is
    POD_WOKEN = "pod.woken"  # a pod is requeued, because capacity became free
    BIND_CONFIRMED = "bind.confirmed"
    BIND_REFUSED = "bind.refused"
    BIND_UNCLEAR = "bind.unclear"  # the devices stay reserved until the result is known
    BIND_CONFLICT = "bind.conflict"  # two pods hold one device
    POD_EVICTED = "pod.evicted"  # a pod was evicted, for a pod of higher priority or because of a conflict
    ASSIGNMENT_UNREADABLE = "assignment.unreadable"  # a bound pod has one; the grants of its node still count
    TELL_FAILED = "tell.failed"  # Kubernetes Events on pods were dropped; logged once, until one is accepted again
    POD_UNASSIGNED = "pod.unassigned"  # a pod requests devices and was bound without an assignment
    OBJECT_UNREADABLE = "object.unreadable"  # an object of the API server that cannot be parsed
    HANDLING_FAILED = "handling.failed"  # an error in central's code about one object, which is set aside for a while
    LEASE_ACQUIRED = "lease.acquired"
    LEASE_LOST = "lease.lost"
    LEASE_RELEASED = "lease.released"
    LEASE_FAILED = "lease.failed"  # a call for the lease failed; a held lease lasts until its deadline


class Sink(Protocol):
    def write(self, level: Level, event: Event, message: str, fields: dict[str, str]) -> None:
        """Write a record. Raises BlockingIOError if the write would have to wait."""


def printable(text: str) -> str:
    """Return the text on one line; everything but graphic characters, marks and plain spaces is escaped."""
    if text.isascii() and text.isprintable():
        return text
    out = []
    for char in text:
        if char == " " or unicodedata.category(char)[0] in "LMNPS":
            out.append(char)
        else:
            out.append(_escape(ord(char)))
    return "".join(out)


def _escape(code: int) -> str:
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


class LogfmtSink:
    """Write `level event key=value … message` lines to a file descriptor."""

    def __init__(self, fd: int = 2) -> None:
        self._fd = fd
        self._room = select.poll()
        self._torn = False  # the last line was cut off

    def write(self, level: Level, event: Event, message: str, fields: dict[str, str]) -> None:
        parts = [f"level={level}", f"event={event}"]
        parts += [f"{key}={_logfmt_value(value)}" for key, value in fields.items()]
        if message:
            parts.append(f"msg={_logfmt_value(message)}")
        line = b"\n" * self._torn + " ".join(parts).encode("utf-8", "backslashreplace") + b"\n"
        try:
            self._write(line)
        except BlockingIOError:
            raise
        except OSError:
            pass  # a log that cannot be written must not stop a node

    def _write(self, line: bytes) -> None:
        """Write without waiting, and without O_NONBLOCK: other processes with this terminal or pipe share that flag."""
        self._room.register(self._fd, select.POLLOUT)
        for start in range(0, len(line), select.PIPE_BUF):  # a writable pipe accepts that many bytes
            if not self._room.poll(0):
                self._torn = self._torn or start > 0
                raise BlockingIOError
            os.write(self._fd, line[start : start + select.PIPE_BUF])
        self._torn = False


def _logfmt_value(text: str) -> str:
    text = printable(text)
    if text and not any(c in text for c in ' "=\\'):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


class JournalSink:
    """Write in journald's native protocol: datagrams, or sealed memfds over the datagram limit, as sd_journal_send does."""

    def __init__(self, identifier: str, path: str = JOURNAL_SOCKET) -> None:
        self._identifier = identifier
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        self._fallback = LogfmtSink()

    def write(self, level: Level, event: Event, message: str, fields: dict[str, str]) -> None:
        shown = (f"{key}={_logfmt_value(value)}" for key, value in fields.items())
        record = {
            "MESSAGE": " ".join(filter(None, [event.value, *shown, printable(message)])),
            "PRIORITY": str(_PRIORITY[level]),
            "SYSLOG_IDENTIFIER": self._identifier,
            "LADING_EVENT": event.value,
            **{f"LADING_{key.upper()}": printable(value) for key, value in fields.items()},
        }
        datagram = b"".join(_journal_field(name, value) for name, value in record.items())
        try:
            self._send(datagram)
        except BlockingIOError:
            raise  # no fallback to stderr: journald reads it too, so the write would block
        except OSError:
            self._fallback.write(level, event, message, fields)

    def close(self) -> None:
        self._socket.close()

    def _send(self, datagram: bytes) -> None:
        try:
            self._socket.sendto(datagram, self._path)
        except OSError as e:
            if e.errno not in (errno.EMSGSIZE, errno.ENOBUFS):
                raise
            fd = os.memfd_create("journal", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            try:
                os.write(fd, datagram)
                seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
                # socket.send_fds cannot be used: in Python 3.11 it ignores the address
                self._socket.sendmsg([], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", fd))], 0, self._path)
            finally:
                os.close(fd)


def _journal_field(name: str, value: str) -> bytes:
    data = value.encode("utf-8", "backslashreplace")
    if b"\n" not in data:
        return name.encode() + b"=" + data + b"\n"
    return name.encode() + b"\n" + struct.pack("<Q", len(data)) + data + b"\n"


class Log:
    """Write the records of a daemon. Names of `fields` are fixed: pod_uid, container, hook, method, reason, device, …."""

    def __init__(self, sink: Sink, level: Level = Level.INFO) -> None:
        self._sink = sink
        self._rank = _RANK[level]
        self.debug_enabled = self._rank == 0
        self.dropped = 0  # records dropped since the start
        self._dropped_unsaid = 0

    def debug(self, event: Event, message: str = "", **fields: object) -> None:
        self._write(Level.DEBUG, event, message, fields)

    def info(self, event: Event, message: str = "", **fields: object) -> None:
        self._write(Level.INFO, event, message, fields)

    def warning(self, event: Event, message: str = "", **fields: object) -> None:
        self._write(Level.WARNING, event, message, fields)

    def error(self, event: Event, message: str = "", **fields: object) -> None:
        self._write(Level.ERROR, event, message, fields)

    def _write(self, level: Level, event: Event, message: str, fields: dict[str, object]) -> None:
        if _RANK[level] < self._rank:
            return
        try:
            if self._dropped_unsaid:
                lost = "the journal did not take them in time"
                self._sink.write(Level.WARNING, Event.LOG_DROPPED, lost, {"records": str(self._dropped_unsaid)})
                self._dropped_unsaid = 0
            self._sink.write(level, event, message, {k: str(v) for k, v in fields.items() if v is not None and v != ""})
        except BlockingIOError:
            self.dropped += 1
            self._dropped_unsaid += 1


def open_log(identifier: str, level: Level) -> Log:
    """Open the journal if stderr is connected to it (JOURNAL_STREAM names its device and inode), else logfmt."""
    # The package watchdog writes to stderr if its thread is stopped while it reads a folder; that line helps no reader.
    logging.getLogger("watchdog").addHandler(logging.NullHandler())
    return Log(JournalSink(identifier) if stderr_is_journal() else LogfmtSink(), level)


def stderr_is_journal() -> bool:
    try:
        device, inode = os.environ.get("JOURNAL_STREAM", "").split(":")
        stat = os.fstat(sys.stderr.fileno())
        return (stat.st_dev, stat.st_ino) == (int(device), int(inode))
    except (ValueError, OSError):
        return False

"""Make and open the ledger's file `node.db`: it is made whole or not at all, and opened only if it is sound and Lading's.

A file that is damaged, empty, another program's or of a newer version raises a StateError that names the command to rebuild it.
A full or read-only disk raises a StateError that says so. SQLite itself would begin a new database in an empty file, and would
replay a leftover log into the next database: both are refused.

Source: https://www.sqlite.org/wal.html, https://www.sqlite.org/pragma.html, https://www.sqlite.org/howtocorrupt.html

Tests: tests/unit/hooks/ledger/test_store.py
"""

import contextlib
import fcntl
import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hooks.ledger.schema import APPLICATION_ID, MIGRATIONS
from lading.errors import HostError, LadingError, StateError

_REBUILD: Final = (
    "rebuild it: systemctl stop lading-hooks.socket lading-hooks; lading-hooks rebuild-ledger; "
    "systemctl start lading-hooks.socket lading-hooks"
)
# SQLite may fail to grow its log if fewer octets are free.
LEAST_FREE: Final = 1 << 20
_BUSY_MS: Final = 1000  # an operator's sqlite3 shell may hold a lock; a hook call's deadline is twice that


def lock_directory(directory: Path) -> contextlib.ExitStack:
    """Lock the directory until the result is closed: a second daemon could change the file, and the first one's copy in memory
    would be stale."""
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as e:
        raise HostError(f"cannot open state directory {directory}: {e.strerror}") from e
    lock = contextlib.ExitStack()
    lock.callback(os.close, fd)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as e:
        lock.close()
        raise HostError(
            f"cannot open state directory {directory}: another lading-hooks uses it",
            hint="stop it first (systemctl stop lading-hooks); one that serves another runtime needs another --state-dir",
        ) from e
    return lock


def make(path: Path) -> Path:
    """Make an empty ledger beside `path`, and return its temporary path. The caller renames the file to `path` when it is
    complete."""
    new = path.with_name(path.name + ".new")
    try:
        for name in (new, *_logs(new)):
            name.unlink(missing_ok=True)
        os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError as e:
        raise StateError(f"cannot create ledger {path}: {e.strerror}") from e
    try:
        with contextlib.closing(sqlite3.connect(new, isolation_level=None)) as db:
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            _apply_migrations(db, 0)
    except sqlite3.Error as e:
        raise state_error("create", path, e) from e
    return new


def refuse_orphaned_log(path: Path) -> None:
    for log in _logs(path):
        if os.path.lexists(log):
            raise StateError(
                f"cannot open ledger {path}: it is gone, and {log.name} is there", hint=f"restore the file, or {_REBUILD}"
            )


def connect(path: Path) -> sqlite3.Connection:
    """Open the ledger if it is sound, and migrate it to this version. The caller closes it."""
    result = path.lstat()
    if not stat.S_ISREG(result.st_mode):
        raise StateError(f"cannot open ledger {path}: not a regular file")
    if result.st_size == 0:
        raise StateError(f"cannot open ledger {path}: the file is empty", hint=_REBUILD)
    with damage_explained(path), contextlib.ExitStack() as on_failure:
        db = sqlite3.connect(path, isolation_level=None)
        on_failure.callback(db.close)
        db.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
        refuse_unsound(path, db)
        if db.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
            raise StateError(f"cannot open ledger {path}: this file system cannot hold SQLite's WAL", hint="use a local one")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("PRAGMA foreign_keys = ON")
        _apply_migrations(db, version(db))
        on_failure.pop_all()
    return db


def open_for_reading(path: Path) -> sqlite3.Connection:
    """Open a ledger for reading only, with or without a running daemon. The caller closes it. If there is no log, no daemon has
    the ledger open. Then the file is opened as immutable: a reader that might need a log would otherwise leave one behind."""
    how = "mode=ro" if any(os.path.lexists(log) for log in _logs(path)) else "mode=ro&immutable=1"
    return sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True)


def identity(path: Path) -> tuple[int, int] | None:
    """Return the device and inode of the file at this path; None if there is none. An inode is not used again while this
    process has the file open."""
    try:
        result = os.lstat(path)
    except OSError:
        return None
    return result.st_dev, result.st_ino


def replaced(path: Path, opened: tuple[int, int] | None) -> StateError | None:
    """Return an error if the file is no longer at its path: SQLite would go on writing into a file that no later process can
    find."""
    if identity(path) == opened:
        return None
    return StateError(
        f"cannot write ledger {path}: it was removed or replaced under the daemon",
        hint="stop lading-hooks, then lading-hooks rebuild-ledger",
    )


def version(db: sqlite3.Connection) -> int:
    """Return the number of migrations that this file has had."""
    return _pragma(db, "user_version")


def set_aside(path: Path) -> Path | None:
    """Keep the old file and its logs under a free name, because a person may want to inspect them; return that name. The file
    keeps its own name too until it is replaced."""
    number = 1
    while os.path.lexists(aside := path.with_name(f"{path.name}.damaged-{number}")):
        number += 1
    for old, new in zip(_logs(path), _logs(aside), strict=True):
        with contextlib.suppress(FileNotFoundError):
            old.rename(new)
    try:
        os.link(path, aside, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return aside


@contextlib.contextmanager
def damage_explained(path: Path) -> Iterator[None]:
    """Turn errors while a ledger is opened into a StateError that says what to do."""
    try:
        yield
    except sqlite3.Error as e:
        raise state_error("open", path, e) from e
    except LadingError as e:
        if e.hint:
            raise
        raise StateError(f"cannot open ledger {path}: {e.message}", hint=_REBUILD) from e


def state_error(verb: str, path: Path, error: sqlite3.Error) -> StateError:
    """Return a StateError with a hint for the operator. A damaged file has to be rebuilt; a rebuild does not help against a
    full, read-only or failing disk."""
    code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF  # the primary code, without the extension
    match code:
        case sqlite3.SQLITE_FULL | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_IOERR | sqlite3.SQLITE_CANTOPEN:
            hint = f"look at the file system: df -h {path.parent}; findmnt -T {path.parent}"
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            hint = f"another program has it open: fuser {path}"
        case _:
            hint = _REBUILD
    return StateError(f"cannot {verb} ledger {path}: {error}", hint=hint)


def refuse_unsound(path: Path, db: sqlite3.Connection) -> None:
    """Raise StateError if the ledger is not sound. Only reads."""
    if _pragma(db, "application_id") != APPLICATION_ID:
        raise StateError(f"cannot open ledger {path}: another program's database", hint=_REBUILD)
    verdict = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if verdict != "ok":
        raise StateError(f"cannot open ledger {path}: damaged: {verdict}", hint=_REBUILD)
    if (observed := version(db)) > len(MIGRATIONS):
        raise StateError(
            f"cannot open ledger {path}: schema {observed} of a newer Lading, this one knows up to {len(MIGRATIONS)}",
            hint=f"run the newer version, or {_REBUILD}",
        )


def find_ledger_problem(path: Path, last_write: str) -> str:
    """Return why the next grant could not be recorded: `last_write`, the failure of the last write; the folder; or its disk.
    Return an empty text if it could."""
    if last_write:
        return last_write
    if not os.access(path.parent, os.W_OK):
        return f"{path.parent} cannot be written"
    result = os.statvfs(path.parent)
    free = result.f_bavail * result.f_frsize
    return f"{path.parent} has {free} bytes left" if free < LEAST_FREE else ""


def _apply_migrations(db: sqlite3.Connection, observed: int) -> None:
    for number, statements in enumerate(MIGRATIONS[observed:], observed + 1):
        db.execute("BEGIN IMMEDIATE")
        for statement in statements:
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {number}")
        db.execute("COMMIT")


def _logs(path: Path) -> tuple[Path, ...]:
    """Return the files that SQLite keeps beside a database."""
    return tuple(path.with_name(path.name + suffix) for suffix in ("-wal", "-shm", "-journal"))


def _pragma(db: sqlite3.Connection, name: str) -> int:
    return int(db.execute(f"PRAGMA {name}").fetchone()[0])

"""Keep the ledger, the holders of this node's devices, in SQLite (`node.db`), with a full copy in memory for the hot path.

A change is committed before its call returns, and only then shows in memory. WAL with `synchronous=NORMAL` loses nothing when
the process dies; after a power loss the boot id differs. A failed write is a StateError and changes nothing. Use a ledger in
one process at a time, and in one thread. `file` opens the database, and refuses an unsound one.
"""

import contextlib
import dataclasses
import os
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final, Self, TypeVar

from hooks.ledger import file
from hooks.ledger.attachment import newest_of_each
from hooks.ledger.history import History, read_periods, salvage_periods, write_period
from hooks.ledger.journal import Journal, read_rows, write_rows
from hooks.ledger.period import Began, End, Period, continued
from hooks.model.attachment import Attachment
from hooks.model.grant import (
    Grant,
    GrantKey,
    HeldBy,
    Holding,
    check_readable,
    holding_of,
    parse_devices,
    parse_form,
    parse_request,
    render_json,
)
from lading.errors import StateError
from lading.vocabulary import ContainerId, GpuUuid, PodUid, SandboxId

_COLUMNS: Final = (
    *("pod_uid", "container", "namespace", "pod_name", "sandbox_id", "form", "gen"),
    *("request", "devices", "granted_at", "boot_id"),
)
_UPSERT: Final = (
    f"INSERT INTO grants ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"  # noqa: S608  constants only
    " ON CONFLICT (pod_uid, container) DO UPDATE SET "
    + ", ".join(f"{c} = excluded.{c}" for c in _COLUMNS if c not in ("pod_uid", "container"))
)
_SELECT: Final = f"SELECT {', '.join(_COLUMNS)} FROM grants ORDER BY granted_at, pod_uid, container"  # noqa: S608
_SEE: Final = "INSERT OR IGNORE INTO grant_containers (container_id, pod_uid, container, sandbox_id) VALUES (?, ?, ?, ?)"

T = TypeVar("T")


class Ledger:
    """Hold the ledger. Reads answer from memory; if the disk fails, writes raise StateError and change nothing."""

    def __init__(self, path: Path, connection: sqlite3.Connection, lock: contextlib.ExitStack) -> None:
        """Use `open` instead."""
        self.path = path
        self.write_failures = 0
        self.last_write = ""  # failure of the last write, or empty
        self._db = connection
        self._opened = file.identity(path)
        self._lock = lock
        self._grants: dict[GrantKey, Grant] = {}
        self._holdings: dict[GrantKey, Holding] = {}  # the grants in the form that decisions use
        self._newest_gen: dict[PodUid, int] = {}
        self.cards: frozenset[GpuUuid] = frozenset()  # cards with a holder
        for grant in _read_grants(connection):
            self._remember(grant)
        self._stopped = {SandboxId(i): int(at) for i, at in connection.execute("SELECT * FROM stopped_sandboxes")}
        self._unwritten: set[SandboxId] = set()  # stopped sandboxes that are not in the file yet
        self.journal = Journal(read_rows(connection), self._transaction)  # attachments of VFs to sandboxes
        self.history = History(connection, self._transaction)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the ledger at `path`. Make it if there is none, migrate it if it is older."""
        lock = file.lock_directory(path.parent)
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(lock.close)
            if not os.path.lexists(path):
                file.refuse_orphaned_log(path)
                file.make(path).rename(path)
            connection = file.connect(path)
            on_failure.callback(connection.close)
            with file.damage_explained(path):
                ledger = cls(path, connection, lock)
            on_failure.pop_all()
        return ledger

    def close(self) -> None:
        """Close the ledger. May be called twice."""
        self._db.close()
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def grants(self) -> tuple[Grant, ...]:
        return tuple(self._grants.values())

    def find(self, pod: PodUid, container: str) -> Grant | None:
        return self._grants.get(GrantKey(pod, container))

    def tombstones(self) -> Mapping[SandboxId, int]:
        """Return the stopped sandboxes and when they stopped, in Unix seconds."""
        return MappingProxyType(self._stopped)

    def is_stopped(self, sandbox: SandboxId) -> bool:
        return sandbox in self._stopped

    def held_by_others(self, pod: PodUid, container: str) -> tuple[Holding, ...]:
        """Return the holdings of all other containers, including those of the same pod."""
        others = self._holdings.copy()
        others.pop(GrantKey(pod, container), None)
        return tuple(others.values())

    def newest_gen(self, pod: PodUid) -> int:
        """Return the newest `gen` that any container of this pod was granted."""
        return self._newest_gen.get(pod, 0)

    def record(self, grant: Grant, *, began: Began = Began.CREATED, key_id: str = "") -> None:
        """Record a grant before the answer that hands the devices out. It may be called again for the same devices (a retry, a
        newer sandbox). Other devices for a container with a grant raise StateError: the existing grant wins. An equal grant is
        not written again, so that a container can restart while the disk is full. A new grant begins a period in the history;
        `key_id` names the key that signed its assignment."""
        held = self._grants.get(grant.key)
        if held is not None and held.devices != grant.devices:
            raise StateError(
                f"cannot record a grant for container {grant.container} of pod {grant.pod}: it holds other devices already"
            )
        check_readable(grant)
        known = held.containers if held is not None else ()
        if held is not None and set(grant.containers) <= set(known) and held == dataclasses.replace(grant, containers=known):
            return
        with self._transaction(begin=held is None or bool(grant.containers)) as db:
            _write(db, grant)
            begun = None if held else self.history.begin(db, grant, began=began, key_id=key_id)
        if begun is not None:
            self.history.has_begun(begun)
        observed = {c.id: c for c in (*known, *grant.containers)}
        self._remember(dataclasses.replace(grant, containers=_in_order(observed.values())) if observed else grant)

    def add_container(self, pod: PodUid, container: str, container_id: ContainerId, sandbox: SandboxId) -> None:
        """Record a container of the runtime that was created with this grant. Do nothing if there is no such grant."""
        held = self._grants.get(GrantKey(pod, container))
        if held is None or any(c.id == container_id for c in held.containers):
            return
        with self._transaction(begin=False) as db:
            db.execute(_SEE, (container_id, pod, container, sandbox))
        observed = (*held.containers, HeldBy(id=container_id, sandbox=sandbox))
        self._remember(dataclasses.replace(held, containers=_in_order(observed)))

    def forget_containers(self, ids: Collection[ContainerId]) -> None:
        """Delete containers that the runtime no longer has."""
        removed = frozenset(ids)
        holders = [grant for grant in self._grants.values() if not removed.isdisjoint(c.id for c in grant.containers)]
        if not holders:
            return
        with self._transaction(begin=len(removed) > 1) as db:
            db.executemany("DELETE FROM grant_containers WHERE container_id = ?", [(i,) for i in removed])
        for held in holders:
            left = tuple(c for c in held.containers if c.id not in removed)
            self._remember(dataclasses.replace(held, containers=left))

    def release(self, pod: PodUid, container: str | None = None, *, end: End) -> tuple[Grant, ...]:
        """Free the devices of this pod, or of one container of it, and return the freed grants. May be called again, and then
        returns none."""
        freed = tuple(g for g in self._grants.values() if g.pod == pod and container in (None, g.container))
        if not freed:
            return ()
        with self._transaction() as db:
            db.executemany("DELETE FROM grants WHERE pod_uid = ? AND container = ?", [g.key for g in freed])
            ended = self.history.end(db, freed, end)
        self.history.have_ended(ended)
        for grant in freed:
            del self._grants[grant.key], self._holdings[grant.key]
        self._newest_gen, self.cards = {}, frozenset()
        for grant in self._grants.values():
            self._count(grant)
        return freed

    def tombstone(self, sandbox: SandboxId, stopped_at: int) -> None:
        """Mark the sandbox as stopped: no device is granted in it any more, so that a late CreateContainer cannot attach to it.
        The first stop time counts. If the write fails, the tombstone is kept in memory, and written when kubelet repeats the
        stop."""
        if sandbox in self._stopped and sandbox not in self._unwritten:
            return
        stopped_at = self._stopped.setdefault(sandbox, stopped_at)
        self._unwritten.add(sandbox)
        with self._transaction(begin=False) as db:
            db.execute("INSERT OR IGNORE INTO stopped_sandboxes VALUES (?, ?)", (sandbox, stopped_at))
        self._unwritten.discard(sandbox)

    def forget_sandbox(self, sandbox: SandboxId) -> None:
        """Delete the tombstone of a sandbox that the runtime no longer has."""
        if sandbox not in self._stopped:
            return
        with self._transaction(begin=False) as db:
            db.execute("DELETE FROM stopped_sandboxes WHERE sandbox_id = ?", (sandbox,))
        del self._stopped[sandbox]
        self._unwritten.discard(sandbox)

    def _remember(self, grant: Grant) -> None:
        self._grants[grant.key] = grant
        self._holdings[grant.key] = holding_of(grant)
        self._count(grant)

    def _count(self, grant: Grant) -> None:
        """Update the summaries that decisions read: the pod's newest `gen`, and the cards with a holder."""
        self._newest_gen[grant.pod] = max(grant.gen, self.newest_gen(grant.pod))
        if not self.cards.issuperset(held := [gpu.uuid for gpu in grant.devices.gpus]):
            self.cards = self.cards.union(held)

    @contextlib.contextmanager
    def _transaction(self, *, begin: bool = True) -> Iterator[sqlite3.Connection]:
        """Run a transaction. At its end all changes are on disk; or none is, and StateError is raised. A single statement needs
        no `begin`."""
        if removed := file.replaced(self.path, self._opened):
            raise self._failed(removed)
        changes = self._db.total_changes
        try:
            if begin:
                self._db.execute("BEGIN IMMEDIATE")
            yield self._db
            if begin:
                self._db.execute("COMMIT")
            if self._db.total_changes != changes:
                self.last_write = ""
        except sqlite3.Error as e:
            raise self._failed(file.state_error("write", self.path, e)) from e
        finally:
            with contextlib.suppress(sqlite3.Error):
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")

    def _failed(self, error: StateError) -> StateError:
        self.write_failures += 1
        self.last_write = error.message
        return error


def read_ledger(path: Path) -> tuple[Grant, ...]:
    """Return the grants in a ledger at this moment, also while a daemon uses it; none if there is no ledger yet. Raise
    StateError if it cannot be read."""
    return _read(path, lambda db: tuple(_read_grants(db)))


def read_journal(path: Path) -> tuple[Attachment, ...]:
    """Return the attachments in a ledger, as `read_ledger` returns its grants. A ledger of an older version has none."""
    return _read(path, lambda db: read_rows(db) if file.version(db) > 1 else ())


def read_tombstones(path: Path) -> tuple[tuple[SandboxId, int], ...]:
    """Return the sandboxes that were asked to stop, and when, in Unix seconds, as `read_ledger` returns the grants."""
    return _read(path, lambda db: tuple((SandboxId(i), int(at)) for i, at in db.execute("SELECT * FROM stopped_sandboxes")))


def read_history(path: Path, *, since: int = 0) -> tuple[Period, ...]:
    """Return the periods with a holder at `since` or later, as `read_ledger` returns the grants. A ledger of an older version
    has none."""
    return _read(path, lambda db: read_periods(db, since=since) if file.version(db) > 2 else ())


def _read(path: Path, read: Callable[[sqlite3.Connection], tuple[T, ...]]) -> tuple[T, ...]:
    try:
        path.lstat()
    except FileNotFoundError:
        return ()
    except OSError as e:
        raise StateError(f"cannot open ledger {path}: {e.strerror}", hint="only its owner may, as a rule root") from e
    with (
        file.damage_explained(path),
        contextlib.closing(file.open_for_reading(path)) as db,
    ):
        return read(db)


def replace_ledger(
    path: Path, grants: Collection[Grant], attachments: Collection[Attachment] = (), *, now: int
) -> tuple[Path | None, int]:
    """Write a new ledger with these grants and attachments at `path`; set the old one, if any, aside. Return the old one's new
    path, and how many periods of its history could be read: they continue in the new ledger. No daemon may run. Of several
    attachments of one VF the newest counts.

    A ledger exists at every moment if there was one before: a daemon that starts in between must not begin with an empty
    ledger.
    """
    with file.lock_directory(path.parent):
        new, history = file.make(path), _salvage_history(path)
        try:
            with contextlib.closing(sqlite3.connect(new, isolation_level=None)) as db:
                db.execute("BEGIN")
                for grant in grants:
                    _write(db, grant)
                for period in continued(history, grants, at=now):
                    write_period(db, period)
                write_rows(db, newest_of_each(attachments))
                db.execute("COMMIT")
        except sqlite3.Error as e:
            raise file.state_error("rebuild", path, e) from e
        aside = file.set_aside(path)
        new.rename(path)
    return aside, len(history)


def _salvage_history(path: Path) -> tuple[Period, ...]:
    if not path.is_file():
        return ()
    with contextlib.closing(file.open_for_reading(path)) as db:
        db.text_factory = partial(str, encoding="utf-8", errors="replace")  # a name that is not UTF-8 must not end the reading
        return salvage_periods(db)


def _write(db: sqlite3.Connection, grant: Grant) -> None:
    db.execute(_UPSERT, _row(grant))
    for container in grant.containers:
        db.execute(_SEE, (container.id, grant.pod, grant.container, container.sandbox))


def _read_grants(db: sqlite3.Connection) -> Iterator[Grant]:
    held_bies: dict[GrantKey, list[HeldBy]] = {}
    for pod, container, i, sandbox in db.execute("SELECT pod_uid, container, container_id, sandbox_id FROM grant_containers"):
        held_bies.setdefault(GrantKey(PodUid(pod), container), []).append(HeldBy(id=ContainerId(i), sandbox=SandboxId(sandbox)))
    for row in db.execute(_SELECT):
        pod, container, namespace, pod_name, sandbox, form, gen, request, devices, granted_at, boot_id = row
        yield Grant(
            pod=PodUid(pod),
            container=container,
            namespace=namespace,
            pod_name=pod_name,
            sandbox=SandboxId(sandbox),
            form=parse_form(form),
            gen=gen,
            request=parse_request(request),
            devices=parse_devices(devices),
            granted_at=granted_at,
            boot_id=boot_id,
            containers=_in_order(held_bies.get(GrantKey(PodUid(pod), container), [])),
        )


def _row(grant: Grant) -> tuple[str | int, ...]:
    return (
        *(grant.pod, grant.container, grant.namespace, grant.pod_name, grant.sandbox, str(grant.form), grant.gen),
        *(render_json(grant.request), render_json(grant.devices), grant.granted_at, grant.boot_id),
    )


def _in_order(containers: Collection[HeldBy]) -> tuple[HeldBy, ...]:
    return tuple(sorted(containers, key=lambda c: c.id))

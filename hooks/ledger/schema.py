"""Define the tables of `node.db` as migrations, each from one version of the schema to the next.

`PRAGMA user_version` counts the migrations that a file has had; a file with more of them was written by a newer Lading. A
migration is never changed once it is released, because existing files have had it.

Tests: tests/unit/hooks/ledger/test_store.py
"""

from typing import Final

APPLICATION_ID: Final = 0x4C444E47  # "LDNG": distinguishes Lading's databases from those of other programs

MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (
    (
        """CREATE TABLE grants (
            pod_uid TEXT NOT NULL,
            container TEXT NOT NULL,
            namespace TEXT NOT NULL,
            pod_name TEXT NOT NULL,
            sandbox_id TEXT NOT NULL,
            form TEXT NOT NULL,
            gen INTEGER NOT NULL,
            request TEXT NOT NULL,
            devices TEXT NOT NULL,
            granted_at INTEGER NOT NULL,
            boot_id TEXT NOT NULL,
            PRIMARY KEY (pod_uid, container)
        ) STRICT, WITHOUT ROWID""",
        """CREATE TABLE grant_containers (
            container_id TEXT PRIMARY KEY,
            pod_uid TEXT NOT NULL,
            container TEXT NOT NULL,
            sandbox_id TEXT NOT NULL,
            FOREIGN KEY (pod_uid, container) REFERENCES grants ON DELETE CASCADE
        ) STRICT, WITHOUT ROWID""",
        "CREATE INDEX grant_containers_by_grant ON grant_containers (pod_uid, container)",
        """CREATE TABLE stopped_sandboxes (
            sandbox_id TEXT PRIMARY KEY,
            stopped_at INTEGER NOT NULL
        ) STRICT, WITHOUT ROWID""",
    ),
    (
        # AUTOINCREMENT: the number of an attachment that has ended is not used again.
        """CREATE TABLE attachments (
            generation INTEGER PRIMARY KEY AUTOINCREMENT,
            bdf TEXT NOT NULL UNIQUE,
            attachment TEXT NOT NULL
        ) STRICT""",
    ),
    (
        # A row is inserted, ended once, and deleted when it is old: the triggers prevent all other changes. This migration also
        # inserts a row for each present grant.
        """CREATE TABLE history (
            id INTEGER PRIMARY KEY,
            pod_uid TEXT NOT NULL,
            container TEXT NOT NULL,
            namespace TEXT NOT NULL,
            pod_name TEXT NOT NULL,
            form TEXT NOT NULL,
            gen INTEGER NOT NULL,
            key_id TEXT NOT NULL,
            devices TEXT NOT NULL,
            began TEXT NOT NULL,
            since INTEGER NOT NULL,
            until INTEGER,
            ended TEXT,
            ended_by INTEGER
        ) STRICT""",
        "CREATE INDEX history_ended ON history (until) WHERE until IS NOT NULL",
        """CREATE TRIGGER history_is_not_rewritten BEFORE UPDATE OF
            id, pod_uid, container, namespace, pod_name, form, gen, key_id, devices, began, since ON history
            BEGIN SELECT RAISE(ABORT, 'the history is not rewritten'); END""",
        """CREATE TRIGGER history_ends_once BEFORE UPDATE ON history WHEN OLD.until IS NOT NULL
            BEGIN SELECT RAISE(ABORT, 'the history is not rewritten'); END""",
        """INSERT INTO history (pod_uid, container, namespace, pod_name, form, gen, key_id, devices, began, since)
            SELECT pod_uid, container, namespace, pod_name, form, gen, '', devices, 'created', granted_at
            FROM grants ORDER BY granted_at, pod_uid, container""",
    ),
)

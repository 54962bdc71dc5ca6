"""The tables of `node.db`, as the steps by which each version of them came from the one before.

`PRAGMA user_version` counts the steps that a file has seen; a file that has seen more was written by a newer Lading.
A step is never changed once released: files that have seen it are out there.
"""

from typing import Final

APPLICATION_ID: Final = 0x4C444E47  # "LDNG": another program's database is told from ours

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
        # AUTOINCREMENT: the number of an attachment that is over is not used again.
        """CREATE TABLE attachments (
            generation INTEGER PRIMARY KEY AUTOINCREMENT,
            bdf TEXT NOT NULL UNIQUE,
            attachment TEXT NOT NULL
        ) STRICT""",
    ),
)

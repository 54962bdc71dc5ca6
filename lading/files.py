"""Replace a file as a whole, so that no reader finds a part of it."""

import os
from pathlib import Path

from lading.errors import HostError


def replace_file(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Write a new file beside the old one, then rename it. A reader sees the old content or the new one, and an error leaves
    the old one. Create missing folders. Raises HostError."""
    new = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        new.unlink(missing_ok=True)  # left by a writer that was killed
        _write_new(new, content, mode)
        new.replace(path)
    except OSError as e:
        raise HostError(f"cannot write {path}: {e.strerror or e}") from e


def _write_new(path: Path, content: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)  # sets the mode independent of the umask
        file.write(content)
        file.flush()
        os.fsync(descriptor)  # without fsync, a power loss may leave the new name without content

"""Output that is compared with a file, which `LADING_GOLDEN=write` writes anew. Look at what differs before you commit."""

import os
from pathlib import Path

WRITE = os.environ.get("LADING_GOLDEN") == "write"


def assert_recorded(path: Path, said: str) -> None:
    """With trailing blanks left out, which editors take away."""
    said = "".join(line.rstrip() + "\n" for line in said.splitlines())
    if WRITE:
        path.write_text(said)
    assert path.exists(), f"{path.name} is not there: LADING_GOLDEN=write"
    assert said == path.read_text()

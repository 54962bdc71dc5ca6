"""Output that is compared with a file, which `LADING_GOLDEN=write` writes anew. Look at what differs before you commit."""

import os
from pathlib import Path

WRITE = os.environ.get("LADING_GOLDEN") == "write"


def assert_recorded(path: Path, text: str) -> None:
    """With trailing blanks left out, which editors take away."""
    text = "".join(line.rstrip() + "\n" for line in text.splitlines())
    if WRITE:
        path.write_text(text)
    assert path.exists(), f"{path.name} is not there: LADING_GOLDEN=write"
    assert text == path.read_text()

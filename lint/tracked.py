"""List the files of this project that git tracks: the input of each check."""

import subprocess
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]


def list_tracked(*paths: str) -> list[str]:
    """Return the tracked files that match these pathspecs (gitglossary(7)), relative to ROOT; all files without any."""
    command = ["git", "ls-files", "--", *paths]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()  # noqa: S603

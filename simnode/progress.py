"""Run a command whose output matters only if it fails: `python3 simnode/progress.py WHAT COMMAND…`. Needs no packages.

It shows every few seconds how long the command has taken and the last line it printed; after a failure, all of its output.
"""

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

_EVERY_S = 5.0


def run(what: str, command: Sequence[str], *, env: Mapping[str, str] | None = None) -> int:
    """Return the exit status."""
    print(what, flush=True)
    began = shown = time.monotonic()
    text = []
    pipe, same = subprocess.PIPE, subprocess.STDOUT
    with subprocess.Popen(command, stdout=pipe, stderr=same, text=True, errors="replace", env=env) as running:  # noqa: S603
        for line in running.stdout or ():
            text.append(line)
            if time.monotonic() - shown > _EVERY_S:
                shown = time.monotonic()
                print(f"  {shown - began:3.0f} s  {line.strip()[:100]}", flush=True)
    if running.returncode:
        print("".join(text), end="", flush=True)
    return running.returncode


if __name__ == "__main__":
    raise SystemExit(run(sys.argv[1], sys.argv[2:]))

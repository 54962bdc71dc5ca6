"""Run the tests of shares, of a node's path and of frameworks on the card of this machine: `make test-gpu`.

    python -m tests.gpu [--pretend] [--seconds N] [TEST...]

It needs an NVIDIA card with its driver; root, containerd and runc for the node's path; and for each framework the framework, in
the first Python of PATH that has it. A test whose needs are not met is skipped by name. The driver's settings are not changed.
A machine without a compiler or a network brings what `python -m tests.gpu.kit` made (CONTRIBUTING.md). With --pretend, the
simulated node of the other tests is the machine, so that all of this can be tried without a card.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lading.errors import LadingError, die
from tests.gpu.machine import prepare
from tests.gpu.plugin import UNTIL

SECONDS: Final = 280  # no test begins later, because `make test-gpu` may take five minutes
SHARES: Final = "tests/shares"
# Tests of these files measure no time, so several may run at once.
TOGETHER: Final = tuple(f"{SHARES}/test_{name}.py" for name in ("counting", "memory", "names", "null_pointers", "nvml", "lost"))
# Tests that only a card can pass or fail come first, because the last ones may have to be left out.
ALONE: Final = (
    "tests/gpu",
    *(f"{SHARES}/test_{name}.py" for name in ("turns", "queue", "captures", "failures", "tokens", "kills")),
)
WORKERS: Final = 8


def run(*words: str) -> int:
    """Run pytest. Return 0 if no test failed."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.gpu.plugin",
        "-p",
        "no:cacheprovider",
        "-m",
        "not long",
        "--no-fold-skipped",
        *words,
    ]
    status = subprocess.run(command, check=False).returncode
    return 0 if status == 5 else status  # no test was selected


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="tests.gpu", description="Run tests on the card of this machine.")
    parser.add_argument("--pretend", action="store_true", help="take a simulated node for the machine")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="begin no test after so many seconds")
    parser.add_argument("tests", nargs="*", type=Path, help="run these alone, one after another")
    asked = parser.parse_args(argv)
    began = time.monotonic()
    os.environ[UNTIL] = str(began + asked.seconds)
    try:
        with prepare(pretend=asked.pretend) as card:
            print(f"the card: {card}", flush=True)
            if asked.tests:
                status = run(*map(str, asked.tests))
            else:
                workers = min(WORKERS, os.cpu_count() or 1)
                status = run(f"--numprocesses={workers}", *TOGETHER) | run(*ALONE)
    except LadingError as e:
        die(e)
    print(f"{time.monotonic() - began:.0f} s on {card}{' (pretended)' if asked.pretend else ''}")
    raise SystemExit(status)


if __name__ == "__main__":
    main()

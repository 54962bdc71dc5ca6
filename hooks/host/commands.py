"""Start a program and wait for its end, for a bounded time, while the loop serves others.

Tests: tests/unit/hooks/mps/test_daemons.py
"""

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Mapping, Sequence
from typing import Final

from lading.errors import HostError

_PATH: Final = "/usr/sbin:/usr/bin:/sbin:/bin"
_KILLED_S: Final = 1.0  # for the end of a program that was killed
_SHOWN: Final = 300  # characters of a program's output in a message


def bare_env() -> dict[str, str]:
    """Return the environment in which programs are found, and nothing else."""
    return {"PATH": os.environ.get("PATH", _PATH)}


async def run_command(argv: Sequence[str], *, env: Mapping[str, str], text: str = "", wait_s: float) -> str:
    """Run a command, and return its output. Raise HostError if the command fails, or has not ended after `wait_s`; it is then
    killed."""
    name = argv[0].rpartition("/")[2]
    try:
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=PIPE, stdout=PIPE, stderr=STDOUT, env=env, start_new_session=True
        )
    except OSError as e:
        raise HostError(f"cannot start {argv[0]}: {e.strerror or e}") from e
    try:
        async with asyncio.timeout(wait_s):
            output, _ = await process.communicate(text.encode())
    except TimeoutError as e:
        raise HostError(f"{name} gave no answer within {wait_s:g} s") from e
    finally:
        if process.returncode is None:
            await _kill(process)
    message = output.decode(errors="replace").strip()
    if process.returncode:
        raise HostError(f"{name} ended with status {process.returncode}: {message[-_SHOWN:] or 'it said nothing'}")
    return message


async def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill the process and its children. A process that is stuck in the kernel is collected by the event loop when it ends."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_KILLED_S):
            await process.communicate()  # returns when no process has the output open any more

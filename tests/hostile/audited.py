"""Run a daemon of Lading, and record what it starts, loads, or puts into its environment (PEP 578).

    python -m tests.hostile.audited FILE lading-hooks|lading-runtimeproxy ARGUMENT…

An audit hook sees every process that Python starts, every library that ctypes loads, every change of os.environ, and every
import; it cannot be removed. The hook does not see actions of C code, but neither daemon has C code that forks.
"""

import os
import sys
from typing import Final

EVENTS: Final = frozenset(
    {
        *("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "pty.spawn"),
        *("os.putenv", "os.unsetenv", "ctypes.dlopen", "import", "exec", "compile"),
    }
)


def main() -> None:
    _, file, command, *arguments = sys.argv
    out = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)

    def note(event: str, details: tuple[object, ...]) -> None:
        if event in EVENTS:
            os.write(out, f"{event} {str(details)[:200]!r}\n".encode(errors="backslashreplace"))

    sys.addaudithook(note)
    sys.argv = [command, *arguments]
    if command == "lading-hooks":
        from hooks.main import main as run  # noqa: PLC0415  both are imported under the hook's eyes
    else:
        from runtimeproxy.main import main as run  # noqa: PLC0415
    run(arguments)


if __name__ == "__main__":
    main()

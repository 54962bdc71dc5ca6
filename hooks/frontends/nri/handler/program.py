"""The runtime handler's program as a file of the host, and which annotations of a pod containerd has to pass to it.

containerd copies annotations of a pod into its containers' configurations where they match `pod_annotations` of the handler
(Go's path.Match). There the program cannot tell them from a plugin's. So every key below the guarded prefixes has to match, but
not `lading.dev/grant`: with it, a pod's author could write its own.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hooks.forms.annotations import prefixes
from hooks.frontends.nri.compiled.program import Program
from lading.files import replace_file
from lading.vocabulary import GRANT

HANDLER: Final = "lading"  # of containerd's runtimes, and of the RuntimeClass
PROGRAM: Final = "lading-runc"
VERSION_MARK: Final = f"{PROGRAM} "
RUNC: Final = Program(name=PROGRAM, what="runtime handler", mark=VERSION_MARK, package=Path(__file__).parent)


def install(program: Path, folder: Path) -> Path:
    """Put the program into a folder, in one step: containers' shims start it whenever they like. Return where. Raise HostError
    if another file is there."""
    path = folder / PROGRAM
    RUNC.check_ours(path)
    replace_file(path, RUNC.read(program), mode=0o755)
    return path


def pod_annotations() -> tuple[str, ...]:
    """Return the patterns of the handler's `pod_annotations`."""
    return tuple(pattern for prefix in prefixes() for pattern in _every_but_grant(prefix))


def _every_but_grant(prefix: str) -> Iterator[str]:
    """Yield patterns that, together, match every key below a prefix but GRANT."""
    if not GRANT.startswith(prefix):
        yield f"{prefix}*"
        return
    for at in range(len(prefix), len(GRANT)):
        if at > len(prefix):
            yield GRANT[:at]
        yield f"{GRANT[:at]}[^{GRANT[at]}]*"
    yield f"{GRANT}?*"

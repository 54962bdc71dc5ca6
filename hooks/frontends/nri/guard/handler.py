"""Install the runtime handler's program on the host, and list the pod annotations that containerd must pass to the program.

containerd copies a pod's annotations into its containers' configurations where they match the handler's `pod_annotations` (Go's
path.Match). The program cannot tell such copies from annotations that a plugin added. So every key below the guarded prefixes
has to match, except `lading.dev/grant`: otherwise a pod author could write a grant.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hooks.forms.annotations import prefixes
from hooks.frontends.nri.guard.program import Program
from lading.files import replace_file
from lading.vocabulary import GRANT

HANDLER: Final = "lading"  # name in containerd's runtimes, and handler of the RuntimeClass
PROGRAM: Final = "lading-runc"
VERSION_MARK: Final = f"{PROGRAM} "
RUNC: Final = Program(what="runtime handler", mark=VERSION_MARK)


def install(program: Path, folder: Path) -> Path:
    """Put the program into a folder, atomically because containers' shims may start it at any moment. Return its path. Raise
    HostError if a file of others is there."""
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

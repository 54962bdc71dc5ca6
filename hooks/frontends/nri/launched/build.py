"""`python -m hooks.frontends.nri.launched.build`: compile the launched guard, a static program, for x86-64 and aarch64.

Its rule, texts and version are those of the Python guard: `rule.h` is made from what that one answers.
"""

import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hooks.forms.annotations import prefixes
from hooks.frontends.nri.guard import GuardRules, check_container
from hooks.frontends.nri.guard_plugin import INDEX, NAME
from hooks.frontends.nri.launched.program import VERSION_MARK
from hooks.frontends.nri.messages import status_of
from hooks.model.container import Sandbox
from lading import __version__
from lading.compiling import WARNINGS, compile_for_nodes, run_compiler
from lading.http2.messages import Status
from lading.vocabulary import ATTACHMENTS, GRANT

HERE: Final = Path(__file__).parent
_SOURCES: Final = ("frames.c", "guard.c", "protobuf.c")
STATIC: Final = ("-O2", "-static", "-s", "-Wl,--build-id=none")


def build(out: Path, compiler: Sequence[str], *, flags: Sequence[str] = STATIC) -> None:
    """Compile the guard. Raise HostError with what the compiler said."""
    with tempfile.TemporaryDirectory(prefix="lading-guard-") as name:
        built = Path(name) / "guard"
        Path(name, "rule.h").write_text(render_rule())
        sources = [str(HERE / source) for source in _SOURCES]
        mapped = [f"-ffile-prefix-map={HERE}=.", f"-ffile-prefix-map={name}=."]
        run_compiler([*compiler, *WARNINGS, *flags, *mapped, f"-I{name}", *sources, "-o", str(built)])
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(built, out)
        out.chmod(0o755)


def render_rule() -> str:
    """Return `rule.h`."""
    guarded = prefixes()
    ungranted_status, ungranted = _refused(f"{guarded[0]}some-annotation")
    reserved_status, reserved_grant = _refused(GRANT)
    _, reserved_attachments = _refused(ATTACHMENTS)
    texts = {
        "VERSION": __version__,
        "VERSION_MARK": VERSION_MARK,
        "NAME": NAME,
        "INDEX": INDEX,
        "GRANT": GRANT,
        "ATTACHMENTS": ATTACHMENTS,
        "UNGRANTED_TEXT": ungranted,
        "RESERVED_GRANT": reserved_grant,
        "RESERVED_ATTACHMENTS": reserved_attachments,
    }
    codes = {
        "UNGRANTED": ungranted_status,
        "RESERVED": reserved_status,
        "INVALID_ARGUMENT": Status.INVALID_ARGUMENT,
        "UNIMPLEMENTED": Status.UNIMPLEMENTED,
    }
    lines = [f"#define {name} {json.dumps(text)}" for name, text in texts.items()]
    lines += [f"#define {name} {code:d}" for name, code in codes.items()]
    lines.append(f"static const char *const PREFIXES[] = {{{', '.join(map(json.dumps, guarded))}}};")
    return "\n".join(lines) + "\n"


def _refused(key: str) -> tuple[Status, str]:
    """Return how the guard refuses a container, without a grant, of a pod with this annotation."""
    refusal = check_container(Sandbox(annotations={key: ""}), {}, GuardRules(prefixes=prefixes()))
    assert refusal is not None  # noqa: S101  the guard refuses both keys, or nothing is built
    return status_of(refusal)


def main(argv: Sequence[str] | None = None) -> None:
    compile_for_nodes(
        argv,
        module="hooks.frontends.nri.launched.build",
        folder=HERE / "built",
        abi="linux-musl",
        names=["ladingguard"],
        build=build,
    )


if __name__ == "__main__":
    main()

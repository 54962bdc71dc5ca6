"""Compile a static program that decides like the Python guard, with the same rule, texts and version.

The header `texts.h` is generated from the Python guard's answers.

Tests: tests/unit/hooks/frontends/nri/test_launched.py
"""

import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from hooks.forms.annotations import prefixes
from hooks.frontends.nri.guard import GuardRules, check_container
from hooks.model.container import Sandbox
from lading import __version__
from lading.compiling import WARNINGS, run_compiler
from lading.files import replace_file
from lading.http2.messages import GrpcStatus
from lading.refusals import render_refusal
from lading.vocabulary import ATTACHMENTS, GRANT

_HERE: Final = Path(__file__).parent
STATIC: Final = ("-O2", "-static", "-s", "-Wl,--build-id=none")


def compile_program(
    out: Path, compiler: Sequence[str], sources: Iterable[Path], texts: Mapping[str, str | int], *, flags: Sequence[str]
) -> None:
    """Compile the sources, and `rule.c`, into one file. `texts`: the program's values in `texts.h`, besides the rule's. Raise
    HostError with the compiler's output."""
    every = [_HERE / "rule.c", *sources]
    folders = sorted({source.parent for source in every})
    with tempfile.TemporaryDirectory(prefix="lading-compiled-") as name:
        built = Path(name) / out.name
        Path(name, "texts.h").write_text(render_texts(texts))
        mapped = [f"-ffile-prefix-map={folder}=." for folder in (*folders, name)]
        included = [f"-I{folder}" for folder in (name, *folders)]
        run_compiler([*compiler, *WARNINGS, *flags, *mapped, *included, *map(str, every), "-o", str(built)])
        replace_file(out, built.read_bytes(), mode=0o755)


def render_texts(more: Mapping[str, str | int]) -> str:
    """Return `texts.h`."""
    guarded = prefixes()
    ungranted_status, ungranted = _refused(f"{guarded[0]}some-annotation")
    reserved_status, reserved_grant = _refused(GRANT)
    _, reserved_attachments = _refused(ATTACHMENTS)
    values: dict[str, str | int] = {
        "VERSION": __version__,
        "GRANT": GRANT,
        "ATTACHMENTS": ATTACHMENTS,
        "UNGRANTED": int(ungranted_status),
        "UNGRANTED_TEXT": ungranted,
        "RESERVED": int(reserved_status),
        "RESERVED_GRANT": reserved_grant,
        "RESERVED_ATTACHMENTS": reserved_attachments,
        **more,
    }
    lines = [f"#define {name} {json.dumps(value)}" for name, value in values.items()]
    lines.append(f"#define PREFIXES {{{', '.join(map(json.dumps, guarded))}}}")
    return "\n".join(lines) + "\n"


def _refused(key: str) -> tuple[GrpcStatus, str]:
    """Return the guard's refusal of a container without a grant, in a pod with this annotation: status and message."""
    refusal = check_container(Sandbox(annotations={key: ""}), {}, GuardRules(prefixes=prefixes()))
    assert refusal is not None  # noqa: S101  the guard refuses both keys, or nothing is built
    return render_refusal(refusal.reason, refusal.message)

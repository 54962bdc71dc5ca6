"""Compile the guard, a static program, for x86-64 and aarch64: `python -m hooks.frontends.nri.guard.build`.

The header `texts.h` is generated: the rule's verdicts and texts, events of the log, names and the version are those of Python.

Tests: tests/unit/hooks/frontends/nri/guard/test_answers.py
"""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hooks.forms.annotations import prefixes
from hooks.frontends.nri.guard.handler import PROGRAM, RUNC
from hooks.frontends.nri.guard.launched import GUARD, IGNORED, INDEX, NAME
from hooks.frontends.nri.guard.rule import check_container
from hooks.frontends.nri.wire import MAX_RECEIVED
from lading import __version__
from lading.compiling import NATIVE, STATIC, WARNINGS, compile_for_nodes, run_compiler
from lading.files import replace_file
from lading.http2.messages import GrpcStatus
from lading.log import JOURNAL_SOCKET, Event
from lading.reasons import render_refusal
from lading.vocabulary import GRANT, RESERVED

_HERE: Final = Path(__file__).parent
_KEYS: Final = (
    f"{prefixes()[0]}some-annotation",
    *RESERVED,
)  # keys that make a difference; the bits of a set are in this order
_SETS: Final = range(1 << len(_KEYS))


def build(out: Path, compiler: Sequence[str], *, flags: Sequence[str] = STATIC) -> None:
    """Compile the program. Raise HostError with the compiler's output."""
    with tempfile.TemporaryDirectory(prefix="lading-guard-") as name:
        built = Path(name, "built")
        Path(name, "texts.h").write_text(render_texts())
        mapped = [f"-ffile-prefix-map={folder}=." for folder in (_HERE, NATIVE, name)]
        sources = [str(source) for source in (*sorted(_HERE.glob("*.c")), NATIVE / "json.c")]
        run_compiler(
            [*compiler, *WARNINGS, *flags, *mapped, f"-I{name}", f"-I{_HERE}", f"-I{NATIVE}", *sources, "-o", str(built)]
        )
        replace_file(out, built.read_bytes(), mode=0o755)


def render_texts() -> str:
    refusals, verdicts = _ask_rule()
    values: dict[str, str | int] = {
        "VERSION": __version__,
        "GUARD_MARK": GUARD.mark,
        "NAME": NAME,
        "INDEX": INDEX,
        "IGNORED": IGNORED,
        "RUNC_MARK": RUNC.mark,
        "RUNC": PROGRAM,
        "GRANTED": 1 << _KEYS.index(GRANT),
        "INVALID_ARGUMENT": int(GrpcStatus.INVALID_ARGUMENT),
        "UNIMPLEMENTED": int(GrpcStatus.UNIMPLEMENTED),
        "MAX_RECEIVED": MAX_RECEIVED,
        "JOURNAL_SOCKET": JOURNAL_SOCKET,
        "LOG_NAME": "lading-nri-guard",
        **{
            event.name: event.value
            for event in (Event.DAEMON_STARTED, Event.DAEMON_STOPPED, Event.NRI_CONNECTED, Event.NRI_LOST)
        },
    }
    lists = {"PREFIXES": prefixes(), "RESERVED": RESERVED, "REFUSALS": refusals, "VERDICTS": verdicts}
    lines = [f"#define {name} {json.dumps(value)}" for name, value in values.items()]
    lines += [f"#define {name} {_initializer(value)}" for name, value in lists.items()]
    return "\n".join(lines) + "\n"


def _ask_rule() -> tuple[list[tuple[int, str]], list[list[int]]]:
    """Return each refusal as status and text, the first for allowed containers, and the index of a refusal by the sets of
    annotations of pod and container."""
    refusals: list[tuple[int, str]] = [(0, "")]
    verdicts: list[list[int]] = []
    for pod in _SETS:
        verdicts.append([])
        for container in _SETS:
            refusal = check_container(_annotations(pod), _annotations(container))
            rendered = (0, "") if refusal is None else render_refusal(refusal.reason, refusal.message)
            if rendered not in refusals:
                refusals.append(rendered)
            verdicts[-1].append(refusals.index(rendered))
    return refusals, verdicts


def _annotations(bits: int) -> dict[str, str]:
    return {key: "" for place, key in enumerate(_KEYS) if bits >> place & 1}


def _initializer(value: object) -> str:
    """Return a value, or a list of values, as C."""
    if isinstance(value, list | tuple):
        return f"{{{', '.join(map(_initializer, value))}}}"
    return json.dumps(value)


def main(argv: Sequence[str] | None = None) -> None:
    module = "hooks.frontends.nri.guard.build"
    compile_for_nodes(argv, module=module, folder=_HERE / "built", abi="linux-musl", names=[NAME], build=build)


if __name__ == "__main__":
    main()

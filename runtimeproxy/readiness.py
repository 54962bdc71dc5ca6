"""Decide when the proxy can do all of its work: the conditions of `/readyz`.

Calls of pods without our annotations are served in any case. No registration at all is a failed condition while there are
guarded prefixes: every pod that carries one is refused then.
"""

from collections.abc import Mapping, Sequence

from lading.health import Condition


def decide_ready(
    *,
    runtime: str,
    socket: str,
    stopping: bool,
    hooks_dir: str,
    hooks_dir_problems: Sequence[str],
    hook_silences: Mapping[str, str],
    guarded_prefixes: Sequence[str],
    denied: Sequence[str] = (),
) -> tuple[Condition, ...]:
    """Return the conditions. `runtime` and `socket` say what is wrong with them, or are empty; so does `hook_silences` for each
    registration. `denied` has the files that cannot be opened."""
    unhooked = f"no registration: pods with {', '.join(guarded_prefixes)} are refused" if guarded_prefixes else ""
    folder = "; ".join(hooks_dir_problems) or ("" if hook_silences else unhooked)
    return (
        Condition.unless(runtime, name="runtime"),
        Condition.unless("stopping" if stopping else socket, name="socket"),
        Condition.unless(folder and f"{hooks_dir}: {folder}", name="hooks-dir"),
        Condition.unless("; ".join(denied), name="files", required=False),
        *(Condition.unless(silence, name=f"hook {name}") for name, silence in hook_silences.items()),
    )

"""Decide whether the proxy can do all of its work: the conditions of `/readyz`.

Calls of pods without Lading's annotations are served even if the proxy is not ready. The proxy is not ready if it guards
prefixes but has no registration, because every pod with such an annotation is then refused.
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
    """Return the conditions. `runtime`, `socket` and each value of `hook_silences` (by registration) describe a problem, or
    are empty. `denied` has the files that cannot be opened."""
    unhooked = f"no registration: pods with {', '.join(guarded_prefixes)} are refused" if guarded_prefixes else ""
    folder = "; ".join(hooks_dir_problems) or ("" if hook_silences else unhooked)
    return (
        Condition.unless(runtime, name="runtime"),
        Condition.unless("stopping" if stopping else socket, name="socket"),
        Condition.unless(folder and f"{hooks_dir}: {folder}", name="hooks-dir"),
        Condition.unless("; ".join(denied), name="files", required=False),
        *(Condition.unless(silence, name=f"hook {name}") for name, silence in hook_silences.items()),
    )

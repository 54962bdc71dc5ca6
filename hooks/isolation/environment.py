"""Replace environment variables by which a pod would circumvent its isolation.

A variable that switches an isolation off, or sets other amounts, is replaced by an empty variable. This also overrides the
image, because the CRI request's environment wins. The proxy logs the names (`env.replaced`). A library that the pod preloads
(an allocator, a profiler) may come before the isolation's library: the variable is kept, and is reported.

The hook server receives the names of the pod's own variables only. The image's variables matter only if the isolation sets them
too.
"""

from typing import Final

from hooks.model.container import Adjustment, Container, EnvVar

_PREFIXES: Final = ("CUDA_DEVICE_MEMORY_", "CUDA_MPS_", "LADING_GPU_")
_NAMES: Final = frozenset({"CUDA_DISABLE_CONTROL", "CUDA_REDIRECT"})  # HAMi-core's
_PRELOADS: Final = ("LD_PRELOAD", "LD_AUDIT")


def overrule(container: Container, given: Adjustment) -> Adjustment:
    """Return such variables of the container, empty, unless `given` sets them."""
    kept = {env.name for env in given.env}
    names = dict.fromkeys(env.name for env in container.env if env.name.startswith(_PREFIXES) or env.name in _NAMES)
    return Adjustment(env=tuple(EnvVar(name) for name in names if name not in kept))


def find_preloads(container: Container) -> tuple[str, ...]:
    names = {env.name for env in container.env}
    return tuple(name for name in _PRELOADS if name in names)

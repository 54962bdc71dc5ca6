"""Write amounts, counts, lists, ages, names and distances as text, as briefly as kubectl does. Pure."""

from collections.abc import Sequence
from typing import Final

from central.search.topology import Distance
from central.view.model import DeviceCounts, Ending, HolderView, Past, Use
from central.view.pods import PodView
from lading.amounts import divide, first_few, format_gib

_NAMED: Final = 5  # maximum names shown of a list, so that all findings fit on a screen
DISTANCES: Final = {  # texts of the distances in docs/reference.md
    Distance.SWITCH: "same switch",
    Distance.SWITCHES: "several switches below one root port",
    Distance.BRIDGE: "same host bridge",
    Distance.NUMA: "same NUMA node",
    Distance.SOCKET: "same socket",
    Distance.CROSS: "across",
}
_MINUTE: Final = 60
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
NONE: Final = "-"  # text of a value that is not reported or does not exist
gib = format_gib


def use_of(use: Use) -> tuple[str, str]:
    """Write a card's use as reported by the driver: memory in use, and busy percent."""
    memory = NONE if use.memory_mib is None else gib(use.memory_mib)
    return memory, NONE if use.busy_percent is None else f"{use.busy_percent}%"


def count(number: int, one: str, many: str = "") -> str:
    """Write a count: 1 GPU, 2 GPUs. `many`: the plural, if an s does not make it."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def listed(names: Sequence[str], most: int = _NAMED) -> str:
    return first_few(names, most)


def of_gib(mib: int, all_mib: int) -> str:
    return f"{gib(mib).removesuffix('Gi')}/{gib(all_mib)}"


def percent(part: int, whole: int) -> str:
    return f"{divide(100 * part, whole)}%" if whole else NONE


def counts(of: DeviceCounts) -> str:
    """Write the counts of devices by state, and their total: 3/4/1/8."""
    return "/".join(map(str, (*of, of.total))) if of.total else NONE


def counts_as_text() -> str:
    return "/".join((*DeviceCounts._fields, "total"))


def use_as_text(mib: int | None, busy_percent: int | None) -> str:
    text = [] if mib is None else [gib(mib)]
    text += [] if busy_percent is None else [f"{busy_percent}%"]
    return " ".join(text) or NONE


def age(seconds: float) -> str:
    """Write an age as kubectl's AGE does (k8s.io/apimachinery duration.HumanDuration)."""
    left = max(0, int(seconds))
    if left < 2 * _MINUTE:
        return f"{left}s"
    if left < 3 * _HOUR:
        return _two(left, _MINUTE, "m", 1, "s", until=10)
    if left < 2 * _DAY:
        return _two(left, _HOUR, "h", _MINUTE, "m", until=8)
    return _two(left, _DAY, "d", _HOUR, "h", until=8)


def _two(seconds: int, unit: int, name: str, below: int, its_name: str, *, until: int) -> str:
    """Write seconds in two units; only in the larger one from `until` of it on: 7h30m, but 8h."""
    number, rest = divmod(seconds, unit)
    fine = rest // below if number < until else 0
    return f"{number}{name}" + (f"{fine}{its_name}" if fine else "")


def short_uuid(uuid: str) -> str:
    """Return the first part of a UUID, which distinguishes the cards of a cluster; `kubectl lading gpu` accepts it."""
    kind, _, rest = uuid.partition("-")
    return f"{kind}-{rest.partition('-')[0]}" if rest else uuid


def short_bdf(bdf: str) -> str:
    """Return the PCI address without the domain 0000, which nearly all PCI addresses have."""
    return bdf.removeprefix("0000:")


def pod_name(one: HolderView | Past | Ending | PodView) -> str:
    """Write a pod as NAMESPACE/NAME, or by its uid if the name is unknown."""
    return f"{one.namespace}/{one.pod}" if one.pod else f"pod {one.uid}"

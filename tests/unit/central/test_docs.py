"""docs/central.md names every setting, reason, metric and event of central, and no other."""

import re
from pathlib import Path
from typing import Final

import msgspec

from central.api.lease import Terms
from central.evict import NOMINATION_S, SPARED_S
from central.fit.model import Missing
from central.metrics import Metrics
from central.scheduler import ELSEWHERE, ENDED, PREDICTION_S
from central.settings import Settings
from central.wake import LOOK_S as WAKE_LOOK_S
from central.warn import AT_ONCE, LOOK_S, QUIET_S
from lading.log import Event
from lading.settings import declared

ROOT: Final = Path(__file__).parents[3]
DOCS: Final = (ROOT / "docs/central.md").read_text()


def section(title: str) -> str:
    return DOCS.split(f"\n## {title}\n")[1].split("\n## ")[0]


def first_cells(title: str) -> list[str]:
    """What stands in backquotes in the first column."""
    rows = re.findall(r"^\| (`[^|]*`) \|", section(title), re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def test_settings_with_their_defaults() -> None:
    shown = re.findall(r"^\| `(\w+)` \| `([^`]*)` \| (.*) \|$", section("Settings"), re.MULTILINE)
    expected = [
        (key, msgspec.json.encode(msgspec.to_builtins(default)).decode(), setting.help)
        for key, _, setting, default in declared(Settings)
    ]
    assert shown == expected


def test_reasons() -> None:
    assert first_cells("Why a pod waits") == sorted(first_cells("Why a pod waits"), key=_unresolvable)
    assert set(first_cells("Why a pod waits")) == {*(missing.value for missing in Missing), ELSEWHERE, ENDED}


def _unresolvable(reason: str) -> bool:
    """The page says that the first ones can change."""
    return reason in {ELSEWHERE, ENDED} or Missing(reason).unresolvable


def test_numbers() -> None:
    terms = Terms()
    seconds = {terms.retry_s, terms.renew_deadline_s, terms.duration_s, terms.request_timeout_s}
    assert {float(number) for number in re.findall(r"([\d.]+) s\b", section("Replicas").split("\n\n- ")[0])} == seconds
    assert f"{PREDICTION_S:g} s" in section("What it decides")
    assert f"every {WAKE_LOOK_S:g} s" in section("Wake")
    assert {f"every {QUIET_S:g} s", f"{AT_ONCE / LOOK_S:g} pods a second"} <= set(
        re.findall(r"every \d+ s|\d+ pods a second", section("Devices that fall ill"))
    )
    assert {f"{SPARED_S:g} s", f"{NOMINATION_S:g} s"} <= set(re.findall(r"\d+ s\b", section("Preemption")))


def test_metrics() -> None:
    source = (ROOT / "central/metrics.py").read_text()
    registered = {metric.name: metric.type for metric in Metrics(lambda: None, lambda: False).registry.collect()}
    named = set(re.findall(r'"(lading_(?:central|build)_\w+)"', source))
    assert named >= {name for name in registered if name.startswith("lading_")}
    expected = {f"{name}_total" if registered.get(name) == "counter" else name for name in named}
    assert set(first_cells("Metrics")) == expected


def test_events() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "central").rglob("*.py"))
    used = {Event[name].value for name in re.findall(r"\bEvent\.([A-Z_]+)\b", sources)}
    assert set(first_cells("The log")) == {event for event in used if not event.startswith("daemon.")}


def test_the_architecture_names_every_module() -> None:
    text = (ROOT / "docs/architecture.md").read_text().split("\n## `central/`\n")[1].split("\n## ")[0]
    room, named = "", set()
    for cell in re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE):
        if header := re.fullmatch(r"\*\*(?:`(\w+)/`|the daemon)\*\*", cell.strip()):
            room = f"{header[1]}/" if header[1] else ""
        named |= {room + name for name in re.findall(r"`(\w+\.py)`", cell)}
    modules = {path.relative_to(ROOT / "central").as_posix() for path in (ROOT / "central").rglob("*.py")}
    assert named == {module for module in modules if not module.endswith("__init__.py")}

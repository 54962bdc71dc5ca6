import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest

from doctor.host import Host
from doctor.read import show_units
from doctor.units import PROPERTIES, decide_units
from hooks.daemon.settings import Settings
from lading.checks.model import Verdict
from lading.devices.isolation import IsolationName
from lading.errors import HostError
from runtimeproxy.settings import Settings as ProxySettings
from tests.unit.doctor.verdicts import states


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    load: str = "loaded"
    active: str = "active"
    file: str = "enabled"
    reload: str = "no"
    sub: str = "running"
    result: str = "success"
    code: str = "1"  # CLD_EXITED
    status: str = "0"
    restarts: int = 0

    def shown(self) -> str:
        """Return the unit as `systemctl show` prints it."""
        return (
            f"Id=x.service\nLoadState={self.load}\nActiveState={self.active}\nSubState={self.sub}\n"
            f"UnitFileState={self.file}\nResult={self.result}\nExecMainCode={self.code}\nExecMainStatus={self.status}\n"
            f"NRestarts={self.restarts}\nNeedDaemonReload={self.reload}\n"
        )


@pytest.mark.parametrize(
    ("unit", "state", "mend"),
    [
        (Unit(), Verdict.OK, ""),
        (Unit(load="not-found", active="inactive", file=""), Verdict.FAILED, "daemon-reload"),
        (Unit(load="masked", active="inactive", file="masked"), Verdict.FAILED, "unmask x.service"),
        (Unit(active="failed"), Verdict.FAILED, "journalctl -u x.service"),
        (Unit(active="activating", sub="start"), Verdict.OK, ""),
        (Unit(active="activating", sub="auto-restart", status="2", restarts=7), Verdict.FAILED, "x --check-config"),
        (Unit(active="activating", sub="start", restarts=7), Verdict.FAILED, "journalctl -u x.service"),  # over and over
        (Unit(active="inactive"), Verdict.FAILED, "enable --now x.service"),
        (Unit(file="disabled"), Verdict.WARNING, "enable x.service"),
        (Unit(reload="yes"), Verdict.WARNING, "daemon-reload"),
    ],
)
def test_one_unit(unit: Unit, state: Verdict, mend: str) -> None:
    (verdict,) = decide_units(unit.shown())
    assert verdict.verdict is state
    assert mend in verdict.mend


@pytest.mark.parametrize(
    ("unit", "ended"),
    [
        (Unit(active="failed", result="exit-code", status="203"), "exit-code, exit status 203 "),
        (Unit(active="failed", result="signal", code="2", status="2"), "signal, signal 2"),  # is no exit status 2
        (Unit(active="failed", result="watchdog", code="3", status="6"), "watchdog, signal 6"),
        (Unit(active="failed", result="trigger-limit-hit", code="", status=""), "trigger-limit-hit"),  # a socket ends so
    ],
)
def test_how_a_unit_ended_is_reported(unit: Unit, ended: str) -> None:
    (verdict,) = decide_units(unit.shown())
    what, _, text = verdict.what.partition(": ")
    assert "x.service" in what
    assert text.startswith(ended)
    assert ("(" in text) is ended.endswith(" ")  # the meaning of the status, in parentheses


def test_several_units() -> None:
    shown = "\n".join(unit.shown() for unit in (Unit(), Unit(active="failed")))
    assert states(decide_units(shown)) == [Verdict.FAILED, Verdict.OK]


def test_no_systemd_to_ask(tmp_path: Path) -> None:
    assert states(decide_units(show_units(tmp_path, PROPERTIES, ["x.service"], 1.0))) == [Verdict.SKIPPED]


@pytest.mark.parametrize(("isolations", "asked"), [((IsolationName.NONE,), False), ((IsolationName.TOKENS,), True)])
def test_the_share_server_where_shares_are_kept_by_turns(
    isolations: tuple[IsolationName, ...], asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    units: list[str] = []
    monkeypatch.setattr("doctor.host.show_units", lambda _, __, wanted, ___: units.extend(wanted))
    asyncio.run(Host(hooks=Settings(isolations=isolations), proxy=ProxySettings(), configs={}, root=Path("/")).units())
    assert ("lading-shares.service" in units) is asked


def test_a_systemd_that_does_not_answer_does_not_hide_kubelet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: object) -> str:
        raise HostError("cannot ask systemd: no answer")

    monkeypatch.setattr("doctor.host.show_units", hang)
    (tmp_path / "proc/812").mkdir(parents=True)
    (tmp_path / "proc/812/cmdline").write_text("kubelet\0")
    reading = asyncio.run(Host(hooks=Settings(), proxy=ProxySettings(), configs={}, root=tmp_path).kubelet())
    assert (str(reading.process), reading.by_systemd) == ("kubelet (pid 812)", False)

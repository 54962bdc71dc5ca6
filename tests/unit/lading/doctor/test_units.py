from dataclasses import dataclass
from pathlib import Path

import pytest

from lading.doctor.model import State
from lading.doctor.read import read_units
from lading.doctor.units import UnitsSeen, decide_units
from tests.unit.lading.doctor.verdicts import states


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    load: str = "loaded"
    active: str = "active"
    file: str = "enabled"
    reload: str = "no"
    sub: str = "running"
    status: str = "0"
    restarts: int = 0

    def shown(self) -> str:
        """As `systemctl show` prints it."""
        return (
            f"Id=x.service\nLoadState={self.load}\nActiveState={self.active}\nSubState={self.sub}\n"
            f"UnitFileState={self.file}\nResult=success\nExecMainStatus={self.status}\nNRestarts={self.restarts}\nNeedDaemonReload={self.reload}\n"
        )


@pytest.mark.parametrize(
    ("unit", "state", "mend"),
    [
        (Unit(), State.OK, ""),
        (Unit(load="not-found", active="inactive", file=""), State.FAILED, "daemon-reload"),
        (Unit(load="masked", active="inactive", file="masked"), State.FAILED, "unmask x.service"),
        (Unit(active="failed"), State.FAILED, "journalctl -u x.service"),
        (Unit(active="activating", sub="start"), State.OK, ""),
        (Unit(active="activating", sub="auto-restart", status="2", restarts=7), State.FAILED, "x --check-config"),
        (Unit(active="activating", sub="start", restarts=7), State.FAILED, "journalctl -u x.service"),  # over and over
        (Unit(active="inactive"), State.FAILED, "enable --now x.service"),
        (Unit(file="disabled"), State.WARNING, "enable x.service"),
        (Unit(reload="yes"), State.WARNING, "daemon-reload"),
    ],
)
def test_one_unit(unit: Unit, state: State, mend: str) -> None:
    (verdict,) = decide_units(UnitsSeen(shown=unit.shown()))
    assert verdict.state is state
    assert mend in verdict.mend


def test_several_units() -> None:
    shown = "\n".join(unit.shown() for unit in (Unit(), Unit(active="failed")))
    assert states(decide_units(UnitsSeen(shown=shown))) == [State.FAILED, State.OK]


def test_no_systemd_to_ask(tmp_path: Path) -> None:
    assert states(decide_units(read_units(tmp_path, ["x.service"]))) == [State.SKIPPED]

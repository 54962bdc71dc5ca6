"""Test `lading-hooks audit` beside an open ledger, on a simulated node and on a machine that is no node."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hooks.ledger.period import End
from hooks.ledger.store import Ledger
from hooks.main import main
from hooks.model.assignment import GrantedDevices, GrantedGpu, GrantedVf
from lading.vocabulary import GpuUuid, PciAddress, PodUid
from tests.conftest import BuildNode
from tests.fakes.holders import LONG_AGO, NOW, grant

CARD = GpuUuid("GPU-00000001-4c61-6469-6e67-000000001efc")  # index 0, 0000:1a:00.0
VF = PciAddress("0000:18:00.2")
BOTH = GrantedDevices(gpus=(GrantedGpu(uuid=CARD),), vfs=(GrantedVf(bdf=VF),))

Run = Callable[..., tuple[int, str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    ledger: Path
    run: Run  # exit status, stdout, stderr

    def devices(self, *argv: str) -> list[tuple[str, str | None]]:
        """Return the devices and until when each was held."""
        status, out, err = self.run("-o", "json", *argv)
        assert (status, err) == (0, "")
        return [(entry["device"], entry["until"]) for entry in json.loads(out)["entries"]]


def at(folder: Path, capfd: pytest.CaptureFixture[str], **settings: object) -> Desk:
    config, state = folder / "hooks.toml", folder / "state"
    config.write_text("".join(f'{key} = "{value}"\n' for key, value in {"state_dir": state, **settings}.items()))

    def run(*argv: str) -> tuple[int, str, str]:
        capfd.readouterr()
        status: Any = 0
        try:
            main(["audit", "--config", str(config), *argv])
        except SystemExit as e:
            status = e.code
        shown = capfd.readouterr()
        return status, shown.out, shown.err

    return Desk(ledger=state / "node.db", run=run)


@pytest.fixture
def desk(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Desk:
    """Run the command on a machine that is no node, so that only the ledger is read."""
    return at(tmp_path, capfd, host_root=tmp_path / "none")


def test_without_a_ledger_no_one_held_anything(desk: Desk) -> None:
    assert desk.devices() == []
    assert len(desk.run()[1].splitlines()) == 1
    assert not desk.ledger.parent.exists()


def test_it_is_read_beside_the_daemon_that_writes_it(desk: Desk) -> None:
    with Ledger.open(desk.ledger) as ledger:
        ledger.record(grant(devices=BOTH))
        assert desk.devices() == [(CARD, None), (VF, None)]
        ledger.release(PodUid("pod-1"), end=End(at=NOW))
        assert desk.devices() == [(CARD, "1970-01-24T03:33:20Z"), (VF, "1970-01-24T03:33:20Z")]


def test_what_is_asked_for(desk: Desk) -> None:
    with Ledger.open(desk.ledger) as ledger:
        ledger.record(grant(devices=BOTH))
        ledger.release(PodUid("pod-1"), end=End(at=LONG_AGO + 60))
        ledger.record(grant("pod-2", devices=BOTH, granted_at=NOW))
    assert [until for _, until in desk.devices("--since", "1970-01-20")] == [None, None]
    assert [device for device, _ in desk.devices("--device", VF, "--pod", "name-of-pod-1")] == [VF]
    assert [device for device, _ in desk.devices("--device", CARD)] == [CARD, CARD]
    assert CARD in desk.run("--pod", "pod-2")[1]


def test_a_card_has_an_address_too(
    build_node: BuildNode, fake_nvml: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    desk = at(tmp_path, capfd, host_root=build_node("demo-8gpu").root, nvml_library=fake_nvml)
    with Ledger.open(desk.ledger) as ledger:
        ledger.record(grant(devices=BOTH))
    assert [device for device, _ in desk.devices("--device", "0000:1A:00.0")] == [CARD]
    assert [device for device, _ in desk.devices("--device", "0000:18:00.2")] == [VF]


@pytest.mark.parametrize("argv", [("--device", "card 7"), ("--since", "yesterday")])
def test_what_cannot_be_searched_is_reported(desk: Desk, argv: tuple[str, str]) -> None:
    status, out, err = desk.run(*argv)
    assert (status, out) == (2, "")
    assert argv[1] in err


def test_a_ledger_that_cannot_be_read_is_a_failure(desk: Desk) -> None:
    desk.ledger.parent.mkdir()
    desk.ledger.write_bytes(b"no database" * 100)
    status, out, err = desk.run()
    assert (status, out) == (1, "")
    assert str(desk.ledger) in err

"""Run the operator's command for a card without a holder as a real process."""

import asyncio
import os
import select
from pathlib import Path

import pytest

from hooks.node.hand_over import run_hand_over
from lading.errors import HostError
from tests.unit.hooks.inventories import gpu

CARD = gpu(0)


def run(script: str, *, deadline_s: float = 10.0, as_service: bool = False) -> None:
    command = ("/bin/sh", "-c", script, "{uuid}", "{bdf}")
    asyncio.run(run_hand_over(CARD, command=command, deadline_s=deadline_s, as_service=as_service))


def test_it_is_reported_which_card_it_is(tmp_path: Path) -> None:
    run(f'echo "$0 $1" >{tmp_path}/said')
    assert (tmp_path / "said").read_text().split() == [CARD.uuid, CARD.bdf]


def test_a_failure_has_its_status_and_what_it_wrote() -> None:
    with pytest.raises(HostError, match="status 3: the card is busy"):
        run("echo the card is busy; exit 3")


def test_it_is_ended_at_its_deadline(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(pipe, os.O_WRONLY)
    with pytest.raises(HostError, match=r"within 0\.2 s"):
        run(f"exec 3>{pipe}; sleep 1000 & wait", deadline_s=0.2)
    os.close(writer)
    hung_up = select.poll()
    hung_up.register(reader, 0)
    assert hung_up.poll(10_000)  # no process has the pipe open: the processes that it started have ended too
    os.close(reader)


def test_with_systemd_it_is_a_service_of_the_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "systemd-run"
    program.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/told\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    run("true", deadline_s=60, as_service=True)
    arguments = (tmp_path / "told").read_text().split()
    assert f"--unit=lading-hand-over-{CARD.uuid}" in arguments
    assert "--property=RuntimeMaxSec=60" in arguments
    assert arguments[arguments.index("--") + 1 :] == ["/bin/sh", "-c", "true", CARD.uuid, CARD.bdf]

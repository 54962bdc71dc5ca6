from pathlib import Path

import pytest

from lading.errors import HostError
from simnode.child import Child


def test_a_child_that_ends_before_it_is_ready_shows_its_log(tmp_path: Path) -> None:
    child = Child(["sh", "-c", "echo went wrong; exit 3"], log=tmp_path / "log")
    child.start()
    with pytest.raises(HostError, match=r"status 3\nthe last lines of .*:\nwent wrong"):
        child.wait_until(lambda: False, "anything")


def test_a_child_is_ended_and_started_again_with_one_log(tmp_path: Path) -> None:
    child = Child(["sh", "-c", "echo started; exec sleep 60"], log=tmp_path / "log")
    for times in (1, 2):
        child.start()
        child.wait_until(lambda times=times: (tmp_path / "log").read_text() == "started\n" * times, "the line")  # type: ignore[misc]
        assert child.running
        assert child.stop() == -15
        assert not child.running
    assert child.stop() == -15


def test_a_child_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    child = Child(["sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 60; done"], log=tmp_path / "log")
    child.start()
    child.wait_until(lambda: (tmp_path / "log").read_text() == "deaf\n", "the line")
    assert child.stop(grace_s=0.05) == -9


def test_a_program_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="none-such"):
        Child([str(tmp_path / "none-such")], log=tmp_path / "log").start()

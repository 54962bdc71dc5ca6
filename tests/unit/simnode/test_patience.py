import asyncio
import sys
from pathlib import Path

import pytest

from lading.errors import HostError
from simnode import patience
from simnode.child import Child
from simnode.patience import await_until, wait_until

WORKS = """
import time
while time.process_time() < 1: pass
print('done', flush=True)
time.sleep(60)
"""


def start(tmp_path: Path, program: str) -> Child:
    child = Child([sys.executable, "-c", program], log=tmp_path / "log")
    child.start()
    return child


def test_a_process_that_works_is_waited_for_however_little_patience_there_is(tmp_path: Path) -> None:
    child = start(tmp_path, WORKS)
    try:
        wait_until(lambda: "done" in child.log.read_text(), "its line", child, idle_s=0.8)
    finally:
        child.kill()


def test_a_process_that_only_sleeps_ends_the_wait(tmp_path: Path) -> None:
    child = start(tmp_path, "import time; print('about to sleep', flush=True); time.sleep(60)")
    try:
        with pytest.raises(HostError, match=r"(?s)cannot wait for its answer: nothing worked on it.*log:\nabout to sleep") as e:
            asyncio.run(await_until(lambda: False, "its answer", child, idle_s=0.3))
        assert e.value.hint
    finally:
        child.kill()


def test_a_condition_may_be_a_coroutine_function() -> None:
    answers = iter([False, False, True])

    async def holds() -> bool:
        return next(answers)

    asyncio.run(await_until(holds, "the third answer"))
    assert not list(answers)


def test_a_process_that_ended_ends_the_wait_at_once(tmp_path: Path) -> None:
    child = start(tmp_path, "raise SystemExit(3)")
    with pytest.raises(HostError, match=r"status 3\nthe last lines of .*log:\n\(none: it is empty\)"):
        wait_until(lambda: False, "its answer", child)


def test_the_last_resort_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "LAST_RESORT_S", 0.1)
    child = start(tmp_path, "while True: pass")
    try:
        with pytest.raises(HostError, match=r"did not come in 0\.1 s") as e:
            wait_until(lambda: False, "its answer", child)
        assert "less busy" in e.value.hint
    finally:
        child.kill()

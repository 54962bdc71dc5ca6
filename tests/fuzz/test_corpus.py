"""The kept inputs of relay_fuzz, and a bounded number of new ones: LADING_FUZZ_SECONDS (CI: 30) from a seed that is said."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from runtimeproxy.relay.headers import HeaderLane
from tests.fuzz.judge import play
from tests.fuzz.relay_fuzz import CORPUS, bounded, corpus, fuzz

SECONDS = float(os.environ.get("LADING_FUZZ_SECONDS", "3"))


@pytest.mark.parametrize("path", sorted(CORPUS.iterdir()), ids=lambda path: path.name)
def test_kept(path: Path) -> None:
    with bounded():
        play(path.read_bytes())


def test_new(record_property: Callable[[str, object], None]) -> None:
    seed = time.time_ns() % 1_000_000_000
    record_property("seed", seed)
    assert fuzz(runs=10_000_000, seconds=SECONDS, seed=seed) > 100


def test_the_judge_sees_a_table_out_of_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A relay that drops a late answer and goes on verbatim."""
    monkeypatch.setattr(HeaderLane, "verbatim", property(lambda _: True, lambda _, __: None), raising=False)
    assert any(fails(data) for data in corpus())


def fails(data: bytes) -> bool:
    try:
        play(data)
    except AssertionError:
        return True
    return False

"""Play the kept inputs of every target, and new ones for SECONDS for each, from a recorded seed."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from lading.http2.connection import Connection
from lading.http2.headers import HeaderLane
from runtimeproxy.protobuf import patch
from tests.depth import repeats
from tests.fuzz.run import CORPUS, TARGETS, bounded, corpus, fuzz, player

SECONDS: Final = repeats(1, long=10)
KEPT = sorted(path for target in TARGETS for path in (CORPUS / target).iterdir())


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_kept(path: Path) -> None:
    with bounded():
        player(path.parent.name)(path.read_bytes())


@pytest.mark.repeats
@pytest.mark.parametrize("target", TARGETS)
def test_new(target: str, record_property: Callable[[str, object], None]) -> None:
    seed = time.time_ns() % 1_000_000_000
    record_property("seed", seed)
    assert fuzz(target, runs=10_000_000, seconds=SECONDS, seed=seed) > 100


@pytest.mark.parametrize(
    ("target", "owner", "name", "broken"),
    [
        # A relay that drops a late answer and goes on verbatim; DATA beyond a window; an edit that is not made.
        ("relay", HeaderLane, "verbatim", property(lambda _: True, lambda _, __: None)),
        ("server", Connection, "_window", property(lambda _: 1 << 30, lambda _, __: None)),
        ("client", Connection, "_window", property(lambda _: 1 << 30, lambda _, __: None)),
        ("message", patch.Upserted, "appended", lambda _: b""),
    ],
)
def test_each_judge_fails_a_broken_product(
    target: str, owner: type, name: str, broken: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, broken, raising=False)
    assert any(fails(target, data) for data in corpus(target))


def fails(target: str, data: bytes) -> bool:
    try:
        player(target)(data)
    except AssertionError:
        return True
    return False

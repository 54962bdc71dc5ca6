"""The tests and the bench of a card of the machine, on a simulated node that is taken for the machine."""

import json
import os
import subprocess
import sys

import pytest

from bench.gpu import PRETENDED
from simnode.containerd import Binaries

pytestmark = [pytest.mark.node, pytest.mark.long]

# Nothing may be skipped in CI, but the frameworks are not there.
ENV = {**os.environ, "CI": ""}


def rehearse(*words: str) -> str:
    command = [sys.executable, "-m", words[0], "--pretend", *words[1:]]
    done = subprocess.run(command, env=ENV, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_tests_of_a_card_pass(binaries: Binaries) -> None:
    out = rehearse("tests.gpu", "tests/gpu", "tests/shares/test_captures.py")
    assert "(pretended)" in out
    assert " needs torch" in out
    assert " needs the fake card: the events in a graph" in out


def test_the_bench_of_a_card_measures_each_way(binaries: Binaries) -> None:
    rehearse("bench.gpu", "--measure", "1")
    results = json.loads(PRETENDED.read_text())
    assert set(results["ways"]) == {"slices", "tokens", "mps", "hami"}
    assert results["left_out"] == {}

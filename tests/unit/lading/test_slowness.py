"""Test the measurement of how slow a node is, by the start of a command."""

import os
import subprocess
import sys
import time
from typing import Final

import pytest

from lading.slowness import MOST, START_S, decide_slowness, describe_slowness


@pytest.mark.parametrize(("start_s", "slowness"), [(0.1, 1), (START_S, 1), (4 * START_S, 4), (3600, MOST)])
def test_waits_grow_with_the_time_that_the_start_took(start_s: float, slowness: float) -> None:
    assert decide_slowness(start_s) == slowness


MEASURES: Final = """
import time, lading.slowness as s
s.START_S, s.MOST = 0.001, 1e9
print(time.clock_gettime(time.CLOCK_BOOTTIME), s.measure_slowness() * s.START_S, time.clock_gettime(time.CLOCK_BOOTTIME))
"""
TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")  # the kernel counts a process's start time in ticks


def test_the_start_of_this_process_is_measured() -> None:
    before_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    with subprocess.Popen([sys.executable, "-c", MEASURES], stdout=subprocess.PIPE, text=True) as process:
        after_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        printed, _ = process.communicate()
    earliest_s, start_s, latest_s = map(float, printed.split())
    assert earliest_s - after_s - TICK_S <= start_s <= latest_s - before_s + TICK_S


def test_only_a_slow_node_is_called_slow() -> None:
    assert describe_slowness(1) == ""
    assert "4.2 times" in describe_slowness(4.2)

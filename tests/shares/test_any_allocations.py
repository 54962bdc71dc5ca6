"""Whatever the processes of a container allocate and free, in whatever order: not a byte beyond the share, and none is lost."""

from itertools import groupby
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy, integers, just, lists, one_of, sampled_from, tuples

from tests.depth import repeats
from tests.shares.calls import ALL
from tests.shares.site import MIB, Container, Process
from tests.shares.test_memory import KINDS, OK, OUT_OF_MEMORY

SEQUENCES: Final = repeats(300, long=1_500)
SHARE: Final = ALL
COUNT: Final = ["counts"]
SETTLED: Final = ["alloc", "plain", 0]  # the server answers it after all that it was told before
Call = tuple[object, ...]
Step = tuple[int, Call]

pytestmark = pytest.mark.fake_card("how much it has allocated")
AMOUNTS = sampled_from([2, 8, 32, 34, 50, 98, 100, 102]).map(lambda mib: mib * MIB)
CALLS: SearchStrategy[Call] = one_of(
    tuples(just("alloc"), sampled_from(KINDS), AMOUNTS),
    tuples(just("alloc"), sampled_from(KINDS), AMOUNTS),
    tuples(sampled_from(["free", "free", "map", "unmap", "retain", "import_one"]), integers(0, 7)),
    tuples(just("visit"), AMOUNTS),
    tuples(sampled_from(["trim", "free_all", "free_unknown", "replace_pool", "reset"])),
)
SEQUENCE = lists(tuples(integers(0, 1), CALLS), min_size=1, max_size=12)


@pytest.fixture(scope="module")
def processes(container: Container) -> list[Process]:
    return [container.start(), container.start()]


@pytest.mark.repeats
@pytest.mark.timeout(120 + SEQUENCES // 10)
@settings(max_examples=SEQUENCES, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(steps=SEQUENCE)
def test_no_sequence_of_calls_exceeds_the_share(processes: list[Process], steps: list[Step]) -> None:
    allocated = [0, 0]
    for who, some in groupby(steps, key=lambda step: step[0]):
        calls = [call for _, call in some]
        said = processes[who].do(*(one for call in calls for one in (call, COUNT)), SETTLED)
        for call, result, (_, its) in zip(calls, said[:-1:2], said[1::2], strict=True):
            allocated[who] = its
            assert sum(allocated) <= SHARE
            if call[0] == "alloc":
                assert result in {OK, OUT_OF_MEMORY}
                amount = call[2]
                assert isinstance(amount, int)
                assert result == OK or sum(allocated) + amount > SHARE
    for process in processes:
        assert process.do(["free_all"], COUNT, SETTLED)[1][1] == 0
    # All memory was freed, so the whole share can be allocated again.
    assert processes[0].do(["alloc", "plain", SHARE], ["free_all"])[0] == OK

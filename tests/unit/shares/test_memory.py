"""Amounts of memory by process, beside the sums of a plain model."""

from hypothesis import given
from hypothesis.strategies import booleans, integers, lists, sampled_from, tuples

from shares.memory import MAX_BYTES, Memory

LIMIT = 100
STEPS = lists(tuples(sampled_from(["add", "held", "subtract", "gone"]), sampled_from("abc"), integers(0, 120)), max_size=40)


@given(STEPS, booleans())
def test_what_is_allowed_never_exceeds_the_limit(steps: list[tuple[str, str, int]], with_held: bool) -> None:
    memory, model = Memory(LIMIT), dict.fromkeys("abc", 0)
    for step, process, amount in steps:
        match step:
            case "add":
                allowed = memory.add(process, amount, held=False)
                assert allowed == (sum(model.values()) + amount <= LIMIT)
                model[process] += amount if allowed else 0
            case "held" if with_held:
                assert memory.add(process, amount, held=True)
                model[process] += amount
            case "subtract":
                memory.subtract(process, amount)
                model[process] = max(0, model[process] - amount)
            case "gone":
                memory.gone(process)
                model[process] = 0
        assert memory.used_bytes == sum(model.values())
        assert with_held or memory.used_bytes <= LIMIT


def test_no_process_holds_more_than_a_machine_has() -> None:
    memory = Memory(LIMIT)
    assert memory.add("a", MAX_BYTES - 1, held=True)
    assert not memory.add("a", 2, held=True)
    assert memory.used_bytes == MAX_BYTES - 1
    assert memory.add("b", MAX_BYTES, held=True)

from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.relay.budget import HoldBudget


class Call:
    """Represent a call that reserves bytes."""

    def __init__(self, budget: HoldBudget, size: int) -> None:
        self.size = size
        self.times_granted = 0
        self.granted = self._granted  # one object: each access makes another bound method
        if budget.reserve(size, self.granted):
            self.times_granted += 1

    def _granted(self) -> None:
        self.times_granted += 1


def test_bytes_are_reserved_in_order() -> None:
    """Check that a small call behind a large one waits too: otherwise the large one might wait forever."""
    budget = HoldBudget(10)
    first, large, small = Call(budget, 6), Call(budget, 8), Call(budget, 1)
    assert (first.times_granted, large.times_granted, small.times_granted) == (1, 0, 0)
    budget.release(first.size)
    assert (large.times_granted, small.times_granted) == (1, 1)


def test_a_granted_call_may_release_at_once() -> None:
    budget = HoldBudget(10)
    order: list[str] = []

    def give_back(name: str, size: int) -> None:
        order.append(name)
        budget.release(size)

    assert budget.reserve(10, lambda: None)
    assert not budget.reserve(9, lambda: give_back("a", 9))
    assert not budget.reserve(8, lambda: give_back("b", 8))
    budget.release(10)
    assert order == ["a", "b"]
    assert Call(budget, 10).times_granted == 1


@given(st.lists(st.tuples(st.sampled_from(["reserve", "end"]), st.integers(0, 100)), max_size=60))
def test_never_more_than_the_limit_is_reserved_and_no_call_is_forgotten(steps: list[tuple[str, int]]) -> None:
    budget = HoldBudget(100)
    calls: list[Call] = []
    for step, number in steps:
        if step == "reserve":
            calls.append(Call(budget, number))
        elif calls:
            ended = calls.pop(number % len(calls))
            if ended.times_granted:
                budget.release(ended.size)
            else:
                budget.withdraw(ended.granted)
        assert all(call.times_granted <= 1 for call in calls)
        assert sum(call.size for call in calls if call.times_granted) <= 100
        waiting = [call for call in calls if not call.times_granted]
        if waiting:
            assert waiting[0].size > 100 - sum(call.size for call in calls if call.times_granted)

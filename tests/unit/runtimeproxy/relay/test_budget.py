from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.relay.budget import HoldBudget


class Call:
    """One that wants room."""

    def __init__(self, budget: HoldBudget, size: int) -> None:
        self.size = size
        self.times_granted = 0
        self.granted = self._granted  # one object: a bound method is another one each time that it is looked up
        if budget.reserve(size, self.granted):
            self.times_granted += 1

    def _granted(self) -> None:
        self.times_granted += 1


def test_room_is_given_in_order() -> None:
    """A small call behind a large one waits too: else the large one might wait for ever."""
    budget = HoldBudget(10)
    first, large, small = Call(budget, 6), Call(budget, 8), Call(budget, 1)
    assert (first.times_granted, large.times_granted, small.times_granted) == (1, 0, 0)
    budget.release(first.size)
    assert (large.times_granted, small.times_granted) == (1, 1)


def test_a_call_that_gave_up_is_in_nobodys_way() -> None:
    budget = HoldBudget(10)
    first, large, small = Call(budget, 6), Call(budget, 8), Call(budget, 4)
    budget.withdraw(large.granted)
    assert (large.times_granted, small.times_granted) == (0, 1)
    budget.release(first.size)
    budget.release(small.size)
    assert large.times_granted == 0
    assert Call(budget, 10).times_granted == 1


def test_who_is_granted_may_give_back_at_once() -> None:
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
def test_never_more_than_the_limit_and_no_one_is_forgotten(steps: list[tuple[str, int]]) -> None:
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

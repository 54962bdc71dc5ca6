"""Test what shares of a card containers get, and how long they wait, in virtual time."""

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bench.virtual_card import Work, simulate
from bench.virtual_device import SLICE_NS, SWITCH_NS
from shares.policy.fair import QUANTUM_NS, Fair
from shares.policy.model import MS
from shares.policy.window import Window
from tests.depth import repeats

SECOND = 1000 * MS
THREE = (0.5, 0.3, 0.2)


def three(*kernels_ms: tuple[float, ...]) -> list[Work]:
    kernels = kernels_ms * 3 if len(kernels_ms) == 1 else kernels_ms
    return [Work(name=name, request=share, kernels_ms=each) for name, share, each in zip("abc", THREE, kernels, strict=True)]


def shares(works: list[Work], seconds: int = 60, *, since: int = 0) -> list[float]:
    """Run under the fair policy. Return each one's share of the time from `since` seconds on."""
    simulate(works, Fair(), seconds=seconds)
    return [work.share_of(since * SECOND, seconds * SECOND) for work in works]


def in_proportion(parts: list[float], *, least: float = 0.95) -> list[float]:
    """Return each one's part of what all have together, which must be this part of the card's time at least."""
    assert sum(parts) >= least
    return [part / sum(parts) for part in parts]


def longest_wait_ms(*works: Work) -> float:
    return max(wait for work in works for wait in work.waits_ns) / MS


def test_requests_are_kept_in_the_long_run_and_in_any_second() -> None:
    works = three((5.0,))
    parts = shares(works, 20)
    assert in_proportion(parts) == pytest.approx(THREE, abs=0.01)
    for work in works:
        assert work.error_in_any_second(work.request * sum(parts), SECOND, 20 * SECOND) < 0.03


@pytest.mark.parametrize("kernels_ms", [((0.1,),), ((50.0,),), ((200.0,),), ((1.0,), (20.0,), (200.0,))])
def test_kernels_of_any_length_are_charged_truly(kernels_ms: tuple[tuple[float, ...], ...]) -> None:
    parts = shares(three(*kernels_ms), 4 if (0.1,) in kernels_ms else 60)
    assert in_proportion(parts, least=0.89) == pytest.approx(THREE, abs=0.02)


def test_what_an_idle_container_leaves_is_used() -> None:
    a, c = Work(name="a", request=0.5), Work(name="c", request=0.2)
    assert in_proportion(shares([a, c]), least=0.97) == pytest.approx([5 / 7, 2 / 7], abs=0.01)


def test_a_request_is_kept_and_the_rest_is_shared_in_proportion() -> None:
    a, b = Work(name="a", request=0.6), Work(name="b", request=0.2)
    assert in_proportion(shares([a, b])) == pytest.approx([0.75, 0.25], abs=0.01)


def test_a_limit_holds_also_for_a_container_that_is_alone() -> None:
    alone = Work(name="a", request=0.3, limit=0.3)
    assert shares([alone], 4) == pytest.approx([0.3], abs=0.01)
    assert longest_wait_ms(alone) < 100


def test_a_limit_above_the_request() -> None:
    a, b = Work(name="a", request=0.2, limit=0.4), Work(name="b", request=0.3)
    assert shares([a, b]) == pytest.approx([0.4, 0.6], abs=0.02)
    assert longest_wait_ms(a, b) < 100


@pytest.mark.parametrize(
    "b", [Work(name="b", request=0.5, begins_ms=30_000), Work(name="b", request=0.5, pauses_ms=(10_000, 30_000))]
)
def test_a_container_that_comes_back_makes_no_one_wait_for_long(b: Work) -> None:
    a = Work(name="a", request=0.5)
    assert in_proportion(shares([a, b], since=30)) == pytest.approx([0.5, 0.5], abs=0.01)
    assert longest_wait_ms(a, b) < 150


@pytest.mark.parametrize("kernel_ms", [1.0, 5.0, 50.0])
@pytest.mark.parametrize("others", [1, 2, 5])
@pytest.mark.parametrize("name", ["a", "z"])  # between two that are equally far, the first by name is chosen
def test_who_comes_back_waits_for_a_slice_as_a_guest_or_for_a_short_turn_and_a_kernel(
    name: str, others: int, kernel_ms: float
) -> None:
    for back_ms in range(1_000, 1_100, 17):
        busy = [Work(name=f"o{number}", request=0.8 / others, kernels_ms=(kernel_ms,)) for number in range(others)]
        back = Work(name=name, request=0.2, kernels_ms=(kernel_ms,), pauses_ms=(200, back_ms))
        simulate([*busy, back], Fair(), seconds=back_ms / 1000 + 0.5)
        waited_ns = next(began for began, _ in back.ran if began >= back_ms * MS) - back_ms * MS
        assert waited_ns <= 2 * (SLICE_NS + SWITCH_NS) + (0 if kernel_ms < 2 else 2 * QUANTUM_NS + kernel_ms * MS)


def test_under_the_window_of_the_paper_the_others_wait_for_half_of_it() -> None:
    a, b = Work(name="a", request=0.5), Work(name="b", request=0.5, begins_ms=30_000)
    simulate([a, b], Window())
    assert in_proportion([each.share_of(30 * SECOND, 60 * SECOND) for each in (a, b)]) == pytest.approx([0.5, 0.5], abs=0.03)
    assert 4_000 < longest_wait_ms(a, b) < 6_000


def test_eight_equal_containers() -> None:
    works = [Work(name=f"c{number}", request=0.125) for number in range(8)]
    assert in_proportion(shares(works)) == pytest.approx([0.125] * 8, abs=0.01)


def test_inference_beside_training_gets_all_that_it_asks_for() -> None:
    inference, training = Work(name="a", request=0.2, burst_ms=5, every_ms=50), Work(name="b", request=0.8)
    assert shares([inference, training]) == pytest.approx([0.1, 0.87], abs=0.02)
    assert longest_wait_ms(inference) < 50


def test_limits_of_all_leave_the_card_idle() -> None:
    a, b = Work(name="a", request=0.3, limit=0.3), Work(name="b", request=0.2, limit=0.2)
    assert shares([a, b]) == pytest.approx([0.3, 0.2], abs=0.02)
    assert longest_wait_ms(a, b) < 100


def test_a_newcomer_takes_no_request_that_a_limit_made_seem_large() -> None:
    """Beside a container that its limit holds back, one has far more than its request, until a third one joins."""
    a = Work(name="a", request=0.2, limit=0.2)
    b, c = Work(name="b", request=0.1), Work(name="c", request=0.5, begins_ms=10_000)
    simulate([a, b, c], Fair(), seconds=30)
    assert b.error_in_any_second(0.8 / 6, 11 * SECOND, 30 * SECOND) < 0.05
    assert a.share_of(11 * SECOND, 30 * SECOND) == pytest.approx(0.2, abs=0.02)
    assert longest_wait_ms(a, b, c) < 700


def test_short_pauses_give_no_credit_for_what_others_had_meanwhile() -> None:
    a = Work(name="a", request=0.5, kernels_ms=(1.0,), burst_ms=1, every_ms=12, bursts_end_ms=30_000)
    b = Work(name="b", request=0.5)
    simulate([a, b], Fair(), seconds=40)
    assert longest_wait_ms(a, b) < 150
    assert b.error_in_any_second(0.5, 31 * SECOND, 40 * SECOND) < 0.06


def busy(name: str, request: float) -> Work:
    """Return a training that always wants the card: four kernels of 0.2 ms between two synchronisations."""
    return Work(name=name, request=request, kernels_ms=(0.1965,), together=4, launch_us=10)


def answers(name: str, request: float) -> Work:
    """Return a service that answers every 20 ms: 50 kernels of 3.5 us, whose launches take 0.77 ms of CPU time."""
    return Work(name=name, request=request, kernels_ms=(0.0035,), burst_ms=0.175, every_ms=20, launch_us=15.4)


def slowest_ms(work: Work) -> float:
    """Return the 99th percentile of the lengths of answers."""
    return sorted(work.answers_ns)[len(work.answers_ns) * 99 // 100] / MS


def alone(work: Work) -> Work:
    simulate([work], Fair(), seconds=4)
    return work


@pytest.mark.parametrize("request_of_answers", [0.5, 0.05])
def test_an_answer_beside_a_training_is_as_quick_as_alone(request_of_answers: float) -> None:
    service, training = answers("a", request_of_answers), busy("b", 1 - request_of_answers)
    simulate([service, training], Fair(), seconds=4)
    assert slowest_ms(service) <= 1.1 * slowest_ms(alone(answers("a", 1)))
    assert training.share_of(SECOND, 4 * SECOND) >= 0.95 * alone(busy("b", 1)).share_of(SECOND, 4 * SECOND)


@pytest.mark.parametrize("parts", [(0.5, 0.5), (0.7, 0.3), (0.5, 0.3, 0.2)])
def test_trainings_get_their_requests_of_nearly_the_whole_card(parts: tuple[float, ...]) -> None:
    works = [busy(name, part) for name, part in zip("abc", parts, strict=False)]
    simulate(works, Fair(), seconds=4)
    got = [work.share_of(SECOND, 4 * SECOND) for work in works]
    assert in_proportion(got, least=0.98 * alone(busy("a", 1)).share_of(SECOND, 4 * SECOND)) == pytest.approx(parts, abs=0.02)


def test_tiny_launches_and_products_use_the_card_together() -> None:
    tiny = Work(name="a", request=0.5, kernels_ms=(0.0016,), together=200, launch_us=6.4)
    products = busy("b", 0.5)
    simulate([tiny, products], Fair(), seconds=1)
    parts = [work.share_of(SECOND // 2, SECOND) for work in (tiny, products)]
    of_alone = [parts[0] / 0.249, parts[1] / 0.974]  # each one uses these parts of the device where it is alone
    assert of_alone[0] >= 0.9
    assert sum(of_alone) >= 1.5


def test_a_program_that_pauses_after_its_work_leaves_the_card_to_others_at_once() -> None:
    """It works for 4 of 12 ms. Without the release at its synchronisation, it waits 9.2 ms and the two use 88 % of the card."""
    pauses = Work(name="a", request=0.5, kernels_ms=(0.2,), burst_ms=4, every_ms=12, launch_us=10)
    training = busy("b", 0.5)
    simulate([pauses, training], Fair(), seconds=4)
    assert slowest_ms(pauses) < 7.5
    assert sum(work.share_of(SECOND, 4 * SECOND) for work in (pauses, training)) > 0.915


@pytest.mark.parametrize("kernel_ms", [20.0, 100.0])
def test_who_floods_the_card_with_long_kernels_gets_its_part(kernel_ms: float) -> None:
    flood, training = Work(name="a", request=0.3, kernels_ms=(kernel_ms,), together=1000), busy("b", 0.7)
    simulate([flood, training], Fair(), seconds=10)
    assert flood.share_of(2 * SECOND, 10 * SECOND) == pytest.approx(0.3, abs=0.02)
    assert longest_wait_ms(training) <= 1.1 * kernel_ms + 2


@pytest.mark.parametrize(("limits", "abs_"), [((0.3,), 0.01), ((0.2, 0.5), 0.02)])
def test_limits_are_kept(limits: tuple[float, ...], abs_: float) -> None:
    works = [replace(busy(name, limit), limit=limit) for name, limit in zip("ab", limits, strict=False)]
    simulate(works, Fair(), seconds=4)
    assert [work.share_of(SECOND, 4 * SECOND) for work in works] == pytest.approx(limits, abs=abs_)


works = st.builds(
    lambda request, limit, kernel_ms, begins_ms, burst_ms, pauses_ms: Work(
        name="",
        request=request,
        limit=max(limit, request),
        kernels_ms=(kernel_ms,),
        begins_ms=begins_ms,
        burst_ms=burst_ms,
        every_ms=4 * burst_ms,
        bursts_end_ms=6_000,
        pauses_ms=pauses_ms,
    ),
    st.sampled_from([0.1, 0.2, 0.3, 0.5]),
    st.sampled_from([0.1, 0.2, 0.5, 1.0, 1.0]),
    st.sampled_from([1.0, 5.0, 20.0]),
    st.sampled_from([0.0, 0.0, 1_000.0, 3_000.0]),
    st.sampled_from([0.0, 0.0, 1.0, 10.0]),
    st.sampled_from([None, None, (2_000.0, 5_000.0)]),
)


HELD_BACK = Work(name="", request=0.1, limit=0.1, kernels_ms=(1.0,))
IN_BURSTS = Work(name="", request=0.1, limit=0.5, kernels_ms=(1.0,), burst_ms=1, every_ms=4, bursts_end_ms=6_000)
COMES_BACK = Work(name="", request=0.2, kernels_ms=(1.0,), pauses_ms=(2_000, 5_000))


LONG_KERNELS = Work(name="", request=0.1, kernels_ms=(20.0,))


LONG_AND_LIMITED = Work(name="", request=0.2, limit=0.2, kernels_ms=(20.0,), begins_ms=1_000)
SHORT_AND_LIMITED = Work(name="", request=0.2, limit=0.2, kernels_ms=(1.0,), burst_ms=10, every_ms=40, bursts_end_ms=6_000)
LONG_IN_BURSTS = Work(name="", request=0.1, kernels_ms=(20.0,), begins_ms=3_000, burst_ms=1, every_ms=4, bursts_end_ms=6_000)


@settings(max_examples=repeats(20, long=200))
@example(
    [LONG_AND_LIMITED, SHORT_AND_LIMITED, LONG_IN_BURSTS]
)  # a kernel runs on as another delayed it, and delays the next one
@example([HELD_BACK, HELD_BACK, LONG_KERNELS])  # the last kernel of a turn runs on beside the turns of the other two
@example([HELD_BACK, IN_BURSTS, COMES_BACK])  # the third comes back between two bursts, while the limit holds back the first
@given(st.lists(works, min_size=2, max_size=5))
def test_no_container_waits_long_or_gets_less_than_its_request_when_others_come_and_go(works: list[Work]) -> None:
    works = [replace(work, name=f"c{number}", ran=[], waits_ns=[]) for number, work in enumerate(works)]
    simulate(works, Fair(), seconds=12)
    requested, kernel_ms = max(1.0, sum(work.request for work in works)), max(work.kernels_ms[0] for work in works)
    for work in works:
        part = work.request / requested
        assert max(work.waits_ns) / MS <= 2 * (50 + kernel_ms) / part
        assert work.share_of(8 * SECOND, 12 * SECOND) >= 0.9 * part - 0.02

"""Test in virtual time when the frames of a container are read."""

from hypothesis import given
from hypothesis.strategies import integers, lists, tuples

from shares.intake import FRAME_NS, LULL_NS, MAX_FRAMES, PATIENCE_NS, Allowance, Intake
from shares.policy.model import MS

ROUND = 64  # frames of one turn of the loop: one of each connection
INTERVAL_NS, MOST = 10, 5


def flood(intake: Intake, now_ns: int, until_ns: int) -> tuple[int, list[int]]:
    """Read rounds of frames without a rest but for the pauses. Return the number of frames, and the times of floods."""
    frames, floods = 0, []
    while now_ns < until_ns:
        frames += ROUND
        if intake.count(ROUND, now_ns):
            pause = intake.pause(now_ns)
            assert now_ns < pause.until_ns <= now_ns + (ROUND + 1) * FRAME_NS
            floods += [now_ns] if pause.is_flood else []
            now_ns = pause.until_ns
        else:
            now_ns += MS
    return frames, floods


def test_thousands_of_frames_at_once_are_read_without_a_pause() -> None:
    intake = Intake()
    assert not intake.count(MAX_FRAMES - 1, 0)
    assert intake.count(1, 0)
    assert intake.pause(0) == (FRAME_NS, False)


def test_a_flood_is_read_at_the_rate_and_is_one_again_and_again() -> None:
    frames, floods = flood(Intake(), 0, 3 * PATIENCE_NS)
    assert frames <= MAX_FRAMES + 3 * PATIENCE_NS // FRAME_NS + 2 * ROUND
    assert len(floods) == 2
    assert floods[1] - floods[0] >= PATIENCE_NS


def test_pauses_with_a_lull_between_them_are_no_flood() -> None:
    intake, now_ns = Intake(), 0
    for _ in range(10):
        _, floods = flood(intake, now_ns, now_ns + PATIENCE_NS - MS)
        assert floods == []
        now_ns += PATIENCE_NS + LULL_NS + ROUND * FRAME_NS


def test_as_many_as_allowed_may_be_used_at_once_and_then_one_in_each_interval() -> None:
    allowance = Allowance(INTERVAL_NS, MOST)
    for used in range(MOST):
        assert allowance.ready_ns <= 1000, used
        allowance.use(1, 1000)
    assert allowance.ready_ns == 1010
    allowance.use(1, 1010)
    assert allowance.ready_ns == 1020


def test_more_than_allowed_is_paid_back_before_the_next_use() -> None:
    allowance = Allowance(INTERVAL_NS, MOST)
    allowance.use(MOST + 20, 1000)
    assert allowance.ready_ns == 1000 + 21 * INTERVAL_NS


@given(lists(tuples(integers(0, 30), integers(1, 3)), max_size=50))
def test_no_span_has_more_than_its_intervals_and_the_number_at_once(steps: list[tuple[int, int]]) -> None:
    allowance, now_ns, used = Allowance(INTERVAL_NS, MOST), 0, list[tuple[int, int]]()
    for passes_ns, number in steps:
        now_ns += passes_ns
        if now_ns >= allowance.ready_ns:
            allowance.use(number, now_ns)
            used.append((now_ns, number))
    for first, (began_ns, _) in enumerate(used):
        for last in range(first, len(used)):
            allowed = MOST + (used[last][0] - began_ns) / INTERVAL_NS
            assert sum(number for _, number in used[first:last]) < allowed

"""Test in virtual time when the frames of a container are read."""

from shares.intake import FRAME_NS, LULL_NS, MAX_FRAMES, PATIENCE_NS, Intake
from shares.policy.model import MS

ROUND = 64  # frames of one turn of the loop: one of each connection


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

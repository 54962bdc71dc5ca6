import pytest

from bench.gpu_loads import ANSWER, read
from lading.errors import LadingError

TENTHS = "0 100000 50000 0 0 0 0 0 0 0 20000 80000"  # microseconds of work in each tenth of a second
BATCHES = " ".join(str(number * 1000) for number in range(1, 101))


def test_work_is_counted_as_a_part_of_the_cards_time_and_in_the_busiest_second() -> None:
    made = read(f"ready\n{TENTHS}\n{BATCHES}\n")
    assert made.part == pytest.approx(250_000 / 1_200_000)
    assert made.most == pytest.approx(0.17)  # the second that begins with the second tenth: .1 + .05 + .02


def test_the_times_of_batches_are_values_that_were_measured() -> None:
    made = read(f"ready\n{TENTHS}\n{BATCHES}\n")
    assert (made.p50_ms, made.p99_ms, made.max_ms) == (50, 99, 100)


def test_a_program_that_finished_no_batch_is_no_measurement() -> None:
    with pytest.raises(LadingError):
        read(f"ready\n{TENTHS}\n\n")


def test_a_load_is_given_in_the_units_of_the_program() -> None:
    assert ANSWER.words(1.5) == ["load", "1500", "4", "50", "20000"]

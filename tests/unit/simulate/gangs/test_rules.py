"""Test each of the rules on two nodes of four cards, by hand: who starts when, and what is held meanwhile."""

import pytest

from simulate.gangs.books import Books
from simulate.gangs.model import Rules
from simulate.gangs.rules import BACK_OFF_S, HOLD_S, PAUSE_S, READY_S
from tests.unit.simulate.gangs.small import KINDS, begin

TWO, FOUR, ONE = KINDS


def idle(books: Books) -> int:
    """Return the cards that are held by pods whose gang is not whole."""
    return (books.cluster.allocated - books.running) // 1000


@pytest.mark.parametrize("rules", Rules)
def test_a_gang_that_fits_starts_and_ends_as_a_whole(rules: Rules) -> None:
    played = begin(rules)
    gang = played.arrive(4, TWO, runs=100.0)
    played.go_to(20.0)
    assert (played.running(gang), played.books.cluster.allocated) == ([True], 8000)
    played.go_to(120.0)
    assert (played.running(gang), played.books.cluster.allocated) == ([False], 0)


@pytest.mark.parametrize("rules", Rules)
def test_a_gang_starts_when_another_one_has_ended(rules: Rules) -> None:
    played = begin(rules)
    first, second = played.arrive(2, FOUR, runs=200.0), played.arrive(2, FOUR)
    played.go_to(200.0)
    assert played.running(first, second) == [True, False]
    played.go_to(260.0)
    assert played.running(first, second) == [False, True]


@pytest.mark.parametrize(("rules", "held"), [(Rules.LADING, 0), (Rules.KOORDINATOR, 0), (Rules.GREEDY, 4), (Rules.KUEUE, 0)])
def test_the_devices_that_an_incomplete_gang_holds(rules: Rules, held: int) -> None:
    """Check Kueue too, which holds nothing here because the quota has too little left."""
    played = begin(rules)
    alone = played.arrive(1, ONE)
    played.go_to(20.0)
    gang = played.arrive(2, FOUR)
    played.go_to(40.0)
    assert (played.running(alone, gang), idle(played.books)) == ([True, False], held)


def test_greedy_halves_block_each_other_until_one_gives_back() -> None:
    played = begin(Rules.GREEDY)
    first = played.arrive(1, FOUR, runs=60.0)
    played.go_to(20.0)
    gang = played.arrive(2, FOUR)
    played.go_to(40.0)
    alone = played.arrive(4, ONE, runs=5000.0)
    played.go_to(100.0)
    assert played.running(first, gang, alone) == [False, True, False]


def test_greedy_gives_all_back_after_a_time_out_and_pauses() -> None:
    played = begin(Rules.GREEDY)
    alone, gang = played.arrive(1, ONE, runs=5000.0), played.arrive(2, FOUR)
    played.go_to(20.0 + HOLD_S - 20.0)
    assert (played.running(alone, gang), idle(played.books)) == ([True, False], 4)
    played.go_to(20.0 + HOLD_S)
    assert (idle(played.books), played.books.given_back) == (0, 1)
    played.go_to(20.0 + HOLD_S + PAUSE_S)
    assert idle(played.books) == 4


def test_kueue_evicts_what_is_admitted_and_not_ready() -> None:
    """Leave 4 GPUs of the quota, 2 on each node: a pod that requests 4 takes all of the quota, and smaller pods wait in
    vain."""
    played = begin(Rules.KUEUE)
    for number in range(8):
        played.arrive(1, ONE, runs=60.0 if number % 4 < 2 else 5000.0)
    played.go_to(80.0)
    assert sorted(played.books.cluster.free.sum(axis=1)) == [2000, 2000]
    large = played.arrive(1, FOUR)
    played.go_to(100.0)
    small = played.arrive(1, ONE)
    played.go_to(100.0 + READY_S - 20.0)
    assert played.running(large, small) == [False, False]
    played.go_to(100.0 + READY_S)
    assert played.running(large, small) == [False, True]


def test_kueue_backs_off_twice_as_long_each_time() -> None:
    """Leave 1 and 3 cards free: of two pods with 2 GPUs, which the quota admits, one is placed and holds its cards in vain."""
    played = begin(Rules.KUEUE)
    for number in range(8):
        played.arrive(1, ONE, runs=60.0 if number in {0, 4, 5, 6} else 50_000.0)
    played.go_to(80.0)
    played.arrive(2, TWO)
    played.go_to(100.0)
    assert idle(played.books) == 2
    second = 100.0 + READY_S + BACK_OFF_S
    third = second + READY_S + 2 * BACK_OFF_S
    for admitted, times in ((100.0, 1), (second, 2), (third, 3)):
        played.go_to(admitted)
        assert (idle(played.books), played.books.given_back) == (2, times - 1)
        played.go_to(admitted + READY_S)
        assert (idle(played.books), played.books.given_back) == (0, times)


@pytest.mark.parametrize("rules", [Rules.LADING, Rules.KOORDINATOR])
def test_small_jobs_pass_a_gang_without_room(rules: Rules) -> None:
    played = begin(rules)
    first = played.arrive(1, ONE)
    played.go_to(20.0)
    gang, small = played.arrive(2, FOUR), played.arrive(2, TWO)
    played.go_to(40.0)
    assert played.running(first, gang, small) == [True, False, True]


@pytest.mark.parametrize(("rules", "starts"), [(Rules.LADING, True), (Rules.KOORDINATOR, False)])
def test_only_patience_brings_a_large_gang_past_a_stream_of_small_pods(rules: Rules, starts: bool) -> None:
    played = begin(rules)
    for _ in range(8):
        played.arrive(1, ONE, runs=400.0)
        played.go_to(played.now + 60.0)
    gang = played.arrive(2, FOUR, runs=300.0)
    for _ in range(60):
        played.arrive(1, ONE, runs=400.0)
        played.go_to(played.now + 60.0)
        if played.running(gang) == [True]:
            break
    assert played.running(gang) == [starts]


def test_lading_starts_gangs_by_age() -> None:
    played = begin(Rules.LADING)
    first = played.arrive(2, FOUR, runs=100.0)
    played.go_to(20.0)
    older, younger = played.arrive(2, FOUR), played.arrive(2, FOUR)
    played.go_to(140.0)
    assert played.running(first, older, younger) == [False, True, False]

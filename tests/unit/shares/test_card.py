"""Follow the life of a turn, step by step."""

import pytest

from shares.card import EXTENDED_NS, NEIGHBOUR_NS, Card, Effects, PageUpdate, Token
from shares.policy.fair import LONGEST_NS, PAUSES_NS, QUANTUM_NS, SHORTEST_NS, SWITCH_PERCENT, Fair
from shares.policy.model import MS, NO_END, PAUSE_NS, Share

HALF = Share(request_ppm=500_000)


@pytest.fixture
def card() -> Card[str]:
    card: Card[str] = Card(Fair())
    for name in "ab":
        card.join(name, HALF, 0)
    return card


def tokens(effects: Effects[str]) -> dict[str, int]:
    return {effect.process: effect.until_ns for effect in effects if isinstance(effect, Token)}


def pages(effects: Effects[str]) -> dict[str, PageUpdate]:
    return {effect.container: effect for effect in effects if isinstance(effect, PageUpdate)}


def both_want(card: Card[str]) -> None:
    """Have both containers want the card at time 0, of which the first one gets it."""
    card.want("a", "a", 0, 0, 0)
    card.want("b", "b", 0, 0, 0)


def test_one_alone_has_a_turn_without_end_until_another_comes(card: Card[str]) -> None:
    assert tokens(card.want("a", "a1", 0, 0, 0)) == {"a1": NO_END}
    later = 1000 * MS
    effects = card.want("b", "b1", 0, 0, later)
    assert tokens(effects) == {"b1": NO_END}  # until the other one wants it again
    assert pages(effects)["a"].until_ns == later
    assert card.held_ns("a", later) == later


def test_all_processes_of_a_container_share_its_turn(card: Card[str]) -> None:
    card.want("b", "b1", 0, 0, 0)
    card.release("b", "b1", 0, MS)
    until = tokens(card.want("a", "a1", 0, 0, MS))["a1"]
    assert tokens(card.want("a", "a2", 0, 0, 2 * MS)) == {"a2": until}
    card.want("b", "b1", 0, 0, 2 * MS)
    assert tokens(card.release("a", "a1", 0, 3 * MS)) == {}
    assert tokens(card.release("a", "a2", 0, 3 * MS)) == {"b1": NO_END}


def test_turns_go_round_among_equals(card: Card[str]) -> None:
    card.join("c", HALF, 0)
    for name in "abc":
        card.want(name, name, 0, 0, 0)
    order, now_ns = [], 0
    for _ in range(10):
        holder = card.holder
        order.append(holder)
        now_ns = card.wake_ns()
        card.look(now_ns)
        card.want(holder, holder, 0, 0, now_ns)
    assert order[1:] == ["b", "c", "a"] * 3


def test_a_turn_ends_by_the_clock_without_a_frame_of_its_processes(card: Card[str]) -> None:
    both_want(card)
    assert card.holder == "a"
    assert tokens(card.look(card.wake_ns() - 1)) == {}
    until_ns = card.wake_ns()
    assert until_ns == QUANTUM_NS
    effects = card.look(until_ns)
    assert tokens(effects) == {"b": NO_END}
    assert pages(effects)["a"].until_ns == until_ns  # a process sees when its last turn ended


def test_a_turn_is_not_shorter_than_the_shortest_nor_longer_than_the_longest() -> None:
    card: Card[str] = Card(Fair())
    card.join("a", Share(request_ppm=1_000), 0)
    card.join("b", Share(request_ppm=999_000), 0)
    both_want(card)
    assert card.wake_ns() >= SHORTEST_NS
    began_ns = card.wake_ns()
    card.look(began_ns)
    assert card.holder == "b"
    card.want("a", "a", 0, 0, began_ns)
    ended_ns = began_ns
    while card.holder == "b":
        ended_ns = card.wake_ns()
        card.look(ended_ns)
    assert ended_ns == began_ns + LONGEST_NS


def test_a_turn_at_its_end_goes_on_if_the_device_worked_for_another_container_meanwhile(card: Card[str]) -> None:
    both_want(card)
    card.use("b", "b", 2 * MS, MS, pause=False)
    ends_ns = QUANTUM_NS
    card.look(ends_ns)
    assert card.holder == "a"
    assert card.wake_ns() > ends_ns + EXTENDED_NS
    assert card.held_ns("a", ends_ns) == ends_ns - 2 * MS * SWITCH_PERCENT // 100
    assert card.held_ns("b", ends_ns) == 2 * MS


def test_device_time_after_a_turn_is_charged_in_full(card: Card[str]) -> None:
    both_want(card)
    card.look(card.wake_ns())
    assert card.holder == "b"
    card.want("a", "a", 0, 95 * MS, 150 * MS)
    assert card.holder == "b"  # it is behind by more than it had
    assert card.held_ns("a", 150 * MS) == 100 * MS


def test_a_container_cannot_give_another_one_the_card_by_its_reports() -> None:
    card: Card[str] = Card(Fair())
    for name, request in (("a", 100_000), ("b", 450_000), ("c", 450_000)):
        card.join(name, Share(request_ppm=request), 0)
    for name in "bc":
        card.want(name, name, 0, 0, 0)
    now_ns, began_ns = 0, 0
    had: dict[str, int] = dict.fromkeys("bc", 0)
    while now_ns < 3_000 * MS:
        holder, began_ns = card.holder, now_ns
        if holder == "b":
            card.use("a", "a", 1_000 * MS, now_ns, pause=False)
        now_ns = min(card.wake_ns(), now_ns + MS)
        card.look(now_ns)
        had[holder] += now_ns - began_ns
        if card.holder != holder:
            card.want(holder, holder, 0, 0, now_ns)
    assert had["b"] / now_ns < 0.45 + 0.1 + 0.05  # no more than the requests of both


def test_a_container_waits_while_it_wants_the_card_and_another_one_has_the_turn(card: Card[str]) -> None:
    both_want(card)
    turn_ns = card.wake_ns()
    card.look(turn_ns)
    assert card.holder == "b"
    card.want("a", "a", 0, 0, turn_ns + 3 * MS)  # until then, it did not want the card
    now_ns = turn_ns + 4 * MS
    assert (card.waited_ns("a", now_ns), card.waited_ns("b", now_ns)) == (MS, turn_ns)
    assert card.holder == "b"
    card.stalled(now_ns + 1_000 * MS)
    assert card.waited_ns("a", now_ns + 1_001 * MS) < 10 * MS


def test_a_guest_pauses_the_holder_for_a_moment(card: Card[str]) -> None:
    card.want("a", "a", 0, 0, 0)
    pause = pages(card.use("b", "b", 0, MS, pause=True))["a"].pause
    assert pause
    assert card.wake_ns() == MS + PAUSE_NS
    assert pages(card.use("b", "b", MS, 2 * MS, pause=False))["a"].pause == 0
    assert pages(card.use("b", "b", 0, 3 * MS, pause=True))["a"].pause not in (0, pause)
    assert pages(card.look(3 * MS + PAUSE_NS))["a"].pause == 0


def test_a_process_that_ends_pauses_no_container(card: Card[str]) -> None:
    card.want("a", "a", 0, 0, 0)
    card.use("b", "b", 0, MS, pause=True)
    assert pages(card.gone("b", "b", 2 * MS))["a"].pause == 0
    card.use("b", "b", 0, 3 * MS, pause=True)
    assert pages(card.leave("b", 4 * MS))["a"].pause == 0


def test_a_container_pauses_others_for_its_part_of_the_time_at_most(card: Card[str]) -> None:
    shown = pages(card.want("a", "a", 0, 0, 0))
    paused_ns = 0
    for ms in range(1_000):
        shown |= pages(card.use("b", "b", 0, ms * MS, pause=True))
        paused_ns += MS if shown["a"].pause else 0
    assert paused_ns <= 500 * MS + PAUSES_NS


def test_others_are_neighbours_for_a_second_after_their_last_frame(card: Card[str]) -> None:
    assert pages(card.use("b", "b", MS, MS, pause=False))["a"].neighbours
    assert "a" not in pages(card.look(MS + NEIGHBOUR_NS - 1))
    assert not pages(card.look(MS + NEIGHBOUR_NS))["a"].neighbours


def test_a_process_that_ends_gives_its_turn_back_at_once(card: Card[str]) -> None:
    card.want("a", "a1", 0, 0, 0)
    card.want("b", "b1", 0, 0, MS)
    assert tokens(card.gone("a", "a1", 2 * MS)) == {"b1": NO_END}


def test_a_container_that_leaves_gives_its_turn_back_at_once(card: Card[str]) -> None:
    card.want("a", "a1", 0, 0, 0)
    card.want("b", "b1", 0, 0, MS)
    assert tokens(card.leave("a", 2 * MS)) == {"b1": NO_END}
    assert card.leave("a", 3 * MS) == []
    assert card.gone("a", "a1", 3 * MS) == []


def test_the_time_in_which_the_server_did_not_run_is_charged_to_no_one(card: Card[str]) -> None:
    both_want(card)
    hung = 3000 * MS
    effects = card.stalled(hung)
    assert pages(effects)["a"].until_ns == hung + QUANTUM_NS
    assert card.held_ns("a", hung) == 0


def test_a_container_without_a_guarantee_runs_when_others_do_not() -> None:
    card: Card[str] = Card(Fair())
    card.join("a", Share(request_ppm=0), 0)
    assert tokens(card.want("a", "a1", 0, 0, 0)) == {"a1": NO_END}

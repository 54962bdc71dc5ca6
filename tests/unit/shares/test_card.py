"""The life of a turn, step by step."""

import pytest

from shares.card import GRACE_NS, MAX_GRACE_NS, NO_END, Card, PageUpdate, Token
from shares.policy.fair import Fair
from shares.policy.model import MS, SHORTEST_NS, TURN_NS, Share

HALF = Share(request_ppm=500_000)


@pytest.fixture
def card() -> Card[str]:
    card: Card[str] = Card(Fair())
    for name in "ab":
        card.join(name, HALF, 0)
    return card


def tokens(effects: list[Token[str] | PageUpdate]) -> dict[str, int]:
    return {effect.process: effect.until_ns for effect in effects if isinstance(effect, Token)}


def pages(effects: list[Token[str] | PageUpdate]) -> dict[str, tuple[int, int]]:
    return {effect.container: (effect.until_ns, effect.waiters) for effect in effects if isinstance(effect, PageUpdate)}


def test_one_alone_has_a_turn_without_end_until_another_comes(card: Card[str]) -> None:
    assert tokens(card.want("a", "a1", 0, 0, 0)) == {"a1": NO_END}
    later = 1000 * MS
    assert pages(card.want("b", "b1", 0, 0, later)) == {"a": (later, 1)}
    assert tokens(card.want("a", "a1", 0, 0, later + MS)) == {"b1": later + MS + TURN_NS}
    assert card.held_ns("a", later + MS) == later + MS


def test_all_processes_of_a_container_share_its_turn(card: Card[str]) -> None:
    card.want("b", "b1", 0, 0, 0)
    card.release("b", "b1", 0, MS)
    until = tokens(card.want("a", "a1", 0, 0, MS))["a1"]
    assert tokens(card.want("a", "a2", 0, 0, 5 * MS)) == {"a2": until}
    card.want("b", "b1", 0, 0, 6 * MS)
    assert card.release("a", "a1", 0, 7 * MS) == []
    assert tokens(card.release("a", "a2", 0, 8 * MS)) == {"b1": NO_END}


def test_a_renewal_is_one_message_and_does_not_pass_over_one_who_waits(card: Card[str]) -> None:
    card.join("c", HALF, 0)
    for name in "abc":
        card.want(name, name, 0, 0, 0)
    order = []
    for turn in range(1, 10):
        holder = card.holder
        order.append(holder)
        card.want(holder, holder, 0, 0, turn * TURN_NS)
    assert order == ["a", "b", "c"] * 3


def test_a_turn_ends_early_for_one_who_is_far_behind(card: Card[str]) -> None:
    card.want("b", "b1", 0, 0, 0)
    card.want("a", "a1", 0, 0, 0)
    card.want("b", "b1", 0, 0, 300 * MS)  # it ran for longer than its turn
    assert card.holder == "a"
    card.release("a", "a1", 0, 301 * MS)
    assert card.holder == "b"
    began = 310 * MS
    effects = card.want("a", "a1", 0, 0, began + SHORTEST_NS)
    assert pages(effects)["b"][0] <= began + SHORTEST_NS


def test_a_process_that_says_nothing_loses_its_turn_with_the_lease_and_pays_later(card: Card[str]) -> None:
    card.want("a", "a1", 0, 0, 0)
    card.want("b", "b1", 0, 0, 0)
    until = TURN_NS
    assert card.look(until + GRACE_NS - 1) == []
    assert tokens(card.look(until + GRACE_NS)) == {"b1": NO_END}
    card.want("a", "a1", 0, GRACE_NS + 100 * MS, until + GRACE_NS + 200 * MS)
    assert card.held_ns("a", until + GRACE_NS + 200 * MS) == until + GRACE_NS + 100 * MS


def test_a_declared_estimate_does_not_make_the_lease_longer(card: Card[str]) -> None:
    card.want("a", "a1", 60_000 * MS, 0, 0)
    card.want("b", "b1", 0, 0, 0)
    assert tokens(card.look(TURN_NS + GRACE_NS)) == {"b1": NO_END}


@pytest.mark.parametrize(
    ("late_ns", "grace_ns"),
    [(100 * MS, GRACE_NS), (GRACE_NS, 2 * GRACE_NS), (800 * MS, 1600 * MS), (10_000 * MS, MAX_GRACE_NS)],
)
def test_the_lease_is_twice_the_time_that_was_charged_after_the_last_turn(card: Card[str], late_ns: int, grace_ns: int) -> None:
    for name in "ab":
        card.want(name, name, 0, 0, 0)
    card.look(TURN_NS + GRACE_NS)
    back_ns = TURN_NS + 20_000 * MS
    card.want("a", "a", 0, late_ns, back_ns)
    card.release("b", "b", 0, back_ns)
    card.want("b", "b", 0, 0, back_ns)
    assert card.holder == "a"
    ended_ns = back_ns + TURN_NS
    card.look(ended_ns + grace_ns - 1)
    assert card.holder == "a"
    assert tokens(card.look(ended_ns + grace_ns)) == {"b": NO_END}


def test_a_short_turn_halves_the_time_that_the_next_lease_is_based_on(card: Card[str]) -> None:
    now_ns, graces_ns = 0, []
    for late_ns in (280 * MS, 800 * MS, 0, 0, 0):
        card.want("b", "b", 0, 0, now_ns)
        card.release("b", "b", 0, now_ns)
        card.want("a", "a", 0, 0, now_ns)
        card.want("b", "b", 0, 0, now_ns)
        ended_ns = now_ns + TURN_NS
        card.look(ended_ns)
        graces_ns.append(card.wake_ns() - ended_ns)
        now_ns = ended_ns + late_ns
        card.release("a", "a", late_ns, now_ns)
        card.release("b", "b", 0, now_ns)
    assert graces_ns == [GRACE_NS, 560 * MS, 1600 * MS, 800 * MS, 400 * MS]


def test_a_kernel_that_is_longer_than_its_turn_is_charged_in_full(card: Card[str]) -> None:
    for name in "ab":
        card.want(name, name, 0, 0, 0)
    assert card.look(TURN_NS) == []
    card.want("a", "a", 0, 100 * MS - TURN_NS, 100 * MS)
    assert card.holder == "b"
    assert card.held_ns("a", 200 * MS) == 100 * MS


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
    card.want("a", "a1", 0, 0, 0)
    card.want("b", "b1", 0, 0, 0)
    hung = 3000 * MS
    effects = card.stalled(hung)
    assert pages(effects) == {"a": (hung + TURN_NS, 1)}
    assert card.held_ns("a", hung) == 0


def test_a_container_without_a_guarantee_runs_when_others_do_not() -> None:
    card: Card[str] = Card(Fair())
    card.join("a", Share(request_ppm=0), 0)
    assert tokens(card.want("a", "a1", 0, 0, 0)) == {"a1": NO_END}

"""Test the table of a gang's life: which events occur in which stage, and what a life holds after them."""

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from central.assignment.model import NOTHING_TAKEN
from central.gang.life import (
    PHASES,
    TRANSITIONS,
    GangEvent,
    IllegalTransitionError,
    Life,
    Phase,
    Planned,
    Stage,
    Standing,
    next_stage,
)
from central.ledger.model import Holder, OwnClaim
from central.search.placement import Placement
from lading.vocabulary import PodUid

PLACE = Planned(node="n1", placement=Placement(containers={}, taken=NOTHING_TAKEN))
A, B, KEPT = PodUid("a"), PodUid("b"), PodUid("kept-for-gang/a")
CLAIM = OwnClaim(holder=Holder(pod=KEPT), node="n1", taken=NOTHING_TAKEN)


@pytest.mark.parametrize(("stage", "event"), sorted(set(product(Stage, GangEvent)) - TRANSITIONS.keys(), key=str))
def test_an_event_that_the_table_does_not_have_is_an_error(stage: Stage, event: GangEvent) -> None:
    with pytest.raises(IllegalTransitionError, match=f"{event.value} in stage {stage.value}"):
        next_stage(stage, event)


def test_each_stage_can_be_reached_and_left() -> None:
    reached = {Stage.IDLE}
    for _ in Stage:
        reached |= {after for (before, _), after in TRANSITIONS.items() if before in reached}
    assert reached == {*Stage}
    assert {before for (before, _), after in TRANSITIONS.items() if before is not after} == {*Stage}


def test_each_standing_in_each_stage_is_a_phase() -> None:
    """Check each pair of standing and stage. An abandoned start recovers once no bound member waits for others."""
    recovered = {(standing, Stage.ABANDONED) for standing in Standing if standing is not Standing.BEGUN}
    assert PHASES.keys() == set(product(Standing, Stage)) - recovered
    assert {*PHASES.values()} == {*Phase}


def _next(life: Life) -> list[Life]:
    """Return each life that may follow this one."""
    if life.stage is Stage.ABANDONED:
        return [life.after(GangEvent.RECOVER)]
    lives = [life.after(GangEvent.PLAN, places={A: PLACE, B: PLACE}, kept={})]
    lives += [life.ended(GangEvent.END), life.ended(GangEvent.FAIL)]
    if life.stage is Stage.IDLE:
        return lives
    lives.append(life.after(GangEvent.NAME, named_at=1.0))
    lives += [life.after(GangEvent.ARRIVE, arrived=life.arrived | {uid}) for uid in life.places]
    lives += [life.without([uid]) for uid in (*life.places, *life.kept)]
    if A in life.places:
        lives.append(life.keeping(A, CLAIM))
    if life.stage is Stage.PLANNED and life.arrived == life.places.keys():
        lives.append(life.after(GangEvent.OPEN, until=60.0))
    return lives


@given(st.lists(st.integers(min_value=0, max_value=99), max_size=30))
def test_only_a_planned_or_open_start_holds_places(choices: list[int]) -> None:
    life = Life()
    for choice in choices:
        lives = _next(life)
        life = lives[choice % len(lives)]
        if life.stage in {Stage.IDLE, Stage.ABANDONED}:
            assert not life.holds
            assert not life.is_open
        if life.stage is Stage.PLANNED:
            assert life.holds
        assert life.arrived <= life.places.keys()
        if life.stage is Stage.ABANDONED:
            assert life.until == math.inf


def test_losing_an_unknown_place_changes_nothing() -> None:
    life = Life().after(GangEvent.PLAN, places={A: PLACE})
    assert life.without([B]) is life
    assert Life().without([B]) == Life()
    assert life.without([A]).stage is Stage.IDLE
    assert life.keeping(A, CLAIM).without([KEPT]).stage is Stage.IDLE


def test_the_pause_doubles_with_each_start_up_to_five_minutes() -> None:
    lives = [Life(starts=starts).paused(100.0).resumes - 100.0 for starts in (0, 1, 2, 10, 11, 1000)]
    assert lives == [0.25, 0.5, 1.0, 256.0, 300.0, 300.0]

"""Test when each object is handled next: the last time counts, and none is returned before its time."""

import math

from hypothesis import given
from hypothesis import strategies as st

from central.loop.agenda import Agenda

KEYS = "abcdefgh"


@given(st.lists(st.tuples(st.sampled_from(KEYS), st.one_of(st.integers(0, 20), st.just(math.inf))), max_size=300))
def test_an_agenda_returns_keys_when_they_are_due(puts: list[tuple[str, float]]) -> None:
    agenda, model = Agenda[str](), dict[str, float]()
    for now, (key, at) in enumerate(puts):
        agenda.put(key, at + now)
        model[key] = at + now
        due = agenda.take_due(now)
        assert sorted(due) == sorted(key for key, at in model.items() if at <= now)
        assert [model[key] for key in due] == sorted(model[key] for key in due)
        model = {key: at for key, at in model.items() if key not in due and at < math.inf}
        assert len(agenda) == len(model)
        assert len(agenda._heap) <= 2 * len(KEYS) + 65

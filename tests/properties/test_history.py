"""Check the ledger's history under any order of grants, releases and restarts: its open periods equal the held devices."""

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from hooks.ledger.period import End, past_of
from hooks.ledger.store import Ledger, read_history, replace_ledger
from lading.vocabulary import PodUid
from tests.fakes.holders import grant, whole

numbers = st.integers(0, 3)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("record"), numbers),
        st.tuples(st.just("release"), numbers),
        st.tuples(st.just("reopen"), st.just(0)),
        st.tuples(st.just("rebuild"), st.just(0)),
        st.tuples(st.just("prune"), st.integers(0, 30)),
    ),
    max_size=25,
)


@given(steps)
@settings(max_examples=60)
def test_what_is_open_is_what_is_held(taken: list[tuple[str, int]]) -> None:
    begun = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state" / "node.db"
        ledger = Ledger.open(path)
        for now, (step, number) in enumerate(taken, 1):
            pod = PodUid(f"pod-{number}")
            match step:
                case "record":
                    held_already = ledger.find(pod, "train")
                    begun += held_already is None
                    ledger.record(held_already or grant(pod, devices=whole(number), granted_at=now))
                case "release":
                    ledger.release(pod, end=End(at=now))
                case "prune":
                    ledger.history.prune(number)
                case _:
                    ledger.close()
                    if step == "rebuild":
                        replace_ledger(path, ledger.grants(), now=now)
                    ledger = Ledger.open(path)
        periods = read_history(path)
        held = {(one.key, one.granted_at) for one in ledger.grants()}
        assert {((period.pod, period.container), period.since) for period in periods if period.end is None} == held
        ended = [period for period in periods if period.end is not None]
        assert all(period.until >= period.since for period in ended if period.until is not None)
        assert len(periods) <= begun
        if not any(step == "prune" for step, _ in taken):
            assert len(periods) == begun
            assert ledger.history.past() == past_of(sorted(ended, key=lambda period: -(period.until or 0)))
        ledger.close()

"""Read from verdicts what tests look at: states, and whether a mend names something."""

from collections.abc import Iterable

from doctor.model import State, Verdict


def states(verdicts: Iterable[Verdict]) -> list[State]:
    return [verdict.state for verdict in verdicts]


def only(verdicts: Iterable[Verdict]) -> Verdict:
    (verdict,) = verdicts
    return verdict

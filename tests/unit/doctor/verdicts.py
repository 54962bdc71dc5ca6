"""Read from verdicts what tests look at: states, and whether a mend names something."""

from collections.abc import Iterable

from lading.checks.model import Finding, Verdict


def states(verdicts: Iterable[Finding]) -> list[Verdict]:
    return [verdict.verdict for verdict in verdicts]


def only(verdicts: Iterable[Finding]) -> Finding:
    (verdict,) = verdicts
    return verdict

"""Test how long to wait between attempts."""

import itertools

from lading.kube.backoff import Backoff


def test_it_doubles_up_to_the_limit() -> None:
    backoff = Backoff(first_s=1, limit_s=8, chance=lambda: 1.0)
    assert [backoff.failed() for _ in range(6)] == [1, 2, 4, 8, 8, 8]


def test_chance_takes_up_to_half() -> None:
    chances = itertools.cycle([0.0, 0.5, 1.0])
    backoff = Backoff(first_s=4, limit_s=4, chance=lambda: next(chances))
    assert [backoff.failed() for _ in range(3)] == [2, 3, 4]


def test_success_begins_anew() -> None:
    backoff = Backoff(first_s=1, limit_s=8, chance=lambda: 1.0)
    backoff.failed()
    backoff.failed()
    backoff.succeeded()
    assert backoff.failures == 0
    assert backoff.failed() == 1


def test_the_server_may_ask_for_more() -> None:
    backoff = Backoff(first_s=1, limit_s=8, chance=lambda: 1.0)
    assert backoff.failed(at_least_s=30) == 30
    assert backoff.failed(at_least_s=1) == 2


def test_a_long_outage_overflows_nothing() -> None:
    backoff = Backoff(first_s=1, limit_s=8, chance=lambda: 1.0)
    assert {backoff.failed() for _ in range(5000)} == {1, 2, 4, 8}
